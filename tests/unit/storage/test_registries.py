"""Models of the Hugging Face Hub: pinned to a commit, read as any other model, and without a net from the cache.

The Hub is a small server of the tests' own; its client is the real one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="pip install 'nightjar-batch[hub]'")

from hubserver import Hub, hub_server
from nightjar.inference.errors import JobError, Missing, StorageError, Transient
from nightjar.inference.identity.snapshots import take_model
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.registries import pinned
from support import Lake, full_disk

NAME = "birds/nightjar-small"
MODEL = """
import json
class Model:
    def __init__(self, path):
        self.factor = json.load(open(path + "/config.json"))["factor"]
    def __call__(self, batch):
        return {"score": batch["x"] * self.factor}
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with a repository of one commit."""
    with hub_server() as (server, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        push(server, tmp_path, 2)
        yield server


def push(hub: Hub, folder: Path, factor: int) -> str:
    repository = folder / f"repository-{factor}"
    (repository / "onnx").mkdir(parents=True, exist_ok=True)
    (repository / "config.json").write_text(f'{{"factor": {factor}}}')
    for name, content in {
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"again",
        "onnx/model.onnx": b"too",
    }.items():
        (repository / name).write_bytes(content)
    return hub.push(NAME, repository)


def test_a_branch_is_pinned_to_the_commit_that_it_points_to(hub: Hub, tmp_path: Path) -> None:
    first = hub.branches[NAME, "main"]
    assert pinned(f"hf://{NAME}") == pinned(f"hf://{NAME}@main") == f"hf://{NAME}@{first}"
    assert pinned(f"hf://{NAME}@main/onnx/model.onnx") == f"hf://{NAME}@{first}/onnx/model.onnx"
    second = push(hub, tmp_path, 3)
    assert pinned(f"hf://{NAME}") == f"hf://{NAME}@{second}" != f"hf://{NAME}@{first}"
    asked = len(hub.asked)
    assert pinned(f"hf://{NAME}@{first}") == f"hf://{NAME}@{first}"
    assert len(hub.asked) == asked


def test_a_commit_is_read_like_any_other_storage(hub: Hub, tmp_path: Path) -> None:
    """Also after the branch has moved. Of a whole repository the weights are there once, as safetensors."""
    root = pinned(f"hf://{NAME}")
    push(hub, tmp_path, 3)
    storage = LakeStorage()
    assert [each.uri.removeprefix(root) for each in storage.list(f"{root}/")] == ["/config.json", "/model.safetensors"]
    assert [each.uri.removeprefix(root) for each in storage.list(f"{root}/onnx/")] == ["/onnx/model.onnx"]
    assert storage.read(f"{root}/config.json") == b'{"factor": 2}'
    with storage.open(f"{root}/pytorch_model.bin") as file:
        assert file.read() == b"again"
    assert storage.stat(f"{root}/config.json").size == 13
    for wrong in (root, f"{root}/nothing"):
        with pytest.raises(Missing):
            storage.stat(wrong)
    with pytest.raises(StorageError, match="models there are only read"):
        storage.create(f"{root}/x", b"")


def test_a_file_may_have_any_name(hub: Hub, tmp_path: Path) -> None:
    repository = tmp_path / "odd"
    files = ["logo@2x.png", "model.joblib", "plots/confusion matrix #1%.png"]
    for name in files:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    hub.push("birds/odd", repository)
    storage, root = LakeStorage(), pinned("hf://birds/odd")
    assert {each.uri.removeprefix(f"{root}/"): storage.read(each.uri).decode() for each in storage.list(root)} == {
        name: name for name in files
    }
    assert [file.name for file in take_model(storage, root).files] == files
    assert pinned("hf://birds/odd@main/logo@2x.png") == f"{root}/logo@2x.png"


def test_without_a_net_the_cache_is_used_and_what_is_not_there_is_said(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pinned(f"hf://{NAME}")
    storage = LakeStorage()
    wanted = {each.uri: storage.read(each.uri) for each in storage.list(f"{root}/")}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    offline = LakeStorage()
    assert pinned(f"hf://{NAME}@{root.partition('@')[2]}") == root
    assert {each.uri: offline.read(each.uri) for each in offline.list(f"{root}/")} == wanted
    assert not hub.asked
    with pytest.raises(JobError, match=r"^model\.path: hf://birds/other: .* not in this machine's cache, and HF_HUB"):
        pinned("hf://birds/other")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (
            "hf://birds/none",
            r"^model\.path: hf://birds/none: hf://birds/none@main does not exist on the Hub, or needs a",
        ),
        (f"hf://{NAME}@v9", rf"^model\.path: hf://{NAME}@v9: .* does not exist on the Hub"),
    ],
)
def test_what_the_hub_does_not_have_names_the_key(hub: Hub, path: str, sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        pinned(path)


def test_a_hub_that_is_down_may_be_asked_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Transient, match=r"the Hub cannot be reached"):
        pinned(f"hf://{NAME}")


def test_a_full_disk_of_the_cache_is_no_fault_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "weights.bin").write_bytes(bytes(2 << 20))
    hub.push("birds/large", tmp_path / "large")
    storage, file = LakeStorage(), pinned("hf://birds/large") + "/weights.bin"
    with full_disk(), pytest.raises(StorageError, match=r"weights\.bin: .*HF_HUB_CACHE") as caught:
        storage.read(file)
    assert not isinstance(caught.value, Transient)
    assert storage.read(file) == bytes(2 << 20)


def place_once(folder: Path) -> tuple[Path, list[Path]]:
    """The file that a process scores with, and the files of the client's cache that have its content."""
    storage = LakeStorage()
    taken = take_model(storage, pinned(f"hf://{NAME}"))
    path, _ = place_model(storage, taken, folder / "node", f"hf://{NAME}")
    weights = Path(path, "model.safetensors")
    assert weights.read_bytes() == b"weights"
    cache = Path(os.environ["HF_HUB_CACHE"])
    return weights.resolve(), [each for each in cache.rglob("*") if each.is_file() and each.read_bytes() == b"weights"]


def test_a_model_lies_on_the_disk_once(hub: Hub, tmp_path: Path) -> None:
    """The file of the node's cache is the file of the client's cache. What goes from there stays here."""
    used, kept = place_once(tmp_path)
    assert kept
    assert all(used.samefile(each) for each in kept)
    assert not used.stat().st_mode & 0o222
    shutil.rmtree(os.environ["HF_HUB_CACHE"])
    assert used.read_bytes() == b"weights"


def test_a_cache_on_another_disk_is_copied(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("the temporary folders of this machine are on one disk")
        monkeypatch.setenv("HF_HUB_CACHE", elsewhere)
        used, kept = place_once(tmp_path)
        assert kept
        assert not any(used.samefile(each) for each in kept)


def test_a_missing_client_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(JobError, match=r"need huggingface_hub; install it: pip install 'nightjar-batch\[hub\]'$"):
        pinned(f"hf://{NAME}")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(JobError, match=r"need mlflow-skinny; install it: pip install 'nightjar-batch\[mlflow\]'$"):
        pinned("models:/delay@champion")


@pytest.mark.parametrize(
    "path",
    [
        "hf://",
        "hf://a/b@",
        "hf://a/b/file@main",
        "hf:///x",
        "models:/",
        "models:/delay",
        "models:/delay@",
        "runs:/7",
        "runs:/",
    ],
)
def test_a_path_that_names_no_model_is_refused_with_the_forms(lake: Lake, path: str) -> None:
    lake.ready(model__path=path)
    with pytest.raises(
        JobError, match=r"model\.path: '.*' names no model; write hf://org/name@revision, models:/name/7"
    ):
        lake.request()


def test_a_run_scores_with_the_commit_of_its_begin_and_the_next_with_the_one_of_then(hub: Hub, lake: Lake) -> None:
    """The commit is part of identity: when the branch moves, the same night is scored again."""
    lake.write_model(MODEL)
    lake.ready(model__uses="model:Model", model__path=f"hf://{NAME}")
    request = lake.request(engine="local")
    assert request.job.models[0].path == f"hf://{NAME}@{hub.branches[NAME, 'main']}"
    lake.run(engine="local")
    first = lake.published()
    assert (first["score"] == first["id"] * 2).all()
    keys: Any = scoring_keys(request.job)
    assert keys["model"]["path"] == request.job.models[0].path
    push(hub, lake.folder / "elsewhere", 5)
    lake.run(engine="local")
    second = lake.published()
    assert (second["score"] == second["id"] * 5).all()
