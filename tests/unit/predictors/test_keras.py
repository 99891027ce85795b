"""Keras models: outputs are those of Keras itself, whatever inputs and outputs a model has; and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from support import Lake

skip_without("h5py", reason="pip install 'nightjar-batch[keras]'")

keras = lazily("kerasnets", "keras")
layers = lazily("kerasnets", "layers")
kerasnets = lazily("kerasnets")
CHANCE = np.random.default_rng(0)
F32 = pa.float32()


def job_of(path: Path, **section: Any) -> Job:
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "keras", "path": str(path), "outputs": {"y": "float32"}, **section},
        "output": {"uri": "out"},
    }
    return parse_job(content, path.parent / "job.yaml")


def saved(path: Path, model: Any, **section: Any) -> Job:
    """A job with this model, its weights random and not zero."""
    keras.utils.set_random_seed(3)
    model.set_weights([CHANCE.normal(size=each.shape) for each in model.get_weights()])
    model.save(path)
    return job_of(path, **section)


def scored(job: Job, table: pa.Table) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


def image_net() -> Any:
    """(n, 6, 6, 3) → (n, 4), with layers that compute otherwise while they learn."""
    steps = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(4)]
    return keras.Sequential([keras.Input((6, 6, 3)), *steps])


def both(folder: Path) -> list[Path]:
    """A file of each kind."""
    return [folder / "model.keras", folder / "model.h5"]


# ---- outputs --------------------------------------------------------------------------------------------------


def test_images_are_scored_as_by_keras_itself(tmp_path: Path) -> None:
    """Tensors of bytes as the image format gives them, from files of both kinds; not as while it learns."""
    images = CHANCE.integers(0, 256, (7, 6, 6, 3), dtype=np.uint8)
    table = pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(images)})
    for path in both(tmp_path):
        model = image_net()
        job = saved(path, model, outputs={"y": "float32[4]"})
        np.testing.assert_allclose(scored(job, table)["y"], model.predict(images, verbose=0), rtol=1e-4, atol=1e-3)


def test_a_column_for_each_output_of_a_single_layer(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(3, activation="softmax")])
    job = saved(tmp_path / "m.keras", model, outputs={"cat": "float32", "dog": "float64", "bird": "float32"})
    values = CHANCE.normal(size=(5, 2)).astype("f4")
    found = scored(job, pa.table({"a": values[:, 0], "b": values[:, 1]}))
    np.testing.assert_allclose(np.column_stack(list(found.values())), model.predict(values, verbose=0), rtol=1e-5)


def test_inputs_and_outputs_are_matched_by_their_names(tmp_path: Path) -> None:
    """Whole numbers for an embedding, floats for a dense layer; the job may declare some of the outputs."""
    words, size = keras.Input((3,), name="words", dtype="int32"), keras.Input((1,), name="size")
    joined = layers.Concatenate()([layers.Flatten()(layers.Embedding(9, 2)(words)), size])
    ends = [layers.Dense(1, name="price")(joined), layers.Dense(2, name="kind")(joined)]
    model = keras.Model([words, size], ends)
    table = pa.table(
        {"size": pa.array([0.5, 2.0], F32), "words": pa.array([[1, 2, 3], [4, 8, 0]], pa.list_(pa.int64()))}
    )
    given = [np.array([[1, 2, 3], [4, 8, 0]]), np.array([[0.5], [2.0]], "f4")]
    for path in both(tmp_path):
        job = saved(path, model, outputs={"kind": "float32[2]", "price": "float32"})
        price, kind = model.predict(given, verbose=0)
        found = scored(job, table)
        np.testing.assert_allclose(found["kind"], kind, rtol=1e-5)
        np.testing.assert_allclose(found["price"], price[:, 0], rtol=1e-5)
        only = scored(job_of(path, outputs={"kind": "float32[2]"}), table)
        assert only["kind"] == found["kind"]
    other = scored(job_of(path, outputs={"first": "float32", "second": "float32[2]"}), table)
    assert list(other.values()) == [found["price"], found["kind"]]


def test_a_model_of_dicts_keeps_their_keys(tmp_path: Path) -> None:
    left, right = keras.Input((1,), name="left"), keras.Input((1,), name="right")
    less = layers.Subtract(name="minus")([left, right])
    keras.Model({"left": left, "right": right}, {"less": less}).save(tmp_path / "m.keras")
    job = job_of(tmp_path / "m.keras", outputs={"less": "float32"})
    table = pa.table({"right": pa.array([1.0, 2.0], F32), "left": pa.array([10.0, 20.0], F32)})
    assert scored(job, table) == {"less": [9.0, 18.0]}


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    taken = keras.Input((3,))
    keras.Model(taken, keras.ops.argmax(taken, axis=1)).save(tmp_path / "m.keras")
    job = job_of(tmp_path / "m.keras", outputs={"best": "int64"})
    assert scored(job, pa.table({"v": pa.array([[1.0, 5.0, 2.0], [9.0, 5.0, 2.0]])})) == {"best": [1, 0]}


# ---- what is refused ------------------------------------------------------------------------------------------


def test_a_model_of_another_width_is_said_in_preflight(lake: Lake) -> None:
    """Before anything is scored, with both widths and the key to change."""
    lake.write_files(files=1, rows=20)
    path = lake.folder / "model.keras"
    keras.Sequential([keras.Input((7,)), layers.Dense(1)]).save(path)
    lake.write_job(model={"uses": "keras", "path": str(path), "features": ["x"], "outputs": {"score": "float32"}})
    with pytest.raises((JobError, RunFailed), match=r"model\.features: x makes 1 column, and input .* model takes 7"):
        lake.run(engine=LOCAL)


def test_images_of_another_size_cost_their_rows_and_say_both_shapes(tmp_path: Path) -> None:
    job = saved(tmp_path / "m.keras", image_net(), outputs={"y": "float32[4]"})
    table = pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 5, 5, 3), np.uint8))})
    message = r"'image' has shape \(n, 5, 5, 3\), and input .* of the model takes \(n, 6, 6, 3\)$"
    with pytest.raises(ValueError, match=message):
        scored(job, table)


def test_text_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    job = saved(tmp_path / "m.keras", image_net())
    with pytest.raises(JobError, match=r"^model\.features: 'name' is string, and the keras adapter takes numbers only"):
        adapter_of(model_job(job)).check_columns(model_job(job), pa.schema([("name", pa.string())]))


def test_a_layer_of_python_code_needs_trust(tmp_path: Path) -> None:
    """In files of both kinds; the code is not run while the file is refused."""
    taken = keras.Input((1,))
    model = keras.Model(taken, layers.Lambda(lambda x: x * 3, name="thrice", output_shape=(1,))(taken))
    table = pa.table({"x": pa.array([1.0, 2.0], F32)})
    for path in both(tmp_path):
        model.save(path)
        with pytest.raises(JobError, match=rf"^model\.path: Keras cannot load .*{path.name}: .*Lambda.*trusted: true$"):
            scored(job_of(path), table)
        assert scored(job_of(path, trusted=True), table) == {"y": [3.0, 6.0]}


def test_a_layer_that_keras_does_not_know_is_said(tmp_path: Path) -> None:
    """In a process without its author's code."""
    taken = keras.Input((1,))
    keras.Model(taken, kerasnets.Odd()(taken)).save(tmp_path / "m.keras")
    code = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\n"
        "from nightjar.inference.errors import JobError\nfrom nightjar.inference.job.file import load_job\n"
        "from nightjar.inference.job.modeljob import model_jobs\n"
        "from nightjar.inference.predictors import load_scorer\n"
        "job = load_job(sys.argv[2])\n"
        "try:\n    load_scorer(model_jobs(job)[0], job.models[0].path)\nexcept JobError as error:\n    print(error)"
    )
    (tmp_path / "job.yaml").write_text(
        "name: t\ninput: {uri: in/}\nmodel: {uses: keras, path: m.keras, outputs: {y: float32}}\noutput: {uri: out/}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, tmp_path / "job.yaml"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KERAS_BACKEND": "nothing", "HOME": str(tmp_path)},
    )
    assert done.stdout.startswith("model.path: Keras cannot load ")
    assert "Odd" in done.stdout
    # Neither the backend nor a file in the home folder counts, and Keras has written none there.
    assert not (tmp_path / ".keras").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "saved",
            r"is not a \.keras, \.h5 or \.hdf5 file; load the model where it was made, and write one with model\.save",
        ),
        ("model.pb", r"is not a \.keras, \.h5 or \.hdf5 file; .* write one with model\.save\('model\.keras'\)$"),
        ("weights.h5", r"cannot load .*No model config found in the file"),
        ("fixed.keras", r"the model takes only batches of 4 \(input 'x'\); build it without a batch_size"),
        ("empty.keras", r"Keras cannot load .*empty\.keras: "),
        ("class.keras", r"is a Own that does not say its inputs; save a Sequential or functional model"),
    ],
)
def test_files_that_are_no_models_say_what_to_write(tmp_path: Path, name: str, sentence: str) -> None:
    import h5py

    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"\n")
    (tmp_path / "model.pb").write_bytes(b"\n")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["w"] = [1.0]
    fixed = keras.Input((1,), batch_size=4, name="x")
    keras.Model(fixed, layers.Dense(1)(fixed)).save(tmp_path / "fixed.keras")
    import zipfile

    with zipfile.ZipFile(tmp_path / "empty.keras", "w") as archive:
        archive.writestr("config.json", "{}")

    @keras.saving.register_keras_serializable("mine")
    class Own(keras.Model):  # type: ignore[misc]  # Keras has no types
        def call(self, given: Any) -> Any:
            return given

    own = Own()
    own(np.zeros((1, 1), "f4"))
    own.save(tmp_path / "class.keras")
    with pytest.raises(JobError, match=rf"^model\.path: .*{sentence}"):
        job = job_of(tmp_path / name)
        adapter_of(model_job(job)).load(model_job(job), job.models[0].path)


def test_a_missing_extra_says_which_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = saved(tmp_path / "m.keras", image_net())
    monkeypatch.setitem(sys.modules, "keras", None)  # as Python has it of a module that is not there
    with pytest.raises(JobError, match=r"needs keras; install it: pip install 'nightjar-batch\[keras\]'$"):
        load_scorer(model_job(job), job.models[0].path)


def test_what_counts_beyond_job_and_file_are_keras_and_torch(tmp_path: Path) -> None:
    job = saved(tmp_path / "m.keras", image_net())
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {
        name: version(name) for name in ("keras", "torch")
    }


def test_keras_with_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(JobError, match=r"computes with torch, and .* imported Keras with jax; set KERAS_BACKEND=torch"):
        kerasnets.keras_on_torch()
