"""Nobody but the person who serves or runs a job can make it run code, or read what its pages show."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prefect.client.schemas.objects import StateType
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from nightjar.flows.prefect_api.ownserver import PrefectApi
from nightjar.flows.serving.serve import _addresses
from nightjar.flows.serving.site import place
from service import Service, deployments, ended, service, start_run
from support import GATE, NIGHT, Lake, command, nightjar, permit, signed_in, wait_until

ATTACK = """
from pathlib import Path

Path(__file__).with_name("ran").touch()


def score(batch):
    return {"score": batch["x"]}
"""
"""A model that leaves a file where it was imported."""


ask = partial(httpx.request, timeout=60)


@dataclass
class Guarded:
    """`nightjar serve` with a Prefect server of its own, as another user of the machine sees it."""

    lake: Lake
    home: Path
    serving: Service
    url: str
    reports: str

    @property
    def passwords(self) -> dict[str, str]:
        return dict(json.loads((self.home / "nightjar-passwords.json").read_text()))

    @property
    def deployment(self) -> str:
        with signed_in(self.passwords["Pages"]):
            return str(deployments(f"{self.url}/api", "guarded")["guarded"].id)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Guarded]:
    """The database was made by an earlier version, which let everybody read it."""
    folder, home = tmp_path_factory.mktemp("guarded"), tmp_path_factory.mktemp("home")
    (home / "prefect.db").write_bytes(empty_database.read_bytes())
    (home / "prefect.db").chmod(0o644)
    lake = Lake(folder / "guarded").ready(name="guarded")
    env = {"PREFECT_HOME": str(home), "PREFECT_API_URL": ""}
    with service(folder, "serve", folder, "--engine", "local", env=env) as serving:
        wait_until(lambda: serving.says("nightjar-passwords.json"), 120, "it serves")
        said = serving.log.read_text()
        pages, reports = re.search(r"Pages: (.*)/deployments", said), re.search(r"Reports: (.*)", said)
        assert pages
        assert reports
        yield Guarded(lake, home, serving, pages[1], reports[1])


def attempts(deployment: str, job: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What a stranger sends to run code of his own as the serving user, or to read what lies there."""
    script = {"prefect.deployments.steps.run_shell_script": {"script": f"touch {Path(job).parent / 'ran'}"}}
    return [
        ("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": {"job": job}}),
        ("PATCH", f"/deployments/{deployment}", {"pull_steps": [script]}),
        ("POST", "/flow_runs/", {"flow_id": deployment, "parameters": {"job": job}}),
        ("POST", "/deployments/filter", {}),
        ("POST", "/logs/filter", {}),
        ("GET", "/admin/settings", {}),
    ]


@pytest.mark.parametrize("given", [None, ("nightjar", "guessed"), ("nightjar", "")])
def test_a_stranger_can_neither_start_nor_change_nor_read(
    guarded: Guarded, tmp_path: Path, given: tuple[str, str] | None
) -> None:
    """Nor see the reports, or the events, which come over another protocol."""
    deployment = guarded.deployment
    for method, path, body in attempts(deployment, str(tmp_path / "job.yaml")):
        answer = ask(method, f"{guarded.url}/api{path}", json=body, auth=given)
        assert answer.status_code == 401, (path, answer.text)
    for path in ("/", "/jobs/guarded/", "/favicon.ico", "/nowhere"):
        answer = ask("GET", f"{guarded.reports}{path}", auth=given)
        assert answer.status_code == 401, path
        assert "guarded" not in answer.text
    events = f"{guarded.url.replace('http', 'ws')}/api/events/out"
    with connect(events, subprotocols=["prefect"]) as socket, pytest.raises(ConnectionClosed):  # type: ignore[list-item]
        socket.send(json.dumps({"type": "auth", "token": ":".join(given) if given else None}))
        socket.recv(timeout=30)
    with signed_in(guarded.passwords["Pages"]):
        assert deployments(f"{guarded.url}/api", "guarded")["guarded"].pull_steps == []
    assert not (tmp_path / "ran").exists()


def test_the_password_of_the_reports_does_not_open_the_api(guarded: Guarded) -> None:
    """It may be sent over a network in the clear."""
    answer = ask(
        "POST", f"{guarded.url}/api/deployments/filter", json={}, auth=tuple(guarded.passwords["Reports"].split(":"))
    )
    assert answer.status_code == 401
    answer = ask("GET", guarded.reports, auth=tuple(guarded.passwords["Reports"].split(":")))
    assert answer.status_code == 200
    assert "guarded" in answer.text


def test_a_page_of_elsewhere_whose_name_leads_here_is_not_answered(guarded: Guarded) -> None:
    """Even with the password, which a browser does not give it."""
    for address, password in ((f"{guarded.url}/api/admin/version", "Pages"), (guarded.reports, "Reports")):
        auth = tuple(guarded.passwords[password].split(":"))
        for host in ("evil.example", "evil.example:4200", "127.0.0.1.evil.example"):
            assert ask("GET", address, headers={"Host": host}, auth=auth).status_code == 400, (address, host)
        assert ask("GET", address, headers={"Host": "localhost"}, auth=auth).status_code == 200


def test_a_page_of_elsewhere_may_not_read_an_answer(guarded: Guarded) -> None:
    """Nor send what a browser asks about first. Only the server's own pages may, under both of their names."""
    port = guarded.url.rpartition(":")[2]
    asks = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "authorization"}
    for origin, may in (
        ("http://evil.example", False),
        ("null", False),
        ("http://127.0.0.1:9", False),
        (f"http://127.0.0.1:{port}", True),
        (f"http://localhost:{port}", True),
    ):
        for method, headers in (("GET", {}), ("OPTIONS", asks)):
            answer = ask(method, f"{guarded.url}/api/health", headers={"Origin": origin, **headers})
            assert answer.headers.get("Access-Control-Allow-Origin") == (origin if may else None), (method, origin)


def test_only_this_user_may_read_the_password_and_the_database(guarded: Guarded) -> None:
    """Also the files that SQLite makes beside it."""
    files = [path for path in guarded.home.iterdir() if path.name.startswith(("prefect.db", "nightjar-"))]
    assert {"prefect.db", "prefect.db-wal", "prefect.db-shm", "nightjar-passwords.json"} <= {
        each.name for each in files
    }
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {
        path.name: "0o600" for path in files
    }


def test_no_command_line_and_no_log_has_the_password(guarded: Guarded) -> None:
    """A command line can be read by everybody; a process's environment by this user alone."""
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("nightjar.flows.prefect_api.ownserver" in line for line in lines)
    for password in guarded.passwords.values():
        assert len(password) > 30
        assert not [line for line in lines if password.split(":")[1] in line]
        assert password not in guarded.serving.log.read_text()


def test_a_job_that_is_not_served_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    """Even of who signs in: neither its file nor its code is used. A job that is served runs, and reports."""
    other = Lake(tmp_path / "other")
    other.write_model(ATTACK)
    other.ready(name="other")
    api = f"{guarded.url}/api"
    with signed_in(guarded.passwords["Pages"]):
        deployment = deployments(api, "guarded")["guarded"]
        refused = ended(api, start_run(api, deployment, job=str(other.job_path), date=NIGHT))
        ran = ended(api, start_run(api, deployment, date=NIGHT))
    assert refused.state
    assert refused.state.message == (f"job: {other.job_path} is not served here; start `nightjar serve` on its folder")
    assert not list(other.folder.rglob("ran"))
    assert not other.out.exists()
    assert ran.state
    assert ran.state.is_completed(), ran.state.message
    assert guarded.lake.snapshot().number == 1


def test_a_terminal_shows_addresses_that_sign_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log, which others may read, says where the passwords are."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    server = PrefectApi()
    server.url, server.password = "http://127.0.0.1:4200/api", "nightjar:for pages"
    with place("127.0.0.1", 0) as at:
        reports, pages = _addresses(server, at, private=True)
        shown = json.loads((tmp_path / "nightjar-passwords.json").read_text())["Reports"]
        assert reports == f"Reports: {at.address.replace('//', f'//{shown}@')}"
        assert pages.startswith("Pages: http://127.0.0.1:4200/sign-in#nightjar%3Afor%20pages; ")
        said = " ".join(_addresses(server, at, private=False))
    assert "for pages" not in said
    assert shown not in said
    assert f"in {tmp_path}/nightjar-passwords.json." in said


SLOW = """
from gate import Gate

gate = Gate(__LIVE__ + "/permits")


def score(batch):
    gate.wait(len(batch["x"]))
    return {"score": batch["x"]}
"""


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_the_server_of_a_run_lets_only_the_run_in(tmp_path: Path, own_home: Path, engine: str) -> None:
    """Its own processes report to it: states, task runs, logs and artifacts are all there in the end."""
    lake = Lake(tmp_path / "own")
    lake.write_model(SLOW)
    (lake.folder / "gate.py").write_text(GATE)
    (lake.folder / "permits").mkdir()
    lake.ready(name="own", model__batch_size=1000)
    env = {**os.environ, "PREFECT_HOME": str(own_home), "PREFECT_API_URL": ""}
    words = [nightjar(), "run", str(lake.job_path), "--date", NIGHT, "--engine", engine]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            wait_until(lambda: lake.revision().exists() or running.poll() is not None, 120, "it scores")
            assert running.poll() is None, running.communicate()
            [server] = [
                child
                for child in psutil.Process(running.pid).children(recursive=True)
                if "nightjar.flows.prefect_api.ownserver" in child.cmdline()
            ]
            [port] = {each.laddr.port for each in server.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
            answer = ask("POST", f"http://127.0.0.1:{port}/api/flow_runs/filter", json={})
            password = server.environ()["PREFECT_SERVER_API_AUTH_STRING"].split(":")[1]
            lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        finally:
            permit(lake.folder / "permits", 8)
        said, _ = running.communicate(timeout=180)
    assert answer.status_code == 401
    assert password
    assert not [line for line in lines if password in line]
    assert running.returncode == 0, said
    with closing(sqlite3.connect(own_home / "prefect.db")) as kept:

        def found(query: str) -> list[Any]:
            return kept.execute(query).fetchall()

        assert found("SELECT state_type FROM flow_run") == [(StateType.COMPLETED.value,)]
        states = dict(found("SELECT name, state_type FROM task_run"))
        assert {name.rpartition("-")[0] or name: state for name, state in states.items()} == dict.fromkeys(
            ["discover", "score", "validate", "publish"], StateType.COMPLETED.value
        )
        assert found("SELECT count(*) FROM log WHERE message LIKE 'scored: %'") == [(1,)]
        assert {key for (key,) in found("SELECT key FROM artifact")} >= {"own-summary", "own-gates", "own-shards"}


def test_a_password_that_others_could_read_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a link that leads to somebody's file; a good one stays, so that a browser stays signed in."""
    from nightjar.flows.prefect_api.ownserver import password_file, passwords

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    first = passwords()
    assert passwords() == first
    password_file().chmod(0o640)
    second = passwords()
    assert set(second.values()).isdisjoint(first.values())
    (tmp_path / "theirs").write_text(json.dumps(first))
    password_file().unlink()
    password_file().symlink_to(tmp_path / "theirs")
    assert set(passwords().values()).isdisjoint(first.values())
    assert stat.S_IMODE(password_file().lstat().st_mode) == 0o600


def test_what_cannot_be_kept_is_one_sentence(tmp_path: Path) -> None:
    """A run would otherwise start a server that everybody may use."""
    (tmp_path / "home").write_text("a file")
    lake = Lake(tmp_path / "lake").ready()
    done = command("run", lake.job_path, env={"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": ""})
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"nightjar: {tmp_path}/home/nightjar-passwords.json: the passwords")
    assert "Traceback" not in done.stderr
