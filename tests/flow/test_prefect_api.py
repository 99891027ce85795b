"""The Prefect API that a run reports to: the configured one is asked as a run would; the own one ends with its run."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_SSL_CERT_FILE,
    PREFECT_API_URL,
    PREFECT_CLOUD_API_URL,
    PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS,
    PREFECT_UI_URL,
    temporary_settings,
)

from commands import DATE
from forked import forked
from nightjar.flows.cli import doctor
from nightjar.flows.flow_call import Call, handing, keeping_ending
from nightjar.flows.prefect_api.api import api_url, ask_api, home, is_away, page_of, require_api, worker_env
from nightjar.flows.prefect_api.ownserver import PrefectApi, server_settings
from nightjar.flows.prefect_api.server import start_api
from nightjar.flows.serving.deploy import answering_api
from nightjar.inference.errors import ClusterError, Transient
from nightjar.inference.messages import HIDDEN
from nightjar.inference.storage.locations import without_password
from service import client
from support import Lake, answering, wait_until
from webhooks import webhook

nightly = import_module("nightjar.flows.nightly_flow")

SIGN_IN = "admin:of-today"
NOWHERE = "http://127.0.0.1:9/api"
PROXY = "http://127.0.0.1:9"
OWN_INSTEAD = "(`unset PREFECT_API_URL`, and `prefect config unset PREFECT_API_URL` if it is in the profile)"


class Door(BaseHTTPRequestHandler):
    """The door of a Prefect server: its health is for everybody, the rest for who signs in."""

    def do_GET(self) -> None:
        """Health, version, and beside the API something that answers whatever it is asked."""
        signed = self.headers.get("Authorization") == "Basic " + base64.b64encode(SIGN_IN.encode()).decode()
        if self.path == "/api/health" or self.path.startswith("/beside"):
            self._answer(200, True)
        elif not signed:
            self._answer(401, {"exception_message": "Unauthorized"})
        else:
            self._answer(200, "3.8.8") if self.path == "/api/admin/version" else self._answer(404, {})

    def do_POST(self) -> None:
        """Prefect Cloud's flows, for who has the key."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(200, []) if self.headers.get("Authorization") == "Bearer the-key" else self._answer(401, {})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def door(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of such an API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Certificate:
    """A certificate for 127.0.0.1 that nobody but its owner has signed."""

    path: Path

    def __post_init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
        now = dt.datetime.now(dt.UTC)
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(host, critical=False)
            .sign(key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)

    def serving(self) -> ssl.SSLContext:
        """For a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context


# ---- the configured API -------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "admin:of-yesterday"])
def test_an_api_that_does_not_let_us_in(given: str | None) -> None:
    """Its health is good, and no run could report to it: the setting is named before anything is scored."""
    with door() as url, temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: given}):
        for ask in (start_api, require_api):
            with pytest.raises(ClusterError, match="set PREFECT_API_AUTH_STRING") as told:
                ask()
            said = f"Prefect at {url} does not let this command in (401 Unauthorized); set PREFECT_API_AUTH_STRING"
            assert str(told.value).startswith(said)
            assert "PREFECT_API_KEY" in str(told.value)


def test_an_api_that_lets_us_in() -> None:
    with door() as url, temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: SIGN_IN}):
        start_api()
        assert require_api() == url.removesuffix("/api")


@pytest.mark.parametrize("words", [("run", "--date", DATE), ("deploy",)])
def test_a_command_without_the_sign_in_is_one_sentence(lake: Lake, words: tuple[str, ...], no_leftovers: None) -> None:
    """Exit 2, nothing is written, and no process stays."""
    lake.ready()
    first, *more = words
    with door() as url:
        env = {"PREFECT_API_URL": url, "PREFECT_HOME": str(lake.folder / "home"), "PREFECT_API_AUTH_STRING": ""}
        ended = forked(first, lake.job_path, *more, env=env)
    assert ended.returncode == 2, ended.stderr
    (sentence,) = ended.stderr.splitlines()
    assert "set PREFECT_API_AUTH_STRING to what that server was started with" in sentence
    assert not lake.out.exists()


def test_a_private_certificate_is_trusted_as_prefect_is_told(tmp_path: Path) -> None:
    """By PREFECT_API_SSL_CERT_FILE, which is named to who has not set it."""
    certificate = Certificate(tmp_path / "ca.pem")
    with door(certificate.serving()) as url:
        signed = {PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: SIGN_IN}
        with temporary_settings({**signed, PREFECT_API_SSL_CERT_FILE: str(certificate.path)}):
            start_api()
        with (
            temporary_settings(signed),
            pytest.raises(ClusterError, match=r"CERTIFICATE_VERIFY_FAILED.*PREFECT_API_SSL_CERT_FILE"),
        ):
            start_api()
        with (
            temporary_settings({**signed, PREFECT_API_SSL_CERT_FILE: str(tmp_path / "gone.pem")}),
            pytest.raises(ClusterError, match=r"certificates cannot be read: .*; mend PREFECT_API_SSL_CERT_FILE"),
        ):
            start_api()


def test_something_else_at_the_address() -> None:
    """Who answers, but not with a version, is no Prefect."""
    with door() as url, temporary_settings({PREFECT_API_AUTH_STRING: SIGN_IN}):
        with pytest.raises(ClusterError, match="404 Not Found"):
            ask_api(f"{url}/elsewhere")
        with pytest.raises(ClusterError, match=": it answered, but not as a Prefect API; "):
            ask_api(url.replace("/api", "/beside"))


def test_prefect_cloud_is_asked_for_what_takes_its_key() -> None:
    """It has no version to be asked for."""
    with door() as url, temporary_settings({PREFECT_CLOUD_API_URL: url, PREFECT_API_AUTH_STRING: None}):
        with temporary_settings({PREFECT_API_KEY: "the-key"}):
            assert ask_api(url) == ""
        with (
            temporary_settings({PREFECT_API_KEY: "another"}),
            pytest.raises(ClusterError, match="does not let this command in"),
        ):
            ask_api(url)


def test_the_remedy_is_the_command_s_own() -> None:
    """A run could start a server of its own, wherever the address was set; deployments need one that stays."""
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        with pytest.raises(ClusterError, match=f"no Prefect API at {NOWHERE}: ") as run:
            start_api()
        with pytest.raises(ClusterError, match=f"no Prefect API at {NOWHERE}: ") as deploy:
            require_api()
    assert f"or let the run start its own {OWN_INSTEAD}" in str(run.value)
    assert str(deploy.value).endswith("; start that server, or mend PREFECT_API_URL")


def test_a_password_in_the_url_is_not_shown() -> None:
    """Neither in a refusal nor in the address of the pages."""
    secret = NOWHERE.replace("://", "://me:hush-hush@")
    with temporary_settings({PREFECT_API_URL: secret, PREFECT_UI_URL: None}):
        for call in (start_api, require_api):
            with pytest.raises(ClusterError, match="no Prefect API at ") as caught:
                call()
            assert "hush" not in str(caught.value)
        assert "hush" not in str(doctor._prefect())
        assert api_url() == NOWHERE
        assert home() == NOWHERE.removesuffix("/api")
        assert page_of("deployment", UUID(int=1)).startswith(f"{home()}/deployments/")
    with door() as url, temporary_settings({PREFECT_API_URL: url.replace("://", "://me:hush-hush@")}):
        assert "hush" not in str(doctor._prefect())


def test_an_error_of_prefect_s_client_is_told_without_the_password_of_the_url() -> None:
    """The error itself has the URL as it was asked."""
    with door() as url, temporary_settings({PREFECT_API_URL: url.replace("://", "://me:hush-hush@")}):
        with (
            pytest.raises(ClusterError, match="did not make or pause all deployments") as caught,
            answering_api() as asked,
        ):
            asked.read_flows()
        assert "hush" in str(caught.value.__cause__)
        assert "hush" not in str(caught.value)
        with (
            pytest.raises(ClusterError, match="went away before the run could begin") as caught,
            keeping_ending(Call()),
            get_client(sync_client=True) as asked,
        ):
            asked.read_flows()
        assert "hush" in str(caught.value.__cause__)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("pages", "more"), [(None, ["--verbose"]), ("https://me:hush-hush@pages.example", [])])
def test_a_run_names_the_pages_without_the_password_of_their_url(
    lake: Lake, api_env: dict[str, str], pages: str | None, more: list[str]
) -> None:
    """On the terminal, also in Prefect's own lines, and to whom it tells of its end. PREFECT_UI_URL says where they
    are, if it is set.
    """
    url, sign_in = api_env["PREFECT_API_URL"], os.environ["PREFECT_API_AUTH_STRING"]
    env = {**api_env, "PREFECT_API_URL": url.replace("://", f"://{sign_in}@"), "PREFECT_API_AUTH_STRING": ""}
    with webhook() as hook:
        lake.ready(name="signed-in", notify={"on": ["published"], "webhook": hook.url})
        words = ("run", lake.job_path, "--date", DATE, "--engine", "local", *more)
        done = forked(*words, env={**env, **({"PREFECT_UI_URL": pages} if pages else {})})
    assert done.returncode == 0, done.stderr
    there = "https://pages.example" if pages else url.removesuffix("/api")
    assert f"  pages      {there} → Runs, and Artifacts\n" in done.stdout
    (body,) = hook.posted
    assert body["link"].startswith(f"{there}/")
    said = done.stdout + done.stderr + json.dumps(body)
    assert "hush" not in said
    assert sign_in not in said


def test_deployments_are_told_to_use_a_server_with_a_password() -> None:
    told = "PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD prefect server start"
    with temporary_settings({PREFECT_API_URL: None}), pytest.raises(ClusterError, match=told):
        require_api()


# ---- the own server -----------------------------------------------------------------------------------------


def test_what_the_user_set_for_a_server_counts_for_the_own_one() -> None:
    """Wherever it is set: an environment variable of ours would go before a profile."""
    assert server_settings()[PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS] == 14
    with temporary_settings({PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS: 30}):
        assert PREFECT_SERVER_SERVICES_SCHEDULER_MIN_RUNS not in server_settings()


def test_the_own_server_can_begin_before_prefect_is_imported() -> None:
    """Else a command would import Prefect first, and wait for the server's own import then."""
    code = (
        "import sys\n"
        "from nightjar.flows.prefect_api import ownserver\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'prefect'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"


def test_the_own_server_is_not_asked_through_a_proxy(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By nobody: this process with httpx and Prefect's client, or one that it starts."""
    monkeypatch.setenv("PREFECT_HOME", str(own_home))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    for name, value in {"http_proxy": PROXY, "HTTP_PROXY": PROXY, "no_proxy": "", "NO_PROXY": ""}.items():
        monkeypatch.setenv(name, value)
    unset = temporary_settings(restore_defaults={PREFECT_API_URL})
    with unset, answering(start_api()) as url, client(url) as asked:
        assert asked.hello().status_code == httpx.codes.OK
        code = f"import httpx; print(httpx.get('{url}/health').status_code)"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (child.stdout, child.stderr) == ("200\n", "")


@pytest.mark.parametrize("url", ["", NOWHERE])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "ftp://127.0.0.1:21"])
def test_a_proxy_that_prefect_cannot_use_is_one_sentence(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str) -> None:
    """httpx needs a package of its own for SOCKS, and raises before it sends anything."""
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with temporary_settings({PREFECT_API_URL: url or None}), pytest.raises(ClusterError) as told:
        start_api().end()
    assert str(told.value).startswith("ALL_PROXY: Prefect's client cannot use this proxy: ")
    assert str(told.value).endswith("; unset the variable, or name an http:// proxy")


def test_own_servers_that_start_together_make_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands at once, where there was none before: each gets a server."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with ExitStack() as stack:
        servers = [stack.enter_context(PrefectApi()) for _ in range(4)]
        for each in servers:
            each.begin()
        for each in servers:
            each.wait()


def test_the_own_server_ends_with_a_command_killed_while_it_starts(tmp_path: Path) -> None:
    """Before it has imported anything, and so before it could ask whose child it is."""
    code = (
        "import os\n"
        "from nightjar.flows.prefect_api.server import start_api\n"
        "print(start_api().process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, "PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": ""}
    killed = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    server = int(killed.stdout)
    try:
        wait_until(lambda: not _lives(server), 60, "the server has ended")
    finally:
        if _lives(server):
            os.kill(server, signal.SIGKILL)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_fault_of_a_disk_is_no_fault_of_the_api(lake: Lake, prefect_api: str) -> None:
    """The flow met it in its own code: the run failed, which is not "nothing was scored"."""
    lake.ready()
    (lake.folder / "model.py").unlink()
    (lake.folder / "model.py").symlink_to("/proc/self/mem")  # a file that is there, and cannot be read
    with (
        temporary_settings({PREFECT_API_URL: prefect_api}),
        keeping_ending(call := Call()),
        handing(call),
        pytest.raises(Transient, match=r"model\.py: Input/output error"),
    ):
        nightly.nightly(job=str(lake.job_path))
    assert isinstance(call.ended, Transient)


@pytest.mark.parametrize(("status", "away"), [(500, True), (503, True), (429, True), (408, True), (404, False)])
def test_what_may_pass_is_told_by_the_answer(status: int, away: bool) -> None:
    """As Prefect's own client has it."""
    answer = httpx.Response(status, request=httpx.Request("GET", NOWHERE))
    with pytest.raises(httpx.HTTPStatusError) as told:
        answer.raise_for_status()
    assert is_away(told.value) == away


def test_the_cluster_is_told_no_password_of_the_url() -> None:
    """Ray writes the variables of its processes to its logs. A password may have any character but a slash."""
    with temporary_settings({PREFECT_API_URL: "http://me:hush@hush@h/api"}):
        assert worker_env()["PREFECT_API_URL"] == "http://h/api"
    assert without_password("GET http://me:hush@hush@h/api: no") == f"GET http://{HIDDEN}@h/api: no"
