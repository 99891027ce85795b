"""Formats that are not read yet, told by the names of their files: what to say where somebody has nothing else."""

from __future__ import annotations

import re
from collections import Counter

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
    known = _FORMATS.get(suffix(name))
    return f"{known} is not supported yet: Nightjar reads Parquet, so convert the files first" if known else ""


def found_instead(kinds: Counter[str]) -> str:
    """What a place holds that has no Parquet files. kinds: how many files it has of each suffix."""
    shown = (_files(kind, count) for kind, count in kinds.most_common(_SHOWN))
    found = f", only {', '.join(shown)}{' …' if len(kinds) > _SHOWN else ''}"
    if said := next(filter(None, (advice(kind) for kind, _ in kinds.most_common())), ""):
        return f"{found}. {said}"
    return f"{found}; if they hold Parquet, set input.format: parquet, or name one by its path"


def _files(kind: str, count: int) -> str:
    named = f"{kind} file" if kind else "file"
    return f"{count:,} {named}{'' if count == 1 else 's'}{'' if kind else ' of other names'}"
