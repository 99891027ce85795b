"""Looks into the folder of a transformers model without a library: whether all of it is there, and whether it is whole.

The weights are safetensors; or `pytorch_model.bin`, of which transformers and vLLM unpickle tensors alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job

_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_TOKENISERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
TOKENISER, PROCESSOR = "tokenizer", "processor"
"""What reads the rows for a model: a tokenizer reads texts, a processor images or sounds."""

_HEADER_BYTES = 100_000_000
"""The longest header that safetensors itself reads."""

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_HOW = "write one with model.save_pretrained(folder) and tokenizer.save_pretrained(folder)"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder with config.json. named: how the job names it, for messages."""

    path: Path
    named: str
    config: dict[str, Any]


def look(job: Job, path: Path, named: str, *readers: str) -> ModelFolder:
    """Look at a model's folder: its configuration, the files of its weights, and those of what reads its rows.

    readers: `TOKENISER`, `PROCESSOR` or both; a tokenizer, if none is named.

    Raises:
        JobError: One is missing or cut.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise JobError(f"model.path: {named} {what}; the {job.model.uses} adapter needs a model's folder: {_HOW}")
    config = read_json(path / "config.json", f"{named}/config.json", f"so this is no model's folder: {_HOW}")
    if not isinstance(config.get("model_type"), str):
        raise JobError(f"model.path: {named}/config.json names no model_type, so this is no transformers model; {_HOW}")
    _check_weights(path, named)
    readers = readers or (TOKENISER,)
    if PROCESSOR in readers and not any((path / name).is_file() for name in _PROCESSORS):
        raise JobError(
            f"model.path: {named} has no {_PROCESSORS[0]}, so rows cannot be read for this model; save its processor "
            "into the same folder: processor.save_pretrained(folder)"
        )
    if TOKENISER in readers and not any((path / name).is_file() for name in _TOKENISERS):
        raise JobError(
            f"model.path: {named} has no tokenizer.json, so texts cannot be read for this model; save its tokenizer "
            "into the same folder: tokenizer.save_pretrained(folder)"
        )
    return ModelFolder(path, named, config)


def read_json(path: Path, named: str, otherwise: str = "") -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        JobError: There is no such file, or it holds no object. otherwise: what that means.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise TypeError("it holds no object")
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(
            f"model.path: {named} cannot be read: {reason}" + (f"; {otherwise}" if otherwise else "")
        ) from error
    return content


def _check_weights(path: Path, named: str) -> None:
    found = _weights(path, named, _SAFE)
    for name in found:
        try:
            check_safetensors(path / name)
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise JobError(f"model.path: {named}/{name} cannot be read: {reason}; copy or write it again") from error
    if not found and not _weights(path, named, _PICKLED):
        raise JobError(f"model.path: {named} has no weights ({_SAFE}); {_HOW}")


def _weights(path: Path, named: str, whole: str) -> list[str]:
    """The files of the weights: one, or those that an index names; none if there is neither."""
    if (path / whole).is_file():
        return [whole]
    index = f"{whole}.index.json"
    if not (path / index).is_file():
        return []
    places = read_json(path / index, f"{named}/{index}").get("weight_map")
    if not isinstance(places, dict) or not places:
        raise JobError(f"model.path: {named}/{index} names no files of weights")
    files = sorted({str(name) for name in places.values()})
    for name in files:
        if Path(name).name != name or not (path / name).is_file():
            raise JobError(f"model.path: {named}/{index} names {name!r}, which is not beside it")
    return files


def check_safetensors(path: Path) -> None:
    """Check that a file of safetensors has all the bytes that its header names.

    Source: "Format" in the README of safetensors: the header's length in 8 bytes, the header as JSON, the tensors.

    Raises:
        Exception: It has not, or is no such file.
    """
    with path.open("rb") as file:
        length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        if length > size - 8:
            raise ValueError("it is cut, or no file of safetensors")
        if length > _HEADER_BYTES:
            raise ValueError(f"its header has {length:,} bytes, and may have {_HEADER_BYTES:,}")
        header = json.loads(file.read(length))
    tensors = (each for name, each in header.items() if name != "__metadata__")
    needs = 8 + length + max((int(each["data_offsets"][1]) for each in tensors), default=0)
    if needs != size:
        raise ValueError(f"it has {size:,} bytes, and its header names {needs:,}")
