"""Finds the files of an ONNX model, and checks without a library that they are all there and that the model is whole.

A model's file is one protobuf message, `ModelProto` of `onnx.proto`. Only the lengths of its fields are read, and the
few fields named here, so that a file of gigabytes takes no longer than its number of weights needs. Weights of
subgraphs and of the attributes of operators are not looked at.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_IR_VERSION, _GRAPH, _OPSETS = 1, 7, 8
"""Fields of ModelProto."""

_INITIALIZER = 5
"""Of GraphProto."""

_EXTERNAL_DATA = 13
"""Of TensorProto: pairs of a key (1) and a value (2)."""

Field = tuple[int, int, int, int]
"""Number, wire type, first byte of the content, first byte after it."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's file, and the files of its weights as it names them, relative to its folder."""

    model: Path
    weights: tuple[str, ...]

    def real_folder(self) -> Path | None:
        """The folder in which all weights really lie, links followed; None if there is no such folder."""
        here = self.model.parent.resolve()
        ends = {name: f"/{os.path.normpath(name)}" for name in self.weights}
        folders = {Path(os.path.realpath(here / name).removesuffix(end)) for name, end in ends.items()} or {here}
        return next(iter(folders)) if len(folders) == 1 and all(folder.is_dir() for folder in folders) else None


def find_files(job: ModelJob, path: str) -> ModelFiles:
    """Find the model's file and the files of its weights, and look whether all are there.

    Raises:
        JobError: One is missing, or the model's file is none, or not a whole one.
    """
    model = _model_file(job, Path(path))
    named = str(job.model.path).rstrip("/") + (f"/{model.relative_to(path)}" if model != Path(path) else "")
    try:
        weights = tuple(external_files(str(model)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(f"model.path: {named} is not a readable ONNX model: {reason}; export it again") from error
    for name in weights:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise JobError(
                f"model.path: {named} keeps weights in {name!r}, outside of its own folder; save both in one"
            )
        if model == Path(path):
            raise JobError(
                f"model.path: {named} keeps weights in {name!r} beside it; name the folder of both, so that both are "
                "part of the model: " + (str(Path(named).parent) if "://" not in named else named.rpartition("/")[0])
            )
        if not (model.parent / name).is_file():
            raise JobError(f"model.path: {named} keeps weights in {name!r}, which is not beside it")
    return ModelFiles(model, weights)


def _model_file(job: ModelJob, path: Path) -> Path:
    name = job.model.options.get("file")
    if not path.is_dir():
        if name is not None:
            raise JobError(f"model.options.file: model.path is no folder but the file {job.model.path}")
        return path
    found = sorted(each.relative_to(path).as_posix() for each in path.rglob("*.onnx") if each.is_file())
    if name is not None and name not in found:
        raise JobError(f"model.options.file: {job.model.path} holds no {name}" + _listed(found))
    if name is None and len(found) != 1:
        what = f"{len(found)} .onnx files" if found else "no .onnx file"
        also = f"{_listed(found)}; say which in model.options.file" if found else ""
        raise JobError(f"model.path: the folder {job.model.path} holds {what}{also}")
    return path / (name or found[0])


def _listed(found: Sequence[str]) -> str:
    return f": {', '.join(found[:10])}" if found else ""


def external_files(path: str) -> list[str]:
    """The files beside an ONNX file that have weights of it, as it names them, each once.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no ONNX file, or not a whole one.
    """
    with Path(path).open("rb") as stream:
        if not stream.read(1):
            raise ValueError("it is empty")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _external(data)


def _external(data: mmap.mmap) -> list[str]:
    model = list(_fields(data, 0, len(data)))
    wires = {number: wire for number, wire, _, _ in model}
    if (wires.get(_IR_VERSION), wires.get(_GRAPH), wires.get(_OPSETS)) != (_VARINT, _BYTES, _BYTES):
        raise ValueError("it holds no ONNX model")
    found: dict[str, None] = {}
    for tensor in _inner(data, model, _GRAPH, _INITIALIZER):
        for entry in _inner(data, [tensor], _INITIALIZER, _EXTERNAL_DATA):
            pair = {number: data[first:last] for number, _, first, last in _fields(data, *entry[2:])}
            if pair.get(1) == b"location":
                found[pair.get(2, b"").decode()] = None
    return list(found)


def _inner(data: mmap.mmap, outer: list[Field], number: int, wanted: int) -> Iterator[Field]:
    """The fields `wanted` of each message that is a field `number` of the outer one."""
    for each, wire, first, last in outer:
        if each == number and wire == _BYTES:
            yield from (field for field in _fields(data, first, last) if field[:2] == (wanted, _BYTES))


def _fields(data: mmap.mmap, place: int, end: int) -> Iterator[Field]:
    """The fields of the message that lies between two bytes."""
    while place < end:
        key, first = _varint(data, place, end)
        number, wire = key >> 3, key & 7
        if not number:
            raise ValueError("it holds no ONNX model")
        if wire == _BYTES:
            length, first = _varint(data, first, end)
        elif wire == _VARINT:
            length = _varint(data, first, end)[1] - first
        elif wire in (_EIGHT, _FOUR):
            length = 8 if wire == _EIGHT else 4
        else:
            raise ValueError("it holds no ONNX model")
        place = first + length
        if place > end:
            raise ValueError("it is no ONNX model, or its end is missing")
        yield number, wire, first, place


def _varint(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """A number of up to ten bytes, and the first byte after it."""
    value = 0
    for index in range(10):
        if place + index >= end:
            raise ValueError("it is no ONNX model, or its end is missing")
        byte = data[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise ValueError("it holds no ONNX model")
