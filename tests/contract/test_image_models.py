"""`uses: image-classification` and `object-detection` give each image what the library's own pipeline gives it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from PIL import Image

from lazily import skip_without
from mediamodels import KINDS, encoded, photos, save_classifier, save_detector, transformers
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.tensors import VariableShapedTensor
from predicting import loaded_by_looking, score_table
from support import Lake
from textmodels import text_job

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")
skip_without("PIL", reason="pip install 'nightjar-batch[images]'")

ALL = {"label": "string", "score": "float32", "scores": "float32[3]", "dog": "float64"}
FOUND = {"labels": "list<string>", "scores": "list<float32>", "boxes": "list<float32[4]>"}
PHOTOS = photos(9)
TASKS: dict[str, dict[str, Any]] = {
    "image-classification": {"path": "classifier", "outputs": {"label": "string"}},
    "object-detection": {"path": "detector", "outputs": {"labels": "list<string>"}, "options": {"threshold": 0.2}},
}
each_task = pytest.mark.parametrize("uses", TASKS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two classifiers and a detector."""
    made = tmp_path_factory.mktemp("models")
    save_classifier(made / "classifier")
    save_classifier(made / "several", problem_type="multi_label_classification")
    save_detector(made / "detector")
    return made


def job_of(folder: Path, uses: str, **section: Any) -> Job:
    return text_job(folder, **{"uses": uses, **TASKS[uses], **section})


def as_tensors(images: list[Any]) -> pa.Table:
    """As the image format gives them: each image has a shape of its own."""
    kind = VariableShapedTensor(pa.uint8())
    rows = [None if each is None else {"data": each.reshape(-1), "shape": list(each.shape)} for each in images]
    stored = pa.array(rows, kind.storage_type)
    return pa.table({"image": pa.ExtensionArray.from_storage(kind, stored)})


def made(job: Job, table: pa.Table) -> dict[str, list[Any]]:
    check_keys(job)
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


def piped(task: str, path: Path, **how: Any) -> list[Any]:
    """What the library's pipeline makes of each image alone."""
    pipeline = transformers.pipeline(task, model=str(path), device="cpu")
    return [pipeline(Image.fromarray(each), **how) for each in PHOTOS]


@pytest.mark.parametrize("path", ["classifier", "several"])
@pytest.mark.parametrize("function", [None, "softmax", "sigmoid", "none"])
def test_labels_and_scores_are_those_of_the_pipeline(folder: Path, path: str, function: str | None) -> None:
    job = job_of(
        folder, "image-classification", path=path, outputs=ALL, options={"function": function} if function else {}
    )
    found = made(job, as_tensors(PHOTOS))
    wanted = piped("image-classification", folder / path, top_k=3, function_to_apply=function)
    for row, scores in enumerate(wanted):
        by_label = {each["label"]: each["score"] for each in scores}
        assert found["label"][row] == scores[0]["label"]
        assert found["score"][row] == pytest.approx(scores[0]["score"], abs=1e-5)
        assert found["scores"][row] == pytest.approx([by_label[label] for label in KINDS.values()], abs=1e-5)
        assert found["dog"][row] == pytest.approx(by_label["dog"], abs=1e-5)
    assert len(set(found["label"])) > 1


def test_objects_are_those_of_the_pipeline(folder: Path) -> None:
    """Images of two shapes; boxes are in pixels of each image, which the pipeline rounds down."""
    found = made(job_of(folder, "object-detection", outputs=FOUND), as_tensors(PHOTOS))
    wanted = piped("object-detection", folder / "detector", threshold=0.2)
    assert sum(map(len, wanted)) > 5
    for row, objects in enumerate(wanted):
        assert found["labels"][row] == [each["label"] for each in objects]
        assert found["scores"][row] == pytest.approx([each["score"] for each in objects], abs=1e-5)
        corners = [[each["box"][name] for name in ("xmin", "ymin", "xmax", "ymax")] for each in objects]
        np.testing.assert_allclose(
            np.array(found["boxes"][row]).reshape(-1, 4), np.array(corners).reshape(-1, 4), atol=1
        )


@each_task
def test_bytes_of_files_tensors_of_one_shape_and_of_several_are_the_same_images(folder: Path, uses: str) -> None:
    images = PHOTOS[::2]
    job = job_of(folder, uses)
    wanted = made(job, as_tensors(images))
    assert made(job, pa.table({"bytes": [encoded(each) for each in images]})) == wanted
    assert made(job, pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(images))})) == wanted


def test_images_of_one_channel_and_of_four_become_rgb(folder: Path) -> None:
    job = job_of(folder, "image-classification", outputs={"scores": "float32[3]"})
    grey = PHOTOS[0][:, :, :1]
    clear = np.concatenate([PHOTOS[0], np.full((*PHOTOS[0].shape[:2], 1), 255, np.uint8)], axis=2)
    wanted = made(job, as_tensors([np.repeat(grey, 3, axis=2), PHOTOS[0]]))
    assert made(job, as_tensors([grey, clear])) == wanted


@each_task
def test_each_image_has_its_own_result_and_one_that_is_none_costs_its_row(folder: Path, uses: str) -> None:
    """Whatever lies beside it."""
    output = {"image-classification": {"scores": "float32[3]"}, "object-detection": {"scores": "list<float32>"}}[uses]
    job = job_of(folder, uses, outputs=output)
    scorer, types = load_scorer(model_job(job), job.models[0].path), job.models[0].output_types()
    content = [encoded(each) for each in PHOTOS]
    content[2], content[5] = b"no image", content[5][:100]
    table = pa.table({"bytes": pa.array([*content, None], pa.binary())})
    done = drained(score_table(table, scorer, BatchSize(16), types))
    assert [each.row for each in done.failures] == [2, 5, 9]
    alone = [scorer(table.slice(row, 1))["scores"].to_pylist()[0] for row in range(9) if row not in {2, 5}]
    for found, wanted in zip(done.outputs["scores"].to_pylist(), alone, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@each_task
def test_no_rows_have_no_results(folder: Path, uses: str) -> None:
    job = job_of(folder, uses)
    assert list(made(job, as_tensors([])).values()) == [[]]


@each_task
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"options": {"thresold": 1}}, r"model\.options\.thresold: the {uses} adapter knows only the options dtype"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, uses: str, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match="^" + sentence.format(uses=uses)):
        made(job_of(folder, uses, **change), as_tensors(PHOTOS))


@each_task
def test_an_output_that_is_not_made_is_refused_with_those_that_are(folder: Path, uses: str) -> None:
    with pytest.raises((JobError, OutputInvalid), match=r"'nonsense'(;| is missing;).* labels?, scores?"):
        made(job_of(folder, uses, outputs={"nonsense": "string"}), as_tensors(PHOTOS))


def test_a_box_is_four_numbers_and_a_threshold_lies_between_0_and_1(folder: Path) -> None:
    with pytest.raises(OutputInvalid, match=r"^output 'boxes' is declared list<float32>, but .* list<float32\[4\]>$"):
        made(job_of(folder, "object-detection", outputs={"boxes": "list<float32>"}), as_tensors(PHOTOS))
    with pytest.raises(JobError, match=r"^model\.options\.threshold: write a number from 0 to 1, not 2$"):
        check_keys(job_of(folder, "object-detection", options={"threshold": 2}))


@each_task
def test_columns_that_are_no_images_are_refused_before_the_model_is_loaded(folder: Path, uses: str) -> None:
    job = job_of(folder, uses)
    with pytest.raises(JobError, match=rf"^model\.features: the {uses} adapter takes one column of images; say which"):
        adapter_of(model_job(job)).check_columns(model_job(job), pa.schema([("a", pa.binary()), ("b", pa.binary())]))
    with pytest.raises(JobError, match=rf"^model\.features: 'a' is string, and the {uses} adapter takes images"):
        adapter_of(model_job(job)).check_columns(model_job(job), pa.schema([("a", pa.string())]))
    adapter_of(model_job(job)).check_columns(model_job(job), as_tensors(PHOTOS).schema)


@each_task
def test_a_folder_without_a_processor_or_of_another_task_is_refused(folder: Path, tmp_path: Path, uses: str) -> None:
    path = TASKS[uses]["path"]
    (tmp_path / path).mkdir()
    for file in (folder / path).iterdir():
        if file.name != "preprocessor_config.json":
            (tmp_path / path / file.name).write_bytes(file.read_bytes())
    job = job_of(tmp_path, uses)
    with pytest.raises(JobError, match=r"^model\.path: .* has no preprocessor_config\.json, so rows cannot be read"):
        adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))
    other = job_of(folder, uses, path="detector" if path == "classifier" else "classifier")
    with pytest.raises(JobError, match=r"^model\.path: (transformers cannot load|.* has no weights for) "):
        load_scorer(model_job(other), other.models[0].path)


@each_task
def test_what_counts_beyond_job_and_folder_are_the_libraries_that_compute(folder: Path, uses: str) -> None:
    job = job_of(folder, uses)
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {
        name: version(name) for name in ("transformers", "pillow")
    }


def test_looking_at_job_and_folder_imports_no_framework(folder: Path) -> None:
    for uses in TASKS:
        job = job_of(folder, uses).model_dump(mode="json", by_alias=True, include={"name", "input", "output", "only"})
        job["input"] = {"uri": "in/"}
        (folder / f"{uses}.yaml").write_text(yaml.safe_dump(job))
    looked, warmed = loaded_by_looking(*(folder / f"{uses}.yaml" for uses in TASKS))
    assert not {"torch", "transformers", "PIL"} & looked
    assert {"torch", "transformers"} <= warmed[0]


@pytest.mark.system
def test_a_lake_of_images_is_classified(lake: Lake, folder: Path) -> None:
    """From files to what is published, as the job file says it."""
    for row, image in enumerate(PHOTOS):
        (lake.folder / "data" / "a").mkdir(parents=True, exist_ok=True)
        (lake.folder / "data" / "a" / f"{row}.png").write_bytes(encoded(image))
    lake.write_job(
        input={"uri": "data/", "format": "image"},
        model={
            "uses": "image-classification",
            "path": str(folder / "classifier"),
            "features": ["image"],
            "outputs": {"label": "string"},
        },
        carry=["path"],
    )
    lake.run(engine="local")
    wanted = [each[0]["label"] for each in piped("image-classification", folder / "classifier", top_k=1)]
    assert lake.published()["label"].tolist() == wanted
