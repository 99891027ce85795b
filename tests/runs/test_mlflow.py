"""Models of MLflow, from a real server: an alias is asked for once, and its version is part of what a run is.

The server needs all of MLflow (`pip install mlflow`), here or in the environment of the Python that `MLFLOW_PYTHON`
names; the client, which Nightjar uses, is mlflow-skinny.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.registries import pinned
from ports import quiet_ports
from support import Lake, run_steps, wait_until

pytestmark = pytest.mark.long  # a server of MLflow takes half a minute to start

MODEL = """
import json
class Model:
    def __init__(self, path):
        self.factor = json.load(open(path + "/model.json"))["factor"]
    def __call__(self, batch):
        return {"score": batch["x"] * self.factor}
"""


def importorskip() -> Any:
    """The client's module, which takes seconds to import: not while tests are collected."""
    return pytest.importorskip("mlflow", reason="pip install 'nightjar-batch[mlflow]'")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a database and artifacts of its own; files are fetched through it."""
    python = os.environ.get("MLFLOW_PYTHON", sys.executable)
    if python == sys.executable and importlib.util.find_spec("flask") is None:
        pytest.skip("all of MLflow is needed for a server: pip install mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    (port,) = quiet_ports(1)
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/db", "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"

    def up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"{address}/health", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(up, 60, "MLflow's server is up")
        yield address
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    mlflow = importorskip()
    mlflow.set_tracking_uri(server)
    return mlflow.MlflowClient()


def register(client: Any, name: str, factor: int, folder: Path) -> tuple[str, str]:
    """A new version of a registered model. Returns the run's id, and the version."""
    if not client.search_registered_models(f"name='{name}'"):
        client.create_registered_model(name)
    run = client.create_run("0").info.run_id
    (folder / "inner").mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(f'{{"factor": {factor}}}')
    (folder / "inner" / "notes of it@1.txt").write_text("of this model")
    client.log_artifacts(run, str(folder), "model")
    source = f"{client.get_run(run).info.artifact_uri}/model"
    return run, str(client.create_model_version(name, source, run).version)


def test_an_alias_is_a_version_from_the_runs_begin_on(client: Any, lake: Lake) -> None:
    """When the alias moves, the same night is scored again, with the new version; what was read is that version's."""
    _, first = register(client, "delay", 2, lake.folder / "first")
    client.set_registered_model_alias("delay", "champion", first)
    lake.write_model(MODEL)
    lake.ready(model__uses="model:Model", model__path="models:/delay@champion")
    request = lake.request(engine="local")
    assert request.job.models[0].path == f"models:/delay/{first}"
    keys: Any = scoring_keys(request.job)
    assert keys["model"]["path"] == f"models:/delay/{first}"
    _, second = register(client, "delay", 5, lake.folder / "second")
    client.set_registered_model_alias("delay", "champion", second)
    run_steps(request)  # which was asked for before the alias moved
    published = lake.published()
    assert (published["score"] == published["id"] * 2).all()
    lake.run(engine="local")
    published = lake.published()
    assert (published["score"] == published["id"] * 5).all()


def test_the_files_of_a_version_and_of_a_run_are_read_as_they_were_logged(client: Any, tmp_path: Path) -> None:
    run, version = register(client, "top speed", 3, tmp_path)
    storage = LakeStorage()
    for root in (f"models:/top speed/{version}", f"runs:/{run}/model"):
        found = {each.uri.removeprefix(root): each.size for each in storage.list(f"{root}/")}
        assert found["/model.json"] == 13
        assert found["/inner/notes of it@1.txt"] == 13
        assert storage.read(f"{root}/model.json") == b'{"factor": 3}'
        with storage.open(f"{root}/inner/notes of it@1.txt") as file:
            assert file.read() == b"of this model"
        assert storage.stat(f"{root}/inner/notes of it@1.txt").size == 13
        with pytest.raises(Missing):
            storage.stat(f"{root}/inner")
    assert pinned(f"models:/top speed/{version}/model.json") == f"models:/top speed/{version}/model.json"
    client.set_registered_model_alias("top speed", "champion", version)
    assert pinned("models:/top speed@champion") == f"models:/top speed/{version}"


def test_what_is_not_there_names_the_key(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(client, "range", 3, tmp_path)
    for path in ("models:/range@nobody", "models:/nothing@champion"):
        with pytest.raises(JobError, match=rf"^model\.path: {path} does not exist"):
            pinned(path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(JobError, match=r"^model\.path: set MLFLOW_TRACKING_URI to the address of MLflow's server"):
        pinned("models:/range@nobody")
