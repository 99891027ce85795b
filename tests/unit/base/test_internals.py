"""What leans on private names of Ray and Prefect: in one file for each package, and seen to work on these versions."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import ray.data
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import AsyncClientContext
from prefect.runner import Runner
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CSRF_SUPPORT_ENABLED,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    temporary_settings,
)
from ray._private import ray_constants, worker
from ray.data import DataContext

from nightjar.flows import cluster
from nightjar.flows.cluster import internals as flows_internals
from nightjar.flows.serving import serve
from nightjar.inference.engine.ray import internals as engine_internals
from support import ROOT

OWNERS = {
    "flows/cluster/__init__.py",
    "flows/cluster/internals.py",
    "flows/serving/serve.py",
    "inference/engine/ray/internals.py",
}
NOT_PUBLIC = {"map_batches_internal", "print_to_stdstream", "ray_constants"}
"""Without an underscore, and documented nowhere all the same."""

KNOWN = {"os", "sys"}
"""Python's own modules: what they are used for privately is of no version of Ray or Prefect."""


@pytest.mark.parametrize("internals", [flows_internals, cluster, serve, engine_internals])
def test_what_is_installed_is_what_the_internals_were_seen_on(internals: object) -> None:
    """On another version: read each function of that file, see that it does there what it says, then change the pin."""
    seen: dict[str, str] = internals.SEEN_ON  # type: ignore[attr-defined]
    assert {name: version(name) for name in seen} == seen


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] in {"ray", "prefect", "prefect_ray"}


def defined(tree: ast.AST) -> Iterator[str]:
    """Every private name that a file makes itself, of a class, an object or the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def private_uses(path: Path) -> Iterator[str]:
    """What a file uses of others that has a private name."""
    tree = ast.parse(path.read_text(), str(path))
    own = set(defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_foreign(str(node.module)):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            yield from (f"{node.module}: {name}" for name in names if name.startswith("_") or name in NOT_PUBLIC)
        elif isinstance(node, ast.Import):
            parts = (alias.name for alias in node.names if is_foreign(alias.name) and "._" in alias.name)
            yield from parts
        elif isinstance(node, ast.Attribute) and node.attr in NOT_PUBLIC:
            yield node.attr
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            if node.attr not in own and ast.unparse(node).partition(".")[0] not in KNOWN:
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and node.value == "_temp_dir":
            yield "_temp_dir"


def test_no_other_file_uses_a_private_name_of_ray_or_prefect() -> None:
    files = [path for package in ("flows", "inference") for path in (ROOT / package).rglob("*.py")]
    uses = {str(path.relative_to(ROOT)): sorted(set(private_uses(path))) for path in files}
    assert {file for file, found in uses.items() if found} == OWNERS
    assert len(uses["flows/cluster/internals.py"]) >= 6, "the search finds what is there"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(serve.PatientRunner, Runner), (serve._PatientClient, PrefectClient), (serve._Client, AsyncClientContext)],
)
def test_no_class_of_ours_replaces_what_is_private_in_prefects(ours: type, theirs: type) -> None:
    mine = {name for name in vars(ours) if name.startswith("_") and not name.endswith("__")}
    assert not mine & {name for name in dir(theirs) if not name.startswith("_abc")}
    assert not {"__setattr__", "__getattribute__", "__getattr__"} & set(vars(ours))


class Api(BaseHTTPRequestHandler):
    """Says of every list that it is empty."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_what_the_runner_asks_of_an_api_that_is_away_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Prefect takes our client wherever it needs one: without it `nightjar serve` ends after three polls.

    And with it the run that is going on.
    """
    monkeypatch.setattr(serve, "_ASK_S", 0.01)
    monkeypatch.setattr(logging.getLogger("prefect"), "propagate", True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked: list[int] = []

    def over() -> None:
        asked.append(len(asked))
        if len(asked) == 3:
            server = stack.enter_context(HTTPServer(("127.0.0.1", port), Api))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)

    async def ask() -> list[FlowRun]:
        ours = serve._PatientClient(over)
        async with serve._Client(ours), get_client() as client:
            assert client is ours
            return await client.get_scheduled_flow_runs_for_deployments([uuid4()])

    settings = {
        PREFECT_API_URL: f"http://127.0.0.1:{port}/api",
        PREFECT_CLIENT_MAX_RETRIES: 0,
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
    }
    with ExitStack() as stack, temporary_settings(settings):
        assert asyncio.run(ask()) == []
    assert len(asked) >= 3
    said = [record.getMessage() for record in caplog.records if "Prefect's API" in record.getMessage()]
    assert [text.partition(",")[0] for text in said] == ["Prefect's API is away", "Prefect's API is back"]


def test_a_runner_that_is_stopped_waits_for_no_api() -> None:
    async def ask() -> None:
        ours = serve._PatientClient(lambda: None)
        ours.ends = True
        async with serve._Client(ours), get_client() as client:
            await client.get_scheduled_flow_runs_for_deployments([uuid4()])

    settings = {
        PREFECT_API_URL: "http://127.0.0.1:9/api",
        PREFECT_CLIENT_MAX_RETRIES: 0,
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
        PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False,
    }
    with temporary_settings(settings), pytest.raises(httpx.ConnectError):
        asyncio.run(ask())


def test_the_names_are_there_and_do_what_they_are_used_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_constants.ENABLE_RAY_CLUSTER is True, "without it a local Ray listens on every interface anyway"
    with flows_internals.loopback():
        assert ray_constants.ENABLE_RAY_CLUSTER is False
    assert ray_constants.ENABLE_RAY_CLUSTER is True
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert flows_internals.temporary_folder() == str(tmp_path)
    assert "_temp_dir" in inspect.signature(ray.init).parameters or "**kwargs" in str(inspect.signature(ray.init))
    assert len({flows_internals.new_token(), flows_internals.new_token()}) == 2
    parameters = inspect.signature(ray.data.Dataset.map_batches_internal).parameters
    assert {"fn_constructor_args", "batch_size", "batch_format", "compute", "num_cpus", "num_gpus"} <= set(parameters)
    context = DataContext()
    assert isinstance(context._max_num_blocks_in_streaming_gen_buffer, int)
    engine_internals.bound_events_ahead(context, 3)
    assert context._max_num_blocks_in_streaming_gen_buffer == 3


def test_what_ray_says_of_nodes_stays_off_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    said = {"lines": ["a node died"], "pid": "raylet", "ip": "127.0.0.1", "is_err": False, "job": "01000000"}
    with flows_internals.off_stdout(verbose=False):
        worker.print_to_stdstream(dict(said), True)
        assert capfd.readouterr() == ("", "")
    with flows_internals.off_stdout(verbose=True):
        worker.print_to_stdstream(dict(said), True)
        seen = capfd.readouterr()
        assert (seen.out, "a node died" in seen.err) == ("", True)
    worker.print_to_stdstream(dict(said), True)  # the user's own Ray prints as before
    assert "a node died" in "".join(capfd.readouterr())
