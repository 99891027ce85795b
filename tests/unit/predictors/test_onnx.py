"""ONNX models: which column fills which input, which output is taken, and where the files of a model may lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily
from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.identity import snapshots
from nightjar.inference.identity.identity import fix
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.scoring.scored_rows import ScoredRows
from nightjar.inference.storage.lake import LakeStorage
from predicting import score_table
from support import Lake

onnx, onnxruntime, TensorProto = lazily("onnx"), lazily("onnxruntime"), lazily("onnx", "TensorProto")
helper, numpy_helper = lazily("onnx.helper"), lazily("onnx.numpy_helper")

F32 = pa.float32()
FLOAT, INT64, STRING, BFLOAT16 = 1, 7, 8, 16
"""As `onnx.TensorProto` counts types."""

NUMBERS = np.random.default_rng(0).random((40, 4), dtype="f4")
TABLE = pa.table({name: NUMBERS[:, place] for place, name in enumerate("abcd")})
WEIGHTS = np.random.default_rng(1).random((4, 3), dtype="f4")


def info(name: str, kind: int, *shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def build(nodes: list[Any], takes: list[Any], gives: list[Any], **weights: Any) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(values), name) for name, values in weights.items()]
    graph = helper.make_graph(nodes, "g", takes, gives, held)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def matmul(width: Any = 4, rows: Any = "n") -> onnx.ModelProto:
    """x (n, 4) → y (n, 3)."""
    gives = [info("y", FLOAT, rows, 3)]
    return build([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", FLOAT, rows, width)], gives, w=WEIGHTS)


def difference(kind: int = FLOAT) -> onnx.ModelProto:
    """left (n), right (n) → less (n)."""
    takes = [info("left", kind, "n"), info("right", kind, "n")]
    return build([helper.make_node("Sub", ["left", "right"], ["less"])], takes, [info("less", kind, "n")])


def saved(folder: Path, model: onnx.ModelProto, **section: Any) -> Job:
    """A job with this model."""
    onnx.save(model, folder / "model.onnx")
    return job_of(folder, **section)


def job_of(folder: Path, preprocess: str | None = None, **section: Any) -> Job:
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "onnx", "path": "model.onnx", "outputs": {"y": "float32[3]"}, **section},
        "output": {"uri": "out"},
        **({"preprocess": preprocess} if preprocess else {}),
    }
    return parse_job(content, folder / "job.yaml")


def scored(job: Job, table: pa.Table = TABLE, path: str | None = None) -> dict[str, list[Any]]:
    return {
        name: values.to_pylist()
        for name, values in load_scorer(model_job(job), path or job.models[0].path)(table).items()
    }


def own(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    """What onnxruntime itself gives, all outputs."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [each.tolist() for each in session.run(None, inputs)]


# ---- inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, None, "features"])
def test_one_input_gets_all_features_in_the_order_of_the_job(tmp_path: Path, width: Any) -> None:
    """Also where the model leaves their number open; columns of lists take as many places as they are long."""
    job = saved(tmp_path, matmul(width))
    assert scored(job)["y"] == own(matmul(), x=NUMBERS)[0]
    turned = job_of(tmp_path, features=["d", "a", "c", "b"])
    assert scored(turned)["y"] == own(matmul(), x=NUMBERS[:, [3, 0, 2, 1]])[0]
    for lists in (pa.list_(F32), pa.list_(F32, 3)):
        table = pa.table({"a": TABLE["a"], "rest": pa.array(NUMBERS[:, 1:].tolist(), lists)})
        assert scored(job, table)["y"] == own(matmul(), x=NUMBERS)[0]


def test_an_input_for_each_column_gets_it_by_name(tmp_path: Path) -> None:
    job = saved(tmp_path, difference(), outputs={"less": "float32"})
    table = pa.table({"right": TABLE["a"], "left": TABLE["b"]})
    assert scored(job, table)["less"] == (NUMBERS[:, 1] - NUMBERS[:, 0]).tolist()


def test_columns_of_other_names_fill_the_inputs_in_the_order_that_the_job_lists(tmp_path: Path) -> None:
    """Never in that of the input, which nobody has chosen; and a name that nearly agrees is a mistake."""
    job = saved(tmp_path, difference(), outputs={"less": "float32"}, features=["b", "a"])
    assert scored(job)["less"] == (NUMBERS[:, 1] - NUMBERS[:, 0]).tolist()
    job = job_of(tmp_path, outputs={"less": "float32"})
    message = r"^model\.features: the model has an input 'left', which is not among .*: a, b; to fill .* list these$"
    with pytest.raises(JobError, match=message):
        scored(job, TABLE.select(["a", "b"]))
    listed = job_of(tmp_path, outputs={"less": "float32"}, features=["right", "lefty"])
    with pytest.raises(JobError, match=r"^model\.features: .* 'left', .* it gets; did you mean 'lefty'\?$"):
        scored(listed, pa.table({"right": TABLE["a"], "lefty": TABLE["b"]}))
    more = pa.table({"right": TABLE["a"], "left": TABLE["b"], "id": TABLE["c"]})
    with pytest.raises(JobError, match=r"^model\.features: the model takes only left, right; write features: \['left'"):
        scored(job, more)
    with pytest.raises(JobError, match=r"^model\.features: the model takes 2 inputs .* for 3 columns \(a, b, c\)"):
        scored(job_of(tmp_path, outputs={"less": "float32"}, features=["a", "b", "c"]))


def test_lists_are_tensors_of_the_inputs_shape(tmp_path: Path) -> None:
    """(n, 2, 2) from lists of lists, from tensors, and from flat lists of four."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    model = build([node], [info("x", FLOAT, "n", 2, 2)], [info("y", FLOAT, "n", 2)], axes=np.array([2]))
    job = saved(tmp_path, model, outputs={"y": "float32[2]"})
    shaped = NUMBERS.reshape(-1, 2, 2)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(shaped)
    for column in (pa.array(shaped.tolist()), tensors, pa.array(NUMBERS.tolist(), pa.list_(F32, 4))):
        assert scored(job, pa.table({"v": column}))["y"] == own(model, x=shaped)[0]
    with pytest.raises(ValueError, match=r"^model\.features: 'v' has shape \(n, 3\), and input 'x' .* \(n, 2, 2\)$"):
        scored(job, pa.table({"v": pa.array(NUMBERS[:, :3].tolist(), pa.list_(F32, 3))}))


def test_whole_numbers_reach_an_input_of_whole_numbers_unchanged(tmp_path: Path) -> None:
    job = saved(tmp_path, difference(INT64), outputs={"less": "int64"})
    left, right = [1 << 60, 5, 6], [1, 2, 3]
    table = pa.table({"left": pa.array(left), "right": pa.array(right, pa.int8())})
    assert scored(job, table)["less"] == [(1 << 60) - 1, 3, 3]
    with pytest.raises(JobError, match=r"^model\.features: 'left' is float64, and the model takes int64$"):
        scored(job, pa.table({"left": [1.0], "right": [1]}))
    with pytest.raises(ValueError, match=r"^feature 'left' has a null, and int64 has no NaN"):
        scored(job, pa.table({"left": pa.array([1, None]), "right": [1, 2]}))


def coded(folder: Path, **section: Any) -> Job:
    """A job whose model takes a text and a number, country (n, 1) and x (n, 1) → y (n, 1): code of the country + x."""
    known = {"keys_strings": ["de", "fr", "nan", "3"], "values_floats": [1.0, 2.0, 99.0, 33.0]}
    nodes = [
        helper.make_node("LabelEncoder", ["country"], ["code"], domain="ai.onnx.ml", **known),
        helper.make_node("Add", ["code", "x"], ["y"]),
    ]
    takes = [info("country", STRING, None, 1), info("x", FLOAT, None, 1)]
    return saved(folder, build(nodes, takes, [info("y", FLOAT, None, 1)]), outputs={"y": "float32"}, **section)


def test_text_reaches_an_input_of_text(tmp_path: Path) -> None:
    """Sidecar numbers, in shape (n, 1) as skl2onnx writes it; a null costs its row."""
    job = coded(tmp_path)
    countries = pa.array(["fr", "de", None, "fr"])
    table = pa.table({"x": pa.array([0.5, 0.25, 0.0, 0.0], F32), "country": countries})
    for column in (countries, countries.cast(pa.large_string()), countries.dictionary_encode()):
        done = with_failures(job, table.set_column(1, "country", column))
        assert done.outputs["y"].to_pylist() == [2.5, 1.25, 2.0]
        assert [(each.row, each.error) for each in done.failures] == [(2, "ValueError")]
    message = r"^model\.features: 'x' holds text, and input 'x' of the model takes numbers, in shape \(n, 1\)$"
    with pytest.raises(JobError, match=message):
        scored(job, pa.table({"x": ["a"], "country": ["de"]}))
    with pytest.raises(JobError, match=r"'country' holds numbers, and input 'country' of the model takes text"):
        scored(job, pa.table({"x": [1.0], "country": [1.0]}))


NO_TEXT = "feature 'country' has a null, and input 'country' of the model takes text"


@pytest.mark.parametrize("size", [8, 1], ids=["together", "alone"])
@pytest.mark.parametrize("form", ["", "numpy", "pandas", "pyarrow"])
def test_a_row_without_a_text_is_refused_alone_as_among_others(tmp_path: Path, form: str, size: int) -> None:
    """In a DataFrame it is NaN, of which onnxruntime made the text "nan"."""
    (tmp_path / "same.py").write_text("def prep(batch):\n    return batch\n")
    own: dict[str, Any] = {"preprocess": "same:prep", "options": {"batch_format": form}} if form else {}
    job = coded(tmp_path, **own)
    table = pa.table({"x": pa.array([0.0, 0.25, 0.5], F32), "country": ["fr", None, "de"]})
    done = with_failures(job, table, size)
    assert done.outputs["y"].to_pylist() == [2.0, 1.5]
    assert [(each.row, each.error, each.message) for each in done.failures] == [(1, "ValueError", NO_TEXT)]


MISSING = {"None": [None], "NaN": [np.nan], "NaN in floats": np.array([np.nan]), "NA": [pd.NA], "NaT": [pd.NaT]}


@pytest.mark.parametrize("missing", MISSING)
def test_what_stands_for_a_missing_text_is_never_taken_for_a_text(tmp_path: Path, missing: str) -> None:
    predictor = adapter_of(model_job(job := coded(tmp_path))).load(model_job(job), job.models[0].path)
    none = MISSING[missing]
    for countries in (none, ["fr", *none], [*none, "de"]):
        column = countries if isinstance(countries, np.ndarray) else np.array(countries, dtype=object)
        with pytest.raises(ValueError, match=rf"^{NO_TEXT}$"):
            predictor.prepare({"x": np.zeros(len(column), "f4"), "country": column})
    with pytest.raises(ValueError, match=r"^feature 'x' has a null, and input 'x' of the model takes numbers$"):
        predictor.prepare({"x": np.array([None]), "country": np.array(["fr"], dtype=object)})


def test_a_number_among_texts_is_not_taken_for_one(tmp_path: Path) -> None:
    """It was "3" beside a text, and refused alone."""
    predictor = adapter_of(model_job(job := coded(tmp_path))).load(model_job(job), job.models[0].path)
    with pytest.raises(TypeError, match=r"^feature 'country' holds 3, which is no text$"):
        predictor.prepare({"x": np.zeros(2, "f4"), "country": np.array(["fr", 3], dtype=object)})


def with_failures(job: Job, table: pa.Table, size: int = 8) -> ScoredRows:
    steps = score_table(
        table, load_scorer(model_job(job), job.models[0].path), BatchSize(size), job.models[0].output_types()
    )
    return drained(steps)


def test_a_row_that_an_operation_refuses_costs_that_row(tmp_path: Path) -> None:
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    model = build([node], [info("i", INT64, "n")], [info("y", FLOAT, "n", 3)], w=WEIGHTS)
    done = with_failures(saved(tmp_path, model), pa.table({"i": [0, 3, 4, 1]}))
    assert [(each.row, each.error) for each in done.failures] == [(2, "InvalidArgument")]
    assert done.outputs["y"].to_pylist() == WEIGHTS[[0, 3, 1]].tolist()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            lambda: matmul(rows=16),
            r"the model takes only batches of 16 \(input 'x'\); export it with a first dimension of any",
        ),
        (
            lambda: build([helper.make_node("Add", ["x", "x"], ["y"])], [info("x", FLOAT)], [info("y", FLOAT)]),
            r"input 'x' of the model is tensor\(float\), which no column can fill",
        ),
        (
            lambda: build(
                [helper.make_node("Cast", ["x"], ["y"], to=FLOAT)],
                [info("x", BFLOAT16, "n", 2)],
                [info("y", FLOAT, "n", 2)],
            ),
            r"input 'x' of the model is tensor\(bfloat16\) of shape \(n, 2\), which no column can fill",
        ),
        (
            lambda: build(
                [helper.make_node("Mine", ["x"], ["y"], domain="")], [info("x", FLOAT, "n")], [info("y", FLOAT, "n")]
            ),
            r"onnxruntime cannot load .*model\.onnx: \w+: .*Mine",
        ),
    ],
)
def test_a_model_that_columns_cannot_feed_is_refused_when_it_is_loaded(
    tmp_path: Path, model: Callable[[], onnx.ModelProto], sentence: str
) -> None:
    job = saved(tmp_path, model())
    with pytest.raises(JobError, match=rf"^model\.path: {sentence}"):
        adapter_of(model_job(job)).load(model_job(job), job.models[0].path)


def test_columns_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    for kind in (pa.timestamp("us"), pa.list_(pa.string()), pa.decimal128(9), pa.binary()):
        with pytest.raises(
            JobError, match=r"^model\.features: 'when' is .*, and the onnx adapter takes numbers, lists"
        ):
            adapter_of(model_job(job)).check_columns(model_job(job), pa.schema({"a": F32, "when": kind}))
    adapter_of(model_job(job)).check_columns(
        model_job(job), pa.schema({"a": pa.list_(pa.list_(F32)), "b": pa.string(), "c": pa.bool_()})
    )


# ---- outputs --------------------------------------------------------------------------------------------------


def classifier() -> onnx.ModelProto:
    """x (n, 4) → label (n), probabilities (n, 3)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    gives = [info("label", INT64, "n"), info("probabilities", FLOAT, "n", 3)]
    return build(nodes, [info("x", FLOAT, "n", 4)], gives, w=WEIGHTS)


def test_outputs_are_the_models_by_name(tmp_path: Path) -> None:
    label, probabilities = own(classifier(), x=NUMBERS)
    both = scored(saved(tmp_path, classifier(), outputs={"probabilities": "float32[3]", "label": "int64"}))
    assert both == {"probabilities": probabilities, "label": label}
    assert scored(job_of(tmp_path, outputs={"label": "int64"})) == {"label": label}


def test_a_models_only_output_may_have_any_name_and_may_be_several(tmp_path: Path) -> None:
    (whole,) = own(matmul(), x=NUMBERS)
    assert scored(saved(tmp_path, matmul(), outputs={"vector": "float32[3]"}))["vector"] == whole
    found = scored(job_of(tmp_path, outputs=dict.fromkeys(["p", "q", "r"], "float32")))
    assert np.array([found["p"], found["q"], found["r"]], "f4").T.tolist() == whole
    message = r"^output 'y' of the model returned an array of shape \(40, 3\) for 40 rows, .* declares 2: p, q$"
    with pytest.raises(OutputInvalid, match=message):
        scored(job_of(tmp_path, outputs={"p": "float32", "q": "float32"}))


def test_an_output_that_the_model_has_not_is_said_with_those_it_has(tmp_path: Path) -> None:
    job = saved(tmp_path, classifier(), outputs={"probability": "float32[3]"})
    with pytest.raises(JobError) as caught:
        scored(job)
    assert str(caught.value) == (
        "model.outputs: the model has no output 'probability'; it has label: tensor(int64) of shape (n); "
        "probabilities: tensor(float) of shape (n, 3); did you mean 'probabilities'?"
    )


def test_an_output_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    """As skl2onnx writes probabilities unless it is told otherwise."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, [])))
    job = saved(tmp_path, build(nodes, [info("x", FLOAT, "n", 4)], [helper.make_value_info("y", maps)], w=WEIGHTS))
    with pytest.raises(
        JobError, match=r"^model\.outputs: output 'y' .* is seq\(map.* no tensor|not a tensor; .*zipmap"
    ):
        scored(job)


# ---- files ----------------------------------------------------------------------------------------------------


def save_apart(folder: Path, *, name: str = "model.onnx", data: str = "model.onnx.data") -> onnx.ModelProto:
    """A model whose weights lie in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    model = matmul()
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, folder / name, save_as_external_data=True, location=data, size_threshold=0)
    return model


def test_a_folder_is_a_model_and_the_weights_beside_it(tmp_path: Path) -> None:
    model = save_apart(tmp_path / "models")
    assert scored(job_of(tmp_path, path="models"))["y"] == own(model, x=NUMBERS)[0]


def test_a_file_whose_weights_lie_beside_it_is_refused_with_the_folder_to_name(tmp_path: Path) -> None:
    """They would be no part of the model that is hashed and copied."""
    save_apart(tmp_path / "models")
    job = job_of(tmp_path, path="models/model.onnx")
    path, _ = place_model(LakeStorage(), fix(LakeStorage(), job).models[0], tmp_path / "cache", str(job.models[0].path))
    with pytest.raises(
        JobError, match=r"^model\.path: onnxruntime cannot load .*; .* model\.path is the folder of both$"
    ):
        load_scorer(model_job(job), path)


def test_weights_that_are_missing_or_elsewhere_are_said(tmp_path: Path) -> None:
    save_apart(tmp_path / "models")
    (tmp_path / "models/model.onnx.data").unlink()
    job = job_of(tmp_path, path="models")
    with pytest.raises(JobError, match=r"^model\.path: onnxruntime cannot load .*model\.onnx\.data"):
        load_scorer(model_job(job), job.models[0].path)
    model = matmul()
    weights = model.graph.initializer[0]
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../secret.bin")
    (tmp_path / "models/model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(JobError, match=r"^model\.path: onnxruntime cannot load .*secret\.bin"):
        load_scorer(model_job(job), job.models[0].path)


def test_of_several_models_in_a_folder_the_job_says_which(tmp_path: Path) -> None:
    model = save_apart(tmp_path / "hub" / "onnx")
    onnx.save(difference(), tmp_path / "hub" / "other.onnx")
    job = job_of(tmp_path, path="hub")
    with pytest.raises(
        JobError, match=r"^model\.path: .*hub holds 2 \.onnx files: onnx/model\.onnx, other\.onnx; say w"
    ):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))
    job = job_of(tmp_path, path="hub", options={"file": "onnx/model.onnx"})
    assert scored(job)["y"] == own(model, x=NUMBERS)[0]
    job = job_of(tmp_path, path="hub", options={"file": "model.onnx"})
    with pytest.raises(JobError, match=r"^model\.options\.file: .*hub holds no model\.onnx: onnx/model\.onnx, other"):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))
    job = job_of(tmp_path, path="hub/other.onnx", options={"file": "other.onnx"})
    with pytest.raises(JobError, match=r"^model\.options\.file: model\.path is no folder but the file .*other\.onnx$"):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))
    for name in ("../model.onnx", "/model.onnx", 3):
        with pytest.raises(JobError, match=r"^model\.options\.file: write the name of a file in the folder of"):
            check_keys(job_of(tmp_path, path="hub", options={"file": name}))


@pytest.mark.parametrize("copied", [0, 5_000, 10_000_000], ids=["all linked", "weights linked", "all copied"])
def test_weights_that_are_too_large_to_be_copied_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """onnxruntime itself refuses weights that a link leads to."""
    weights = np.random.default_rng(2).random((4, 5000), dtype="f4")
    gives = [info("y", FLOAT, "n", 5000)]
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", FLOAT, "n", 4)], gives, w=weights)
    (tmp_path / "models").mkdir()
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, tmp_path / "models/m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    monkeypatch.setattr(snapshots, "COPIED_BYTES", copied)
    job = job_of(tmp_path, path="models", outputs={"y": "float32[5000]"})
    (taken,) = fix(LakeStorage(), job).models
    assert len(taken.linked) == {0: 2, 5_000: 1, 10_000_000: 0}[copied]
    path, _ = place_model(LakeStorage(), taken, tmp_path / "cache", str(job.models[0].path))
    assert scored(job, path=path)["y"] == own(model, x=NUMBERS)[0]


def test_weights_that_lie_in_several_places_are_read_there(tmp_path: Path) -> None:
    """As files that each node fetches from a bucket do."""
    model = save_apart(tmp_path / "real")
    (tmp_path / "cache/abc").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    (tmp_path / "real/model.onnx.data").rename(tmp_path / "cache/abc/fetched")
    (tmp_path / "real/model.onnx").rename(tmp_path / "models/model.onnx")
    (tmp_path / "models/model.onnx.data").symlink_to(tmp_path / "cache/abc/fetched")
    assert scored(job_of(tmp_path, path="models"))["y"] == own(model, x=NUMBERS)[0]


# ---- where it runs --------------------------------------------------------------------------------------------


def with_resources(job: Job, **resources: Any) -> Job:
    return job.model_copy(update={"resources": job.resources.model_copy(update=resources)})


def test_it_computes_on_the_cores_of_the_job(tmp_path: Path) -> None:
    job = with_resources(saved(tmp_path, matmul()), cpus=2)
    session: Any = adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    options = session._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    assert session.device == "cpu"


def test_gpus_are_refused_where_onnxruntime_has_no_cuda(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    job = with_resources(saved(tmp_path, matmul()), gpus=1)
    with pytest.raises(JobError, match=r"^resources\.gpus: onnxruntime .* cannot start CUDAExecutionP"):
        adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    assert "has no CUDA" in adapter_of(model_job(job)).devices()


def test_errors_of_a_lost_device_are_known_by_type(tmp_path: Path) -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    job = saved(tmp_path, matmul())
    adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    assert adapter_of(model_job(job)).device_errors() == (state.DeviceReset,)


def test_onnxruntime_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    """Its import would make a file of reports in the home folder, and send them."""
    env = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    env |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    code = "from nightjar.inference.predictors.tabular.onnx import ADAPTER; print(ADAPTER.devices())"
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert told.startswith("onnxruntime ")
    assert [each for each in tmp_path.rglob("*") if "onnxruntime" in each.name] == []


def test_a_missing_extra_says_which_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(tmp_path, matmul())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as Python has it of a module that is not there
    with pytest.raises(JobError, match=r"needs onnxruntime; install it: pip install 'nightjar-batch\[onnx\]'$"):
        load_scorer(model_job(job), job.models[0].path)
    assert adapter_of(model_job(job)).devices() == ""


def test_the_version_that_scores_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path)
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {"onnxruntime": version("onnxruntime")}


def test_a_night_is_published(lake: Lake) -> None:
    """On the local engine, from a folder with weights of their own to what readers see."""
    lake.write_files(files=2)
    node = helper.make_node("Mul", ["x", "two"], ["score"])
    gives = [info("score", FLOAT, "n", 1)]
    model = build([node], [info("x", FLOAT, "n", 1)], gives, two=np.array([2.0], "f4"))
    (lake.folder / "models").mkdir()
    path = lake.folder / "models/model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    lake.write_job(model__uses="onnx", model__path="models/")
    ran = lake.run(engine=LOCAL)
    published = lake.published()
    assert published["score"].tolist() == (published["id"] * 2.0).tolist()
    manifest = json.loads((lake.out / ran.verdict.published.manifest).read_bytes())
    assert sorted(manifest["model"]["files"]) == ["model.onnx", "weights.bin"]
    assert manifest["packages"] == {"onnxruntime": version("onnxruntime")}
