"""`notify` from the flow, however a run is started: what is posted, and that the address is printed nowhere."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings
from test_artifacts import page

from commands import DATE
from faults import FaultyStorage, fail
from forked import forked
from nightjar import flows
from nightjar.flows import nightly_flow
from nightjar.flows.nightly_flow import nightly
from nightjar.flows.pages import standing
from nightjar.flows.prefect_api.server import drain
from nightjar.inference.errors import ClusterError, Denied, JobError, StorageError, Transient
from nightjar.inference.run import request, resume
from nightjar.inference.storage.lake import LakeStorage
from support import Lake
from webhooks import SECRET, webhook

LOCAL = ("--engine", "local")

WITH_FILE = """
class Score:
    def __init__(self, path):
        self.path = path

    def __call__(self, batch):
        return {"score": batch["x"]}
"""


def test_a_failed_and_a_published_night_are_told_with_the_page_of_the_run(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    with webhook(500, 500, 200) as hook:
        env = {**api_env, "CHANNEL": hook.url}
        lake = Lake(tmp_path).ready(
            name="told",
            checks=[{"column": "score", "max": 5}],
            notify={"on": ["failed", "published"], "webhook": "${CHANNEL}"},
        )
        failed = forked("run", lake.job_path, "--date", DATE, "--verbose", *LOCAL, env=env)
        assert failed.returncode == 1
        assert len(hook.posted) == 3, "refused twice"
        lake.write_job(name="told", notify={"on": ["failed", "published"], "webhook": "${CHANNEL}"})
        done = forked("run", lake.job_path, "--date", DATE, "--verbose", *LOCAL, env=env)
        assert done.returncode == 0, done.stderr
    first, last = hook.posted[2], hook.posted[3]
    assert (first["event"], first["verdict"]) == ("failed", "failed at gate score.max")
    assert first["command"] == f"nightjar show {lake.job_path} {DATE}"
    assert (last["event"], last["verdict"].partition(":")[0]) == ("published", "published as #1")
    for body in (first, last):
        assert body["link"].startswith(api_env["PREFECT_API_URL"].removesuffix("/api") + "/")
        assert body["link"] in body["text"]
    assert first["link"] != last["link"]
    assert SECRET not in failed.stdout + failed.stderr + done.stdout + done.stderr


def test_a_webhook_that_is_away_is_a_warning_and_the_night_is_published(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    with webhook(404) as hook:
        lake = Lake(tmp_path).ready(name="untold", notify={"on": ["published"], "webhook": hook.url})
        done = forked("run", lake.job_path, "--date", DATE, "--verbose", *LOCAL, env=api_env)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "notify.webhook: nobody was told: the webhook answered 404" in said
    assert SECRET not in said


def test_a_run_with_a_server_of_its_own_has_no_link_that_is_dead(tmp_path: Path, own_home: Path) -> None:
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["published"], "webhook": hook.url})
        done = forked("run", lake.job_path, "--date", DATE, *LOCAL, env={"PREFECT_HOME": str(own_home)})
        assert done.returncode == 0, done.stderr
    assert [body["link"] for body in hook.posted] == [""]


def test_a_run_without_input_is_told_before_anything_starts(tmp_path: Path, api_env: dict[str, str]) -> None:
    with webhook(503) as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url}, carry=["id", "gone"])
        done = forked("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env)
        assert done.returncode == 2
    assert "notify.webhook: nobody was told: the webhook answered 503" in done.stderr
    body = hook.posted[0]
    assert (body["verdict"], body["link"]) == ("rejected", "")
    assert body["cause"].startswith("carry: 'gone' is not a column of the input")


def test_a_run_that_cannot_start_is_told_too(tmp_path: Path, api_env: dict[str, str]) -> None:
    """Where there is no cluster no flow begins."""
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        done = forked("run", lake.job_path, "--date", DATE, "--ray", "127.0.0.1:1", env=api_env)
        assert done.returncode == 2
    (body,) = hook.posted
    assert (body["verdict"], body["link"]) == ("failed", "")
    assert "127.0.0.1:1" in body["cause"]
    assert body["command"].startswith("nightjar check ")


def test_a_run_whose_prefect_is_away_is_told_and_its_reason_is_kept(tmp_path: Path, own_home: Path) -> None:
    env = {"PREFECT_HOME": str(own_home), "PREFECT_API_URL": "http://127.0.0.1:1/api"}
    with webhook() as hook:
        lake = Lake(tmp_path).ready(
            notify={"on": ["failed"], "webhook": hook.url}, output={"uri": str(tmp_path / "out" / "{date}")}
        )
        done = forked("run", lake.job_path, "--date", DATE, *LOCAL, env=env)
        assert done.returncode == 2
    (body,) = hook.posted
    assert (body["verdict"], body["link"]) == ("failed", "")
    assert body["cause"].startswith("no Prefect API at http://127.0.0.1:1/api")
    assert standing.status(lake.request(date=DATE)).standing == "failed at start"


@pytest.mark.parametrize("error", [Denied, Transient])
def test_a_run_whose_storage_refuses_is_told_though_no_reason_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StorageError]
) -> None:
    refused = [fail("*", f"*/{place}*", None, error("refused on purpose")) for place in ("data", "runs")]
    monkeypatch.setattr(request, "storage_of", lambda _: FaultyStorage(LakeStorage(), refused))
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        with pytest.raises(error):
            flows.run(lake.job_path, date=DATE, engine="local")
    (body,) = hook.posted
    assert (body["event"], body["run_id"], body["verdict"]) == ("failed", DATE, "failed")
    assert "refused on purpose" in body["cause"]


@pytest.mark.parametrize("lacks", [{"model": {"uses": "gone:Model"}}, {"model": {"path": "gone.bin"}}])
def test_a_run_whose_code_or_model_is_missing_is_told(
    tmp_path: Path, api_env: dict[str, str], lacks: dict[str, dict[str, str]]
) -> None:
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        job = yaml.safe_load(lake.job_path.read_text())
        job["model"] |= lacks["model"]
        lake.job_path.write_text(yaml.safe_dump(job))
        done = forked("run", lake.job_path, "--date", DATE, *LOCAL, env=api_env)
        assert done.returncode == 2
    (body,) = hook.posted
    assert (body["event"], body["verdict"]) == ("failed", "rejected")
    assert "gone" in body["cause"]


@pytest.mark.parametrize("lacks", [{"path": "gone.bin"}, {"uses": "torch", "path": "weights.pt2"}])
def test_a_backfill_that_fails_before_its_first_night_is_told_once(tmp_path: Path, lacks: dict[str, str]) -> None:
    """Whether the model cannot be had or cannot be read: of the first of its nights."""
    (tmp_path / "weights.pt2").write_bytes(b"no model")
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        job = yaml.safe_load(lake.job_path.read_text())
        job["model"] |= lacks
        lake.job_path.write_text(yaml.safe_dump(job))
        with pytest.raises(JobError) as failed:
            flows.backfill(lake.job_path, DATE, "2026-11-21", engine="local")
    (body,) = hook.posted
    assert (body["event"], body["run_id"], body["verdict"]) == ("failed", DATE, "rejected")
    assert body["cause"] == str(failed.value)
    assert lacks["path"] in body["cause"]


def test_a_backfill_whose_prefect_is_away_is_told_once(tmp_path: Path) -> None:
    with webhook() as hook, temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        with pytest.raises(ClusterError) as failed:
            flows.backfill(lake.job_path, DATE, "2026-11-21", engine="local")
    (body,) = hook.posted
    assert (body["run_id"], body["verdict"]) == (DATE, "failed")
    assert body["cause"] == str(failed.value)


def test_wrong_words_of_a_backfill_are_told_to_nobody_and_a_night_that_fails_in_it_once(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    """The words are for whoever typed them."""
    with webhook() as hook:
        lake = Lake(tmp_path).ready(
            notify={"on": ["failed"], "webhook": hook.url}, input__uri="data/{date}/", schedule={"cron": "0 2 * * MON"}
        )
        for first, last in ((DATE, "2026-11-18"), (DATE, DATE)):
            with pytest.raises(JobError, match=r"^there is no night"):
                flows.backfill(lake.job_path, first, last, engine="local")
        assert hook.posted == []
        done = forked("backfill", lake.job_path, "--from", DATE, "--to", "2026-11-23", *LOCAL, env=api_env)
        assert done.returncode == 1, done.stderr
    (body,) = hook.posted
    assert (body["run_id"], body["verdict"]) == ("2026-11-23", "rejected")


def test_a_night_in_the_middle_of_a_backfill_without_its_model_is_told_and_kept(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    """As one that `nightjar run` cannot begin; the nights before and after it are published."""
    nights = ("2026-11-17", "2026-11-18", DATE)
    with webhook() as hook:
        lake = Lake(tmp_path)
        lake.write_model(WITH_FILE)
        lake.ready(
            notify={"on": ["failed"], "webhook": hook.url},
            model__uses="model:Score",
            model__path="models/{date}.bin",
        )
        (tmp_path / "models").mkdir()
        for night in (nights[0], nights[2]):
            (tmp_path / "models" / f"{night}.bin").touch()
        done = forked("backfill", lake.job_path, "--from", nights[0], "--to", nights[2], *LOCAL, "--json", env=api_env)
        assert done.returncode == 1, done.stderr
    assert [night["state"] for night in json.loads(done.stdout)] == ["published", "failed", "published"]
    (body,) = hook.posted
    assert (body["event"], body["run_id"], body["verdict"]) == ("failed", nights[1], "rejected")
    assert f"{nights[1]}.bin" in body["cause"]
    assert standing.status(lake.request(date=nights[1], scores=False)).standing == "rejected at discover"


def test_nights_of_a_backfill_that_finds_the_publications_damaged_are_told_once_each(
    tmp_path: Path, api_env: dict[str, str]
) -> None:
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        lake.run(engine="local", date=DATE)
        publication = lake.out / "publications" / "00000001.json"
        whole = publication.read_text()
        publication.write_text("{")
        later = ("2026-11-20", "2026-11-21")
        done = forked("backfill", lake.job_path, "--from", later[0], "--to", later[1], *LOCAL, env=api_env)
        assert done.returncode == 1, done.stderr
    assert [body["run_id"] for body in hook.posted] == list(later)
    publication.write_text(whole)
    for body in hook.posted:
        assert "00000001.json" in body["cause"]
        assert standing.status(lake.request(date=body["run_id"])).standing == "failed at discover"


@pytest.mark.parametrize("fault", [None, Denied("fix/run.json: not yours"), Transient("fix/run.json: away")])
def test_a_run_whose_record_cannot_be_read_is_told_by_its_job_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: StorageError | None
) -> None:
    """Whether it is damaged, or the storage refuses to show it. The reason is kept where that is possible."""
    with webhook() as hook:
        lake = Lake(tmp_path).ready(notify={"on": ["failed"], "webhook": hook.url})
        begun = request.fixed(request.make_request(lake.job_path, date=DATE, run_id="fix", engine="local"))
        resume.claim(begun)
        kept = lake.out / "runs" / "fix" / "run.json"
        if fault is None:
            kept.write_text("{")
        else:
            refused = [fail("read", "*/run.json", None, fault)]
            monkeypatch.setattr(request, "storage_of", lambda _: FaultyStorage(LakeStorage(), refused))
        with pytest.raises(StorageError, match=r"fix/run\.json") as failed:
            flows.run(lake.job_path, run_id="fix", date=DATE, engine="local")
        with pytest.raises(JobError, match="--run-id"):
            flows.run(lake.job_path, run_id="no/name", date=DATE, engine="local")
    (body,) = hook.posted
    assert (body["event"], body["run_id"], body["date"], body["verdict"]) == ("failed", "fix", DATE, "failed")
    assert body["cause"] == str(failed.value)
    note = kept.parent / "not-begun.json"
    assert str(failed.value) in json.loads(note.read_text())["message"]


def test_a_run_from_the_form_whose_record_cannot_be_read_is_told(tmp_path: Path, prefect_api: str) -> None:
    with webhook() as hook, temporary_settings({PREFECT_API_URL: prefect_api}):
        lake = Lake(tmp_path).ready(name="unread", notify={"on": ["failed"], "webhook": hook.url})
        record = lake.out / "runs" / "fix" / "run.json"
        record.parent.mkdir(parents=True)
        record.write_text("{")
        state = nightly(job=str(lake.job_path), date=DATE, run_id="fix", engine="local", return_state=True)
    (body,) = hook.posted
    assert (body["event"], body["run_id"], body["date"]) == ("failed", "fix", DATE)
    assert body["cause"] == state.message
    assert str(record) in body["cause"]
    assert body["link"].startswith(prefect_api.removesuffix("/api") + "/")


def test_settings_that_no_storage_can_be_made_of_are_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with webhook() as hook:
        lake = Lake(tmp_path).ready(
            notify={"on": ["failed"], "webhook": hook.url}, input__uri="s3://bucket/data/", output__uri="out/{date}/"
        )
        with pytest.raises(Denied, match="gone"):
            flows.run(lake.job_path, run_id="2026-11-18", engine="local")
    (body,) = hook.posted
    assert (body["run_id"], body["date"], body["verdict"]) == ("2026-11-18", "2026-11-18", "failed")


@pytest.mark.parametrize("step", ["discover", "score", "publish_run"])
def test_an_error_that_nothing_foresaw_is_told_and_raised_as_it_was(
    tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """To the webhook and on the run's page."""

    def breaks(*_: object) -> None:
        raise fault

    fault, name = MemoryError("malloc of size 64 failed"), f"broken-{step.replace('_', '-')}"
    monkeypatch.setattr(nightly_flow, step, breaks)
    with webhook() as hook, temporary_settings({PREFECT_API_URL: prefect_api}):
        lake = Lake(tmp_path).ready(name=name, notify={"on": ["failed"], "webhook": hook.url})
        with pytest.raises(MemoryError) as raised:
            nightly(job=str(lake.job_path), date=dt.date.fromisoformat(DATE), engine="local")
        drain()
    assert raised.value is fault
    (body,) = hook.posted
    assert (body["event"], body["run_id"]) == ("failed", DATE)
    assert body["cause"] == "MemoryError: malloc of size 64 failed"
    found = page(prefect_api, f"{name} {DATE}")
    assert found.run.state_name == "Failed"
    assert body["cause"] in str(found.run.state)
    assert body["cause"] in str(found.artifacts[f"{name}-summary"].data)
