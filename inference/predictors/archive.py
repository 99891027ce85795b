"""Checks an exported program (.pt2) before torch loads it, because `torch.export.load` unpickles.

According to `torch/export/pt2_archive/_package.py`, torch 2.13 unpickles: weights and constants whose config says
`use_pickle`, `custom_obj_*` and `opaque_obj_*` constants, sample inputs and old-style weights (`*.pt`; it tries with
`weights_only` first and then *without* it). It also loads native code from `data/aotinductor/`. A program that
`torch.export.save` writes has one pickle, its sample inputs, and this pickle only rebuilds tensors. So the archive may
contain only members of an allowlist. Each pickle among them is read opcode by opcode, and may name only torch's
functions that rebuild tensors. All zip readers must also read the archive alike: torch's reader and Python's disagree
about archives with two directories or with names that differ only by case.

This stops pickles and native libraries. It is no sandbox: torch interprets the program's graph and symbolic shapes, and
does not promise to withstand a graph written by an attacker. Take models only from people you trust.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

from nightjar.inference.errors import JobError

EXPORT_HINT = (
    "torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim('n')},)), "
    "'model.pt2')"
)
"""How a user makes a .pt2. The example needs more than one row, because one row would fix the batch size at 1."""

_PLAIN = re.compile(
    r"archive_format|archive_version|version|byteorder|\.format_version|\.storage_alignment|\.data/[\w.-]+"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+|models/[\w.-]+\.json|extra/.*"
)
_CONFIG = re.compile(r"data/(weights|constants)/[\w.-]+_config\.json")
_PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/[\w.-]+\.pt")
_TENSOR_FILE = re.compile(r"data/\d+|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id")
_PAYLOAD = re.compile(r"weight_\d+|tensor_\d+")

_REBUILDERS = {
    "collections OrderedDict",
    "torch Size",
    "torch device",
    "torch.nn.parameter Parameter",
    "torch.serialization _get_layout",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch.storage UntypedStorage",
    # A tensor with attributes, as Dim.DYNAMIC adds them to the example; torch's own weights_only allows it, too.
    "torch._tensor _rebuild_from_type_v2",
    "torch Tensor",
}
_TYPES = re.compile(r"torch (\w+Storage|bool|b?float\d+\w*|u?int\d+|complex\d+)")
# STACK_GLOBAL, INST, OBJ, EXT and NEWOBJ_EX are left out, because they can name or call things without a GLOBAL.
_OPCODES = re.compile(
    "PROTO|FRAME|STOP|MARK|POP|DUP|GLOBAL|REDUCE|NEWOBJ|BUILD|TUPLE[123]?|EMPTY_(TUPLE|LIST|DICT|SET)|LIST|DICT"
    "|APPENDS?|SETITEMS?|ADDITEMS|NONE|NEWTRUE|NEWFALSE|BININT[12]?|INT|LONG1?|BINFLOAT|FLOAT|(SHORT_)?BINUNICODE"
    "|UNICODE|(SHORT_)?BINSTRING|(SHORT_)?BINBYTES|BINPERSID|(LONG_)?BIN(GET|PUT)|GET|PUT|MEMOIZE"
)

_END, _LOCATOR, _END64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"


class _Refused(Exception):
    """The archive has a member that would run code; the message names it."""


def inspect_program(path: str, allow_pickle: bool = False, named: str | None = None) -> None:
    """Refuse an exported program that would unpickle code, without importing torch or reading its weights.

    named: what the job calls the file, where `path` is that of a copy.

    Raises:
        JobError: The file is not a .pt2, is unreadable or truncated, or has pickles or native code without
        `allow_pickle`.
    """
    named = named or path
    if Path(path).suffix != ".pt2":
        raise JobError(f"model.path: {named} is not a .pt2 exported program; make one with {EXPORT_HINT}")
    try:
        with Path(path).open("rb") as stream:
            _inspect(stream, allow_pickle)
    except _Refused as refusal:
        raise JobError(
            f"model.path: {named}: {refusal}, and loading that can run any code. Export the model again with "
            "torch.export.save, or, if you trust whoever made the file, set model.allow_pickle: true"
        ) from None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, KeyError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(f"model.path: {named} is not a readable .pt2 exported program: {reason}") from error


def _inspect(stream: IO[bytes], allow_pickle: bool) -> None:
    archive, members = _open(stream)
    if not any(name.startswith("models/") for name in members):
        raise ValueError(f"it holds no exported program; make one with {EXPORT_HINT}")
    if allow_pickle:
        return
    for name, info in members.items():
        if _CONFIG.fullmatch(name):
            _check_config(name, json.loads(archive.read(info)))
        elif _PICKLED.fullmatch(name):
            _check_tensor_file(name, archive.read(info))
        elif not _PLAIN.fullmatch(name):
            kind = "native code" if name.startswith("data/aotinductor/") else "a pickle or an unknown member"
            raise _Refused(f"it holds {kind} ({name})")


def _open(stream: IO[bytes]) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    """Open the archive, and check that its members are uncompressed, unique and in one root folder.

    Returns the archive, and its members by name without the root folder.
    """
    _check_directory(stream)
    archive = zipfile.ZipFile(stream)
    infos = archive.infolist()
    root = infos[0].filename.partition("/")[0] if infos else ""
    members = {info.filename.removeprefix(f"{root}/"): info for info in infos}
    for info in infos:
        if not info.filename.startswith(f"{root}/") or info.filename != info.orig_filename:
            raise ValueError(f"member {info.orig_filename!r} lies outside its root folder {root!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(f"member {info.filename!r} is compressed, which torch never does")
    if len({name.lower() for name in members}) != len(infos):  # torch's reader ignores case
        raise ValueError("two of its members have the same name")
    return archive, members


def _check_directory(stream: IO[bytes]) -> None:
    """Check that one zip directory precedes one end record at the file's end, so that no reader finds another."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - 98))
    tail = stream.read().rjust(98, b"\0")
    end64, locator, end = tail[:56], tail[56:76], tail[76:]
    if end[:4] != _END:
        raise ValueError("it is not a zip archive, or its end is missing")
    length, offset, comment = struct.unpack("<IIH", end[12:22])
    after = size - 22
    if locator[:4] == _LOCATOR:
        after = size - 98
        if end64[:4] != _END64 or struct.unpack("<Q", locator[8:16])[0] != after:
            raise ValueError("its zip64 directory is not where it should be")
        length, offset = struct.unpack("<QQ", end64[40:56])
    if comment or offset + length != after:
        raise ValueError("its zip directory is not where it should be")


def _check_config(name: str, config: Any) -> None:
    for tensor, payload in config["config"].items():
        if payload["use_pickle"] is not False or not _PAYLOAD.fullmatch(payload["path_name"]):
            raise _Refused(f"it holds {tensor!r} as a pickle ({name}: {payload['path_name']})")


def _check_tensor_file(name: str, content: bytes) -> None:
    """Check a file written by `torch.save`: it is empty, or a zip with one pickle that only rebuilds tensors."""
    if not content:
        return
    if not content.startswith(b"PK\x03\x04"):  # torch.load would read it as a bare pickle
        raise _Refused(f"it holds a bare pickle ({name})")
    archive, members = _open(io.BytesIO(content))
    for member, info in members.items():
        if member == "data.pkl":
            _check_pickle(name, archive.read(info))
        elif not _TENSOR_FILE.fullmatch(member):
            raise _Refused(f"it holds an unknown member ({name}: {member})")


def _check_pickle(name: str, content: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(content):
        if not _OPCODES.fullmatch(opcode.name):
            raise _Refused(f"it holds a pickle that does more than rebuild tensors ({name}: {opcode.name})")
        if opcode.name == "GLOBAL" and argument not in _REBUILDERS and not _TYPES.fullmatch(str(argument)):
            raise _Refused(f"it holds a pickle that calls {str(argument).replace(' ', '.')} ({name})")
