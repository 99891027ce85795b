"""Writes down what is said in recordings, with transformers' own pipeline. Imports torch.

The pipeline gets one recording at a time: beside a longer one it would be padded, and some models hear that.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.arrays import NUMERIC, Array, to_array
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.ontorch import device_of_job
from nightjar.inference.predictors.transformers.loading import failed, load_model, quiet, speech_model
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder

WHISPER = "whisper"
"""The kind of model that can be told a language and a task, and that hears a window of 30 seconds at once."""


class Transcriber:
    """A model of speech, as a `Predictor`."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        (self._name,) = job.model.outputs
        options = job.model.options
        device = device_of_job(job)
        with quiet(job) as transformers:
            model = load_model(job, folder, speech_model(transformers, folder))
            self._how = _choices(job, folder, model)
            try:
                given = {"local_files_only": True, "trust_remote_code": False}
                self._pipeline = transformers.pipeline(
                    "automatic-speech-recognition",
                    model=model,
                    tokenizer=transformers.AutoTokenizer.from_pretrained(folder.path, **given),
                    feature_extractor=transformers.AutoFeatureExtractor.from_pretrained(folder.path, **given),
                    device=device,
                )
            except Exception as error:
                raise failed(folder, f"the processor of {folder.named}", error) from error
        rate = self._pipeline.feature_extractor.sampling_rate
        if (asked := options.get("sampling_rate", rate)) != rate:
            raise JobError(
                f"model.options.sampling_rate: {asked}, and {folder.named} takes {rate} samples a second; convert the "
                "recordings in a preprocess"
            )
        whisper = folder.config["model_type"] == WHISPER
        self._window: int | None = self._pipeline.feature_extractor.n_samples if whisper else None
        self.device = str(device)
        self._turn = threading.Lock()  # the pipeline keeps count of its calls

    def prepare(self, batch: Any) -> list[Array]:
        """The samples of each recording."""
        ((name, column),) = features.few(batch, "speech-recognition", "one column of sound").items()
        return [_samples(name, value) for value in to_array(column)]

    def predict(self, prepared: list[Array]) -> dict[str, Any]:
        """Call the model for each recording. Returns the texts."""
        with self._turn, torch.inference_mode():
            return {self._name: [self._text(samples) for samples in prepared]}

    def _text(self, samples: Array) -> str:
        # Whisper goes through a longer recording by the times that it writes down between its sentences.
        longer = self._window is not None and len(samples) > self._window
        timed = {"return_timestamps": True} if longer else {}
        text: str = self._pipeline(samples, **self._how, **timed)["text"]
        return text


def _choices(job: ModelJob, folder: ModelFolder, model: Any) -> dict[str, Any]:
    """What the options choose, as arguments of the pipeline. Whisper itself refuses an unknown language."""
    chosen = {key: job.model.options[key] for key in ("language", "task") if key in job.model.options}
    if not chosen:
        return {}
    key = next(iter(chosen))
    if folder.config["model_type"] != WHISPER:
        raise JobError(f"model.options.{key}: only Whisper has a choice, not {folder.named}")
    if not getattr(model.generation_config, "is_multilingual", True):
        raise JobError(f"model.options.{key}: {folder.named} knows one language only; remove the key")
    return {"generate_kwargs": chosen}


def _samples(name: str, value: Any) -> Array:
    """Samples of one channel in float32."""
    if value is None:
        raise ValueError(f"feature {name!r} has a null, which is no recording")
    samples = np.asarray(value)
    if samples.dtype.kind not in NUMERIC or samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"feature {name!r} holds {samples.dtype} of shape {samples.shape}, and not the samples of one channel"
        )
    return samples.astype(np.float32)
