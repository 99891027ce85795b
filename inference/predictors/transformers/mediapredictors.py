"""The predictor of each task of images and sound, with transformers' own processors. Imports torch.

Each image is prepared alone, and images that are of one size then are computed together, without padding. So what is
made of an image does not depend on the images beside it. For the same reason a recording is written down by itself:
beside a longer one it would be padded, and some models hear that.
"""

from __future__ import annotations

import inspect
import io
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from nightjar.inference.errors import JobError
from nightjar.inference.input.sources.image import eight_bits
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.arrays import Array, to_array
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.ontorch import device_of_job
from nightjar.inference.predictors.transformers.labels import LabelHead
from nightjar.inference.predictors.transformers.loading import (
    load_image_processor,
    load_model,
    loaded,
    quiet,
    speech_model,
)
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder
from nightjar.inference.predictors.transformers.tasks import THRESHOLD

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Channels → Pillow's name of them."""


def pictures(batch: Any, uses: str) -> list[Any]:
    """The images of any kind of batch with one column, each in RGB."""
    ((name, column),) = features.few(batch, uses, "images").items()
    values = to_array(column)
    return [_picture(name, value) for value in (values if values.ndim > 1 else values.tolist())]


def _picture(name: str, value: Any) -> Any:
    from PIL import Image

    if value is None:
        raise ValueError(f"feature {name!r} has a null, which is no image")
    if isinstance(value, bytes | bytearray | memoryview):
        with Image.open(io.BytesIO(value), formats=("JPEG", "PNG", "WEBP")) as opened:
            return eight_bits(opened).convert("RGB")
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in {2, 3}:
        what = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"feature {name!r} holds {what}, and not height × width × channels of uint8, or a file's bytes")
    channels = value.shape[2] if value.ndim == 3 else 1
    if channels not in _MODES:
        raise ValueError(f"feature {name!r} has {channels} channels in its last dimension, and not 1, 3 or 4")
    plain = value[:, :, 0] if channels == 1 and value.ndim == 3 else value
    return Image.fromarray(np.ascontiguousarray(plain), _MODES[channels]).convert("RGB")


Keep = Callable[[list[int], Any], None]
"""Gets the indices of images, and what the model returns for them."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """The model's input for one image, and the size of the image itself."""

    tensors: dict[str, torch.Tensor]
    height: int
    width: int


class ImageModel:
    """A model and its processor: the base of the predictors of images. Several threads may call it at once.

    config: the model's. device: where it is.
    """

    def __init__(self, job: ModelJob, folder: ModelFolder, auto: str) -> None:
        """auto: the class of transformers that loads the model."""
        self._place = device_of_job(job)
        self._uses = job.model.uses
        with quiet() as transformers:
            self._model = load_model(job, folder, getattr(transformers, auto)).to(self._place)
            self.processor = load_image_processor(folder)
        self._takes = set(inspect.signature(self._model.forward).parameters)
        self._dtype = self._model.dtype
        self.config = self._model.config
        self.device = str(self._place)

    def prepare(self, batch: Any) -> list[Pixels]:
        """Decode, scale and normalise each image."""
        return [self._prepared(picture) for picture in pictures(batch, self._uses)]

    def each(self, images: list[Pixels], keep: Keep) -> None:
        """Call the model until `keep` has got what it returns for each image."""
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for row, image in enumerate(images):
            alike[tuple((name, tensor.shape) for name, tensor in image.tensors.items())].append(row)
        for rows in alike.values():
            names = images[rows[0]].tensors
            given = {name: torch.cat([images[row].tensors[name] for row in rows]).to(self._place) for name in names}
            with torch.inference_mode():
                keep(rows, self._model(**given))

    def _prepared(self, picture: Any) -> Pixels:
        made = self.processor(images=picture, return_tensors="pt")
        tensors = {name: tensor for name, tensor in made.items() if name in self._takes}
        return Pixels({name: self._cast(tensor) for name, tensor in tensors.items()}, picture.height, picture.width)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


class ImageClassifier(ImageModel):
    """A model with one number for each of its labels."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        super().__init__(job, folder, "AutoModelForImageClassification")
        self._head = LabelHead(job, self.config)

    def predict(self, prepared: list[Pixels]) -> dict[str, Any]:
        found = torch.empty((len(prepared), self._head.width))

        def keep(rows: list[int], raw: Any) -> None:
            found[rows] = self._head.scores(raw.logits).cpu()

        self.each(prepared, keep)
        return self._head.of(found.numpy())


_FOUND = {
    "labels": pa.list_(pa.string()),
    "scores": pa.list_(pa.float32()),
    "boxes": pa.list_(pa.list_(pa.float32(), 4)),  # left, top, right, bottom, in pixels of the image
}


class Detector(ImageModel):
    """A model that finds any number of objects in an image."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        super().__init__(job, folder, "AutoModelForObjectDetection")
        self._labels = self.config.id2label
        self._threshold = job.model.options.get("threshold", THRESHOLD)
        if not hasattr(self.processor, "post_process_object_detection"):
            raise JobError(f"model.path: the image processor of {folder.named} is not one for object-detection")

    def predict(self, prepared: list[Pixels]) -> dict[str, Any]:
        made: dict[str, list[Any]] = {name: [[]] * len(prepared) for name in _FOUND}

        def keep(rows: list[int], raw: Any) -> None:
            sizes = [(prepared[row].height, prepared[row].width) for row in rows]
            finish = self.processor.post_process_object_detection
            for row, each in zip(rows, finish(raw, self._threshold, sizes), strict=True):
                made["labels"][row] = [str(self._labels[place]) for place in each["labels"].tolist()]
                made["scores"][row] = each["scores"].tolist()
                made["boxes"][row] = each["boxes"].tolist()

        self.each(prepared, keep)
        return {name: pa.array(made[name], kind) for name, kind in _FOUND.items()}


WHISPER = "whisper"
"""The kind of model that can be told a language and a task, and that hears a window of 30 seconds at once."""


class Transcriber:
    """A model of speech, as a `Predictor`."""

    def __init__(self, job: ModelJob, folder: ModelFolder) -> None:
        options = job.model.options
        device = device_of_job(job)
        with quiet() as transformers:
            model = load_model(job, folder, speech_model(transformers, folder))
            self._how = _choices(job, folder, model)
            self._pipeline = transformers.pipeline(
                "automatic-speech-recognition",
                model=model,
                tokenizer=loaded(folder, transformers.AutoTokenizer, "the tokenizer of "),
                feature_extractor=loaded(folder, transformers.AutoFeatureExtractor, "the processor of "),
                device=device,
            )
        rate, source = self._pipeline.feature_extractor.sampling_rate, job.whole.input
        if source.format == "audio" and job.preprocess is None and source.options.get("sample_rate") != rate:
            raise JobError(
                f"input.options.sample_rate: write {rate}, to which all recordings are resampled; {folder.named} takes "
                "so many samples a second"
            )
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
        ((name, column),) = features.few(batch, "speech-recognition", "sound").items()
        return [_samples(name, value) for value in to_array(column)]

    def predict(self, prepared: list[Array]) -> list[str]:
        with self._turn, torch.inference_mode():
            return [self._text(samples) for samples in prepared]

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
    if samples.dtype.kind != "f" or samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"feature {name!r} holds {samples.dtype} of shape {samples.shape}, and not the samples of one channel, "
            "floats from -1 to 1"
        )
    return samples.astype(np.float32)
