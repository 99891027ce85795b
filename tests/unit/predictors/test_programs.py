"""Exported programs: how features become their inputs, and their results the outputs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import Scorer, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from predicting import F32, TABLE, MakeJob, export, jobs_in, scored

torch = lazily("torch")


@pytest.fixture
def torch_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        yield partial(make, uses="torch", path="m.pt2", trusted=True)


def test_one_input_gets_the_features_stacked_in_their_order(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0] - x[:, 1], torch.ones(4, 2))
    assert scored(torch_job(features=["b", "a"]), TABLE, path) == {"score": [9.0, 18.0, 27.0]}


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_linear_model_agrees_with_numpy_at_any_batch_size(torch_job: MakeJob, tmp_path: Path, rows: int) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x, torch.ones(4, 3), layer=True)
    state = torch.export.load(path).state_dict
    values = np.random.default_rng(1).random((rows, 3)).astype("f4")
    table = pa.table({name: values[:, i] for i, name in enumerate("abc")})
    scorer = load_scorer(model_job(torch_job(outputs={"score": "float32[2]"})), path)
    weight, bias = (state[f"layer.{name}"].detach().numpy() for name in ("weight", "bias"))
    expected = values @ weight.T + bias
    got = np.array(scorer(table)["score"].to_pylist()).reshape(rows, 2)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_program_that_views_its_input_gets_a_contiguous_one(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.view(-1).view(-1, 2).sum(1), torch.ones(4, 2))
    assert scored(torch_job(), TABLE, path) == {"score": [11.0, 22.0, 33.0]}


def test_a_single_two_dimensional_column_is_passed_as_it_is(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.sum(1, keepdim=True), torch.ones(4, 2))
    table = pa.table({"v": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(F32, 2))})
    assert scored(torch_job(), table, path) == {"score": [3.0, 7.0, 11.0]}


def test_an_input_of_more_dimensions_takes_rows_of_as_many_numbers(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 1, 0], torch.ones(4, 2, 2))
    table = pa.table({"image": pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.uint8(), 4))})
    assert scored(torch_job(), table, path) == {"score": [3.0, 7.0]}


def test_as_many_inputs_as_features_get_one_tensor_each_of_their_own_dtype(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(
        tmp_path / "m.pt2", lambda x, i: {"i": i + 1, "x": x * 2}, torch.ones(4, 1), torch.ones(4, dtype=torch.int64)
    )
    assert scored(torch_job(outputs={"x": "float32", "i": "int64"}), TABLE, path) == {
        "x": [2.0, 4.0, 6.0],
        "i": [11, 21, 31],
    }


def test_a_program_may_take_its_inputs_as_a_dict_or_by_keyword(torch_job: MakeJob, tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, columns: dict[str, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
            return columns["x"] * scale

    n = torch.export.Dim("n")
    exported = torch.export.export(
        Model(),
        ({"x": torch.ones(4)},),
        {"scale": torch.ones(4)},
        dynamic_shapes={"columns": {"x": {0: n}}, "scale": {0: n}},
    )
    torch.export.save(exported, tmp_path / "m.pt2")
    assert scored(torch_job(), TABLE, str(tmp_path / "m.pt2")) == {"score": [10.0, 40.0, 90.0]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "bool"])
def test_features_become_the_programs_own_dtype(torch_job: MakeJob, tmp_path: Path, dtype: str) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x.double().sum(1), torch.ones(4, 2).to(getattr(torch, dtype)))
    table = pa.table({"a": [True, False], "b": [True, True]})
    assert scored(torch_job(), table, path) == {"score": [2.0, 1.0]}


def test_a_tuple_is_the_declared_outputs_in_order(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: (x[:, 0], x[:, 1:]), torch.ones(4, 2))
    assert scored(torch_job(outputs={"p": "float32", "q": "float64"}), TABLE, path) == {
        "p": [1.0, 2.0, 3.0],
        "q": [10.0, 20.0, 30.0],
    }
    with pytest.raises(OutputInvalid, match=r"returned 2 outputs, but model\.outputs declares 1"):
        scored(torch_job(), TABLE, path)


def test_a_null_becomes_nan_in_floats_and_an_error_in_integers(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 1))
    assert np.isnan(scored(torch_job(), pa.table({"a": pa.array([None, 1.0], F32)}), path)["score"][0])
    with pytest.raises(ValueError, match="feature 'a' has a null"):
        scored(torch_job(), pa.table({"a": pa.array([None, 1])}), path)


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow", "torch"])
def test_preprocess_feeds_a_program_in_any_format(torch_job: MakeJob, tmp_path: Path, form: str) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0] + x[:, 1], torch.ones(4, 2))
    torch_job("def p(batch): return batch")
    job = torch_job(options={"batch_format": form}, job={"preprocess": "mine:p"})
    assert scored(job, TABLE, path) == {"score": [11.0, 22.0, 33.0]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0], "b": [1.0], "c": [1.0]}, "a, b, c make 3 columns, and input .* takes 2"),
        ({"a": ["x"], "b": [1.0]}, "'a' is string, and the torch adapter takes numbers only"),
    ],
)
def test_features_that_do_not_fit_the_program_are_named(
    torch_job: MakeJob, tmp_path: Path, table: dict[str, Any], message: str
) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    with pytest.raises(JobError, match=rf"model\.features: {message}"):
        scored(torch_job(), pa.table(table), path)


def test_a_fraction_is_never_cut_for_an_integer_input(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda i: i + 1, torch.ones(4, dtype=torch.int32))
    with pytest.raises(JobError, match=r"model\.features: 'a' is float64, and the model takes int32"):
        scored(torch_job(), pa.table({"a": [1.5]}), path)
    with pytest.raises(ValueError, match="outside int32"):
        scored(torch_job(), pa.table({"a": [2**40]}), path)


def test_a_program_of_another_number_of_inputs_is_an_error(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x, y, z: x + y + z, *(torch.ones(4) for _ in range(3)))
    with pytest.raises(JobError, match=r"model\.features: the model takes 3 inputs .* for 2 columns \(a, b\)"):
        scored(torch_job(), TABLE, path)


def test_a_fixed_batch_size_is_found_when_loading(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2), dynamic=False)
    with pytest.raises(JobError, match=r"model\.path: the program takes only batches of 4"):
        load_scorer(model_job(torch_job()), path)


def test_threads_follow_the_job_and_the_device_tells_the_truth(torch_job: MakeJob, tmp_path: Path) -> None:
    """A logical GPU, as tests use, gives a model on the CPU that says so."""
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    scorer: Scorer = load_scorer(model_job(torch_job(job={"resources": {"cpus": 2, "gpus": 1}})), path)
    assert torch.get_num_threads() == 2
    assert scorer.device == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_results_of_earlier_batches_are_not_overwritten_by_later_ones(torch_job: MakeJob, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", lambda x: x[:, 0], torch.ones(4, 2))
    scorer = load_scorer(model_job(torch_job()), path)
    first = scorer(TABLE)["score"]
    scorer(TABLE.set_column(0, "a", pa.array([7.0, 8.0, 9.0], F32)))
    assert first.to_pylist() == [1.0, 2.0, 3.0]


# ---- what is seen of a file before it is loaded ---------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(export(tmp_path / "good.pt2", lambda x: x[:, 0], torch.ones(4, 2), layer=True))


def look(job: Job, path: Path) -> None:
    adapter_of(model_job(job)).inspect(model_job(job), str(path))


def test_a_program_that_cannot_be_loaded_is_named_as_the_job_names_it(
    torch_job: MakeJob, program: Path, tmp_path: Path
) -> None:
    """A process loads its own copy, whose path helps nobody."""
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(tmp_path / "copy.pt2", "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, b"{}" if name.endswith("/model.json") else archive.read(name))
    with pytest.raises(JobError, match=r"^model\.path: torch cannot load \S+/models/m\.pt2: ") as refused:
        load_scorer(model_job(torch_job(path="models/m.pt2")), str(tmp_path / "copy.pt2"))
    assert "copy.pt2" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_an_unreadable_file_names_the_key(torch_job: MakeJob, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(content)
    with pytest.raises(JobError, match=r"^model\.path: .*m\.pt2 is not an exported program \(\.pt2\) that can be read"):
        look(torch_job(), tmp_path / "m.pt2")


def test_every_truncation_of_a_program_names_the_key(torch_job: MakeJob, program: Path, tmp_path: Path) -> None:
    whole = program.read_bytes()
    for keep in range(0, len(whole), max(1, len(whole) // 50)):
        (tmp_path / "cut.pt2").write_bytes(whole[:keep])
        with pytest.raises(JobError, match=r"^model\.path"):
            look(torch_job(), tmp_path / "cut.pt2")


def test_another_kind_of_file_is_told_how_to_export(torch_job: MakeJob, tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "m.bin")
    with pytest.raises(JobError, match=r"^model\.path: .*m\.bin is not a \.pt2 .*torch\.export\.save"):
        look(torch_job(path="m.bin"), tmp_path / "m.bin")
    (tmp_path / "m.bin").rename(tmp_path / "m.pt2")
    with pytest.raises(JobError, match=r"holds no exported program; make one with torch\.export"):
        look(torch_job(), tmp_path / "m.pt2")
    with pytest.raises(JobError, match=r"^model\.path: .*that can be read: No such file"):
        look(torch_job(), tmp_path / "gone.pt2")


def test_inspecting_does_not_import_torch(program: Path) -> None:
    code = (
        "import sys; from nightjar.inference.predictors.adapter import adapter_of; from nightjar.inference.job.model "
        "import Job; job = Job.model_validate({'name': 't', 'input': {'uri': 'a'}, 'output': {'uri': 'b'}, 'model': "
        f"{{'uses': 'torch', 'path': {str(program)!r}, 'trusted': True, 'outputs': {{'y': 'float32'}}}}}});"
        "from nightjar.inference.job.modeljob import model_jobs; its = model_jobs(job)[0];"
        f" adapter_of(its).inspect(its, {str(program)!r});"
        " assert not {'torch', 'pandas', 'ray', 'boto3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_option_the_torch_adapter_does_not_know_is_named(torch_job: MakeJob, program: Path) -> None:
    with pytest.raises(
        JobError, match=r"model\.options\.half: the torch adapter knows only the options model, .*batch_format"
    ):
        load_scorer(model_job(torch_job(options={"half": True})), str(program))
