"""`uses: speech-recognition` writes down of each recording what the library's own pipeline does."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import skip_without
from mediamodels import RATE, recordings, save_listener, save_whisper, transformers
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import score_table
from textmodels import text_job

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

SOUNDS = recordings(7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_listener(tmp_path_factory.mktemp("models") / "model").parent


def job_of(folder: Path, **section: Any) -> Job:
    return text_job(folder, **{"uses": "speech-recognition", "outputs": {"text": "string"}, **section})


def table_of(sounds: Any) -> pa.Table:
    return pa.table({"sound": pa.array(sounds, pa.list_(pa.float32()))})


def test_texts_are_those_of_the_pipeline(folder: Path) -> None:
    job = job_of(folder, options={"sampling_rate": RATE})
    check_keys(job)
    pipeline = transformers.pipeline("automatic-speech-recognition", model=str(folder / "model"), device="cpu")
    wanted = [pipeline(each)["text"] for each in SOUNDS]
    assert load_scorer(model_job(job), job.models[0].path)(table_of(SOUNDS))["text"].to_pylist() == wanted
    assert len(set(wanted)) > 3
    assert load_scorer(model_job(job), job.models[0].path)(table_of([]))["text"].to_pylist() == []


def test_a_recording_that_is_none_costs_its_row_and_no_other(folder: Path) -> None:
    job = job_of(folder)
    scorer = load_scorer(model_job(job), job.models[0].path)
    sounds: list[Any] = [*SOUNDS]
    sounds[1], sounds[4] = None, []
    done = drained(score_table(table_of(sounds), scorer, BatchSize(16), job.models[0].output_types()))
    assert [(each.row, each.error) for each in done.failures] == [(1, "ValueError"), (4, "ValueError")]
    alone = [scorer(table_of([each]))["text"][0].as_py() for row, each in enumerate(SOUNDS) if row not in {1, 4}]
    assert done.outputs["text"].to_pylist() == alone


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (
            {"options": {"sampling_rate": 8000}},
            r"model\.options\.sampling_rate: 8000, and .* takes 16000 samples a sec",
        ),
        (
            {"job": {"input": {"uri": "in/", "format": "audio", "options": {"sample_rate": 8000}}}},
            r"input\.options\.sample_rate: write 16000, ",
        ),
        (
            {"job": {"input": {"uri": "in/", "format": "audio"}}, "options": {"sampling_rate": RATE}},
            r"input\.options\.sample_rate: write 16000, ",
        ),
        ({"options": {"language": "de"}}, r"model\.options\.language: only Whisper has a choice"),
        ({"options": {"task": "sing"}}, r"model\.options\.task: 'sing' is not one of transcribe, translate"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, section: dict[str, Any], sentence: str) -> None:
    job = job_of(folder, **section)
    with pytest.raises(JobError, match=f"^{sentence}"):
        load_scorer(model_job(job), job.models[0].path)


def test_what_is_made_is_one_text(folder: Path) -> None:
    for outputs, sentence in (
        ({"text": "int64"}, "^output 'text' is declared int64, but the predictor returned string$"),
        ({"text": "string", "words": "string"}, "^the predictor returned a bare list, but model.outputs declares"),
    ):
        job = job_of(folder, outputs=outputs)
        with pytest.raises(OutputInvalid, match=sentence):
            load_scorer(model_job(job), job.models[0].path)(table_of(SOUNDS[:1]))


def test_columns_that_are_no_sound_are_refused_before_the_model_is_loaded(folder: Path) -> None:
    job = job_of(folder)
    for kind in (pa.float32(), pa.string(), pa.binary(), pa.list_(pa.int16())):
        with pytest.raises(
            JobError, match=r"^model\.features: 'a' is \S.*, and the speech-recognition adapter takes lis"
        ):
            adapter_of(model_job(job)).check_columns(model_job(job), pa.schema([("a", kind)]))
    adapter_of(model_job(job)).check_columns(model_job(job), table_of(SOUNDS).schema)
    adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))


def test_what_counts_beyond_job_and_folder_are_the_libraries_that_compute(folder: Path) -> None:
    job = job_of(folder)
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {
        name: version(name) for name in ("transformers", "tokenizers")
    }


# ---- Whisper --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tmp_path_factory.mktemp("models") / "model").parent


def spoken(*seconds: float) -> list[Any]:
    """Tones that change, so that each window of a recording sounds otherwise."""
    chance = np.random.default_rng(5)
    sounds = []
    for length in seconds:
        steps = np.repeat(chance.uniform(100, 4000, int(length * 2) + 1), RATE // 2)[: int(length * RATE)]
        sounds.append((0.5 * np.sin(np.cumsum(steps) * 2 * np.pi / RATE)).astype("f4"))
    return sounds


def whisper_pipeline(folder: Path) -> Any:
    return transformers.pipeline("automatic-speech-recognition", model=str(folder / "model"), device="cpu")


def test_whisper_writes_what_the_pipeline_writes(whisper: Path) -> None:
    """Also of recordings of more than its window, which the pipeline refuses without timestamps."""
    sounds = spoken(0.7, 2, 3, 3.1, 5)
    pipeline = whisper_pipeline(whisper)
    wanted = [pipeline(each.copy())["text"] for each in sounds[:3]]
    with pytest.raises(ValueError, match="return_timestamps=True"):
        pipeline(sounds[3].copy())
    wanted += [pipeline(each.copy(), return_timestamps=True)["text"] for each in sounds[3:]]
    job = job_of(whisper)
    check_keys(job)
    assert load_scorer(model_job(job), job.models[0].path)(table_of(sounds))["text"].to_pylist() == wanted
    assert len(set(wanted)) == 5, wanted
    assert all(wanted)


@pytest.mark.parametrize("options", [{"language": "german"}, {"language": "fr", "task": "translate"}])
def test_whisper_is_told_language_and_task(whisper: Path, options: dict[str, str]) -> None:
    sounds = spoken(1, 3.5)
    pipeline = whisper_pipeline(whisper)
    wanted = [
        pipeline(sounds[0].copy(), generate_kwargs=dict(options))["text"],
        pipeline(sounds[1].copy(), return_timestamps=True, generate_kwargs=dict(options))["text"],
    ]
    job = job_of(whisper, options=options)
    assert load_scorer(model_job(job), job.models[0].path)(table_of(sounds))["text"].to_pylist() == wanted
    untold = job_of(whisper)
    assert load_scorer(model_job(untold), untold.models[0].path)(table_of(sounds))["text"].to_pylist() != wanted


def test_what_whisper_does_not_know_is_refused_before_a_row_is_scored(whisper: Path, tmp_path: Path) -> None:
    job = job_of(whisper, options={"language": "klingon"})
    with pytest.raises(ValueError, match="klingon"):
        load_scorer(model_job(job), job.models[0].path)(table_of(SOUNDS))
    save_whisper(tmp_path / "model", multilingual=False)
    for options in ({"language": "en"}, {"task": "transcribe"}):
        job = job_of(tmp_path, options=options)
        with pytest.raises(JobError, match=r"^model\.options\.\w+: .* knows one language only; remove the key"):
            load_scorer(model_job(job), job.models[0].path)
