"""Formats that are not read yet, told by the names of their files: what to say where somebody has nothing else.

A suffix that some source reads is none of them, whatever stands here.
"""

from __future__ import annotations

import re
from collections import Counter

from nightjar.inference.input.sources.reading import format_of, source_named
from nightjar.inference.job.seams import SOURCES

_FORMATS = {
    ".arrow": "Arrow IPC",
    ".avro": "Avro",
    ".csv": "CSV",
    ".feather": "Arrow IPC",
    ".ipc": "Arrow IPC",
    ".json": "JSON",
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".orc": "ORC",
    ".tsv": "CSV",
    ".txt": "text",
    ".xls": "Excel",
    ".xlsx": "Excel",
}
_SUFFIX = re.compile(r"(\.[a-z][a-z0-9]{0,7})(\.(?:gz|bz2|zst|zstd|xz|lz4|snappy))?$")
_SHOWN = 3


def suffix(name: str) -> str:
    """What the end of a file's name tells of its format, without the compression: `.csv` of `A.CSV.gz`; or nothing."""
    found = _SUFFIX.search(name.lower())
    return found[1] if found else ""


def advice(name: str) -> str:
    """What to do about a file of this name; empty where its name does not tell a format."""
    kind = suffix(name)
    known = "" if format_of(kind) else _FORMATS.get(kind, "")
    return f"{known} is not supported yet: Nightjar reads {_readable()}, so convert the files first" if known else ""


def found_instead(kinds: Counter[str]) -> str:
    """What a place holds that has no file of a known format. kinds: how many files it has of each suffix."""
    shown = (_files(kind, count) for kind, count in kinds.most_common(_SHOWN))
    found = f", only {', '.join(shown)}{' …' if len(kinds) > _SHOWN else ''}"
    if said := next(filter(None, (advice(kind) for kind, _ in kinds.most_common())), ""):
        return f"{found}. {said}"
    return f"{found}; if they hold {_readable()}, set input.format to {' or '.join(SOURCES)}"


def _readable() -> str:
    return " and ".join(source_named(name).name for name in SOURCES)


def _files(kind: str, count: int) -> str:
    named = f"{kind} file" if kind else "file"
    return f"{count:,} {named}{'' if count == 1 else 's'}{'' if kind else ' of other names'}"
