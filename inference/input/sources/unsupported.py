"""Hints about file formats that are not supported, for an input without any supported file.

The names of the files tell the format. A suffix that some source reads is not treated as unsupported.
"""

from __future__ import annotations

import re
from collections import Counter

from nightjar.inference.input.sources.reading import format_of, source_named
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.messages import listed

_FORMATS = {".avro": "Avro", ".json": "JSON", ".orc": "ORC", ".xls": "Excel", ".xlsx": "Excel"}
_SUFFIX = re.compile(r"(\.[a-z][a-z0-9]{0,7})(\.(?:gz|bz2|zst|zstd|xz|lz4|snappy))?$")
_SHOWN = 3


def suffix(name: str) -> str:
    """The end of a file's name that tells its format; possibly empty. A compression belongs to it only if it is the
    reason why the file is not read: `.csv.bz2`, but `.orc` for `A.ORC.gz`.
    """
    found = _SUFFIX.search(name.lower())
    return "" if found is None else found[0 if format_of(found[1]) else 1]


def advice(name: str) -> str:
    """What to do about a file of this name; empty if its name does not tell a format."""
    kind = suffix(name)
    if format_of(kind):
        return ""
    if known := _FORMATS.get(kind, ""):
        readable = listed((source_named(name).name for name in SOURCES), "and")
        return f"{known} is not supported yet: Nightjar reads {readable}, so convert the files first"
    inner, _, packed = kind.rpartition(".")
    return (
        f"{source_named(told).name} files are not read from .{packed}: unpack them"
        if (told := format_of(inner))
        else ""
    )


def found_there(kinds: Counter[str]) -> str:
    """Name the files at a place without input, and advise about their format. kinds: the number of files by suffix."""
    if not kinds:
        return ""
    shown = (_files(kind, count) for kind, count in kinds.most_common(_SHOWN))
    said = next(filter(None, (advice(kind) for kind, _ in kinds.most_common())), "")
    return f", only {', '.join(shown)}{' …' if len(kinds) > _SHOWN else ''}{f'. {said}' if said else ''}"


def found_instead(kinds: Counter[str]) -> str:
    """The same for an input without any file of a known format, with a hint about `input.format`."""
    found = found_there(kinds)
    if any(map(advice, kinds)):
        return found
    formats = [name for name in SOURCES if source_named(name).of_files]
    held = listed((source_named(name).name for name in formats), "or")
    return f"{found}; if they hold {held}, set input.format to {listed(formats, 'or')}"


def _files(kind: str, count: int) -> str:
    named = f"{kind} file" if kind else "file"
    return f"{count:,} {named}{'' if count == 1 else 's'}{'' if kind else ' of other names'}"
