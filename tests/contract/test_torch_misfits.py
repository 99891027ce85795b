"""Torch modules and weights that fit neither each other nor the job: one sentence each, and no pickle is loaded."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of, is_device_lost, is_memory
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import MakeJob, score_table
from torchnets import (
    F32,
    WEIGHTS,
    Loaded,
    each_file,
    has_safetensors,
    load,
    make_job,
    module_of,
    numbers,
    scored,
    table_of,
    write,
)

torch = lazily("torch")

__all__ = ["load", "make_job"]  # fixtures


@each_file
def test_lists_of_another_width_cost_their_rows_and_columns_of_another_all_of_them(
    load: Callable[..., Loaded], file: str
) -> None:
    job, _ = load(file, "Net")
    with pytest.raises(RuntimeError, match=r"shape|mismatch") as told:
        scored(job, table_of(numbers(4, 3)))
    assert "\n" not in str(told.value).strip()
    rows = [[1.0, 2.0], [1.0, 2.0, 3.0], [3.0, 4.0]]
    steps = score_table(
        pa.table({"v": pa.array(rows, pa.list_(F32))}), load_scorer(model_job(job), job.models[0].path), BatchSize(3),
        job.models[0].output_types(),
    )  # fmt: skip
    failures = drained(steps).failures
    assert [(failure.row, failure.error) for failure in failures] == [(1, "RuntimeError")]
    # The row's message is a sentence, too; what TorchScript says of its own code is in the traceback.
    assert "\n" not in failures[0].message.strip()
    if file == "script.pt":
        assert "<--- HERE" in failures[0].traceback


@each_file
def test_another_number_of_outputs_is_said(load: Callable[..., Loaded], file: str) -> None:
    job, _ = load(file, "Net", outputs={"score": "float32", "other": "float32"})
    with pytest.raises(
        OutputInvalid, match=r"the module returned 1 outputs, but model\.outputs declares 2: output 'oth"
    ):
        scored(job, table_of(numbers(4, 2)))


@pytest.mark.parametrize("file", WEIGHTS)
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"width": 5}, r"size mismatch for layers\.0\.weight: .*\[8, 2\].*\[8, 5\]"),
        (None, r"Missing key.* \"one\.weight\".* Unexpected key.* \"layers\.0\.weight\""),
    ],
)
def test_weights_of_another_module_are_refused(
    load: Callable[..., Loaded], make_job: MakeJob, file: str, args: dict[str, Any] | None, sentence: str
) -> None:
    job, _ = load(file, "Net")
    options = {"model": "net:Net", "args": args} if args else {"model": "net:Tied"}
    other = make_job(uses="torch", path=file, options=options)
    with pytest.raises(JobError, match=rf"^model\.path: torch cannot load .*{file}: .*{sentence}") as refused:
        load_scorer(model_job(other), job.models[0].path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", WEIGHTS)
def test_weights_that_lack_some_of_the_module_are_not_taken(
    load: Callable[..., Loaded], tmp_path: Path, file: str
) -> None:
    job, module = load(file, "Net")
    for name in ("3.weight", "3.bias"):
        layer, attribute = name.split(".")
        setattr(module.layers[int(layer)], attribute, None)
    write(tmp_path, file, module)
    with pytest.raises(
        JobError,
        match=rf"^model\.path: torch cannot load .*{file}: .*Missing key.*\"layers\.3\.weight\"",
    ):
        load_scorer(model_job(job), job.models[0].path)


@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        ("m.pt2", {"model": "net:Net"}, "model.options.model: has no meaning for an exported program"),
        ("m.pt2", {"dtype": "float16"}, "model.options.dtype: has no meaning for an exported program"),
        ("m.pt", {"args": {}}, "model.options.args: has no meaning for TorchScript"),
        ("m.pth", {}, "model.options.model: "),
        ("m.safetensors", {}, "model.options.model: "),
        (
            "m.pt",
            {"model": "net.py"},
            'model.options.model: write "module:name" of your function or class, as "net:build", not \'net.py\'',
        ),
        (
            "m.pt",
            {"model": "net:Net", "args": ["width"]},
            "model.options.args: write a mapping of keywords, as {width: 2}, not ['width']",
        ),
        (
            "m.pt",
            {"model": "net:Net", "dtype": "half"},
            "model.options.dtype: 'half' is not one of float32, float16, bfloat16",
        ),
        ("m.pt", {"autocast": "on"}, "model.options.autocast: 'on' is not one of false, true, float16, bfloat16"),
        ("m.pt", {"autocast": True, "dtype": "float16"}, "model.options.autocast: the weights already have another"),
        (
            "m.pt",
            {"dtyp": "float16"},
            "model.options.dtyp: the torch adapter knows only the options model, args, dtype",
        ),
    ],
)
def test_options_are_checked_by_the_kind_of_file_before_anything_is_loaded(
    make_job: MakeJob, path: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError) as caught:
        check_keys(make_job(uses="torch", path=path, options=options))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "net:Nett"}, r"model\.options\.model: module 'net' \(net\.py\) has no 'Nett'; did you mean 'Net'\?"),
        ({"model": "nett:Net"}, r"model\.options\.model: there is no module 'nett'"),
        ({"model": "net:constant"}, r"model\.options\.model: net:constant is a int, not a function or class"),
        ({"model": "net:later"}, r"model\.options\.model: net:later is async"),
        ({"model": "net:number"}, r"model\.options\.model: net:number returned int, not a torch\.nn\.Module"),
        ({"model": "net:Net", "args": {"widht": 3}}, r"model\.options\.args: net:Net cannot be called: .*'widht'"),
        (
            {"model": "net:fails", "args": {"size": 3}},
            r"model\.options\.model: net:fails failed with ValueError: no net of size 3",
        ),
    ],
)
def test_a_factory_that_makes_no_module_is_named(
    load: Callable[..., Loaded], make_job: MakeJob, options: dict[str, Any], sentence: str
) -> None:
    job, _ = load("state.pt", "Net")
    with pytest.raises(JobError, match=f"^{sentence}"):
        load_scorer(model_job(make_job(uses="torch", path="state.pt", options=options)), job.models[0].path)


def test_a_file_of_the_other_kind_is_told_apart(load: Callable[..., Loaded], make_job: MakeJob, tmp_path: Path) -> None:
    load("script.pt", "Net")
    load("state.pt", "Net")
    for options, file, sentence in (
        ({}, "state.pt", r"is not TorchScript that can be read: it holds no code; .* in model\.options\.model"),
        ({"model": "net:Net"}, "script.pt", r"it is TorchScript, .*; remove model\.options\.model"),
    ):
        job = make_job(uses="torch", path=file, options=options)
        for look in (adapter_of(model_job(job)).inspect, load_scorer):
            with pytest.raises(JobError, match=rf"^model\.path: .*{file} .*{sentence}"):
                look(model_job(job), str(tmp_path / file))


@has_safetensors
@pytest.mark.parametrize(
    "change",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-2],
        lambda whole: whole + b"more",
        lambda whole: b"PAR1" * 100,
        lambda whole: whole[:8] + b"[" + whole[9:],
    ],
    ids=["empty", "cut", "end", "longer", "other", "header"],
)
def test_a_safetensors_file_that_is_not_whole_is_refused(
    load: Callable[..., Loaded], tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    job, _ = load("state.safetensors", "Net")
    path = tmp_path / "state.safetensors"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(JobError, match=r"^model\.path: torch cannot load .*state\.safetensors: SafetensorError: "):
        load_scorer(model_job(job), str(path))


class Crafted:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_other_objects_than_tensors_are_loaded_only_if_the_job_trusts_the_file(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = module_of("Net")
    torch.save({**module.state_dict(), "evil": Crafted()}, tmp_path / "state.pt")
    job = make_job(uses="torch", path="state.pt", options={"model": "net:Net"})
    with pytest.raises(JobError, match=r"^model\.path: .*holds other objects than tensors.*model\.trusted: true if"):
        load_scorer(model_job(job), job.models[0].path)
    assert not (tmp_path / "ran").exists()
    torch.save(module, tmp_path / "state.pt")
    allowed = make_job(uses="torch", path="state.pt", options={"model": "net:Net"}, trusted=True)
    found = scored(allowed, table_of(numbers(3, 2)))["score"]
    with torch.no_grad():
        np.testing.assert_array_equal(found, module(torch.from_numpy(numbers(3, 2))).numpy().reshape(-1))
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Crafted()))
    with pytest.raises(JobError, match=r"^model\.path: .*bare\.pt is not a state dict that can be read"):
        load_scorer(
            model_job(make_job(uses="torch", path="bare.pt", options={"model": "net:Net"})), str(tmp_path / "bare.pt")
        )


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (2.0, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        (3.0, "AcceleratorError", "CUDA error: device-side assert triggered"),
    ],
    ids=["memory", "device"],
)
def test_a_script_that_runs_out_of_memory_or_loses_the_device_says_so(
    make_job: MakeJob, tmp_path: Path, value: float, kind: str, said: str
) -> None:
    """TorchScript makes one type of all errors. Without it no batch would be halved, and no process would end."""

    class Failing(torch.nn.Module):
        """Fails as torch does on a GPU."""

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            if bool(a.max() > 2):
                raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`.\n")
            if bool(a.max() > 1):
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
            return a

    write(tmp_path, "script.pt", Failing())
    job = make_job(uses="torch", path="script.pt", outputs={"score": "float32"}, trusted=True)
    scorer = load_scorer(model_job(job), job.models[0].path)
    assert scorer(pa.table({"a": pa.array([1.0], F32)}))["score"].to_pylist() == [1.0]
    with pytest.raises(getattr(torch, kind)) as caught:
        scorer(pa.table({"a": pa.array([value], F32)}))
    assert type(caught.value) is getattr(torch, kind)
    assert str(caught.value) == said
    assert is_memory(caught.value) == (kind == "OutOfMemoryError")
    assert is_device_lost(caught.value) == (kind == "AcceleratorError")
