"""What `model.engine` names beside `model.path` is part of a result's identity; vLLM is not needed for these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.flows.pages.estimate import described
from nightjar.inference.errors import RunFailed
from nightjar.inference.identity.differences import differences
from nightjar.inference.identity.identity import fix, identify, package_files, verify_packages
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage

STORAGE = LakeStorage()
SCHEMA = pa.schema([("x", pa.string())])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Makes a job with these keys of vLLM's engine, of which vLLM's version is known."""
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    for name in ("m/config.json", "m/more/tokenizer.json", "tok/deep/tokenizer.json", "draft/w.bin", "plugin.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")

    def make(**engine: Any) -> Job:
        model = {"uses": "vllm", "path": "m/", "prompt": "{x}", "outputs": {"answer": "string"}, "engine": engine}
        content = {"name": "j", "input": {"uri": "data/"}, "model": model, "output": {"uri": "out/"}}
        return parse_job(content, tmp_path / "job.yaml")

    return make


ENGINES: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "the folder of a tokenizer": ("tok/deep/tokenizer.json", lambda root: {"tokenizer": f"{root}/tok"}),
    "a draft model": ("draft/w.bin", lambda root: {"speculative_config": {"model": f"{root}/draft/"}}),
    "any file": ("plugin.py", lambda root: {"reasoning_parser_plugin": f"{root}/plugin.py"}),
    "a file in a list": ("plugin.py", lambda root: {"modules": [{"path": f"{root}/plugin.py"}]}),
}


@pytest.mark.parametrize("what", ENGINES)
def test_what_the_engine_names_counts_by_content(job: Callable[..., Job], tmp_path: Path, what: str) -> None:
    """It is looked at again by each worker, as its files tell, and before the publication."""
    name, engine = ENGINES[what]
    given = job(**engine(tmp_path))
    begun = fix(STORAGE, given)
    before = identify(given, begun, SCHEMA)
    (place,) = set(begun.packages) - {"vllm", "transformers"}
    assert (place in described(given, begun), package_files(given, place)) == (True, [tmp_path / name])
    verify_packages(given, begun)
    (tmp_path / name).write_text("2")
    after = identify(given, fix(STORAGE, given), SCHEMA)
    assert (after.fingerprint != before.fingerprint, differences(before, after)) == (True, [f"{place} changed"])
    with pytest.raises(RunFailed, match=rf"^{place} changed while the run went on; repeat the command"):
        verify_packages(given, begun)
    (tmp_path / name).unlink()
    with pytest.raises(RunFailed, match=rf"{place}'? changed while the run went on; repeat the command"):
        verify_packages(given, begun)


def test_what_is_in_the_model_or_written_by_the_engine_does_not_count_again(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do a choice that has the name of a file, a model of the Hub, or a text that could be no path."""
    (tmp_path / "auto").write_text("1")
    monkeypatch.chdir(tmp_path)
    given = job(
        tokenizer=f"{tmp_path}/m/more",
        hf_config_path=f"{tmp_path}/m",
        download_dir=f"{tmp_path}/tok",
        generation_config="auto",
        speculative_config={"model": "org/draft", "num_speculative_tokens": 4},
        chat_template="/" * 10_000,
    )
    assert set(fix(STORAGE, given).packages) == {"vllm", "transformers"}
