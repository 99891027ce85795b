"""Input uri → files, with row counts and fingerprints.

Nothing here decides what a shard is (see `plan`): a `Discovery` is the lake as it was found tonight.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import InputCorrupt, JobError, Missing
from nightjar.inference.job import Job
from nightjar.inference.sources import parquet
from nightjar.inference.storage import Entry, Storage, is_local

_READERS = 32
_WINDOW = 4096
_GLOB = re.compile(r"[*?\[]")

FILES = pa.schema(
    [
        ("uri", pa.string()),
        ("size", pa.int64()),
        ("version", pa.string()),
        ("rows", pa.list_(pa.int64())),
        ("sizes", pa.list_(pa.int64())),
        ("error", pa.string()),
    ]
)
"""One line per file; `rows` and `sizes` per row group; `error` when the footer could not be read."""


@dataclass(frozen=True)
class Discovery:
    """The lake as it was found: `files` (schema `FILES`, sorted by uri) and the columns of the first readable one."""

    files: pa.Table
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Rows of every file whose footer could be read."""
        return sum(sum(map(int, rows)) for chunk in self.files["rows"].chunks for rows in chunk.to_pylist())

    @property
    def unreadable(self) -> int:
        """Files whose footer could not be read."""
        return self.files.num_rows - int(self.files["error"].null_count)


def discover(storage: Storage, job: Job) -> Discovery:
    """List the input and read every footer.

    Raises:
        JobError: there is nothing to score, or no file is readable; names `input.uri`.
    """
    entries = input_files(storage, job)
    schema: pa.Schema | None = None
    batches: list[pa.RecordBatch] = []
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(islice(entries, _WINDOW)):
            footers = list(pool.map(lambda entry: _footer(storage, entry), window))
            schema = schema or next((f.schema for f in footers if isinstance(f, parquet.Footer)), None)
            lines = [_line(entry, footer) for entry, footer in zip(window, footers, strict=True)]
            batches.append(pa.RecordBatch.from_pylist(lines, schema=FILES))
    files = pa.Table.from_batches(batches, schema=FILES)
    if schema is None:
        first = files["error"][0].as_py()
        raise JobError(f"input.uri: none of the {files.num_rows} files can be read; the first: {first}")
    discovery = Discovery(files, schema)
    if not discovery.rows and not discovery.unreadable:
        raise JobError(f"input.uri: the {files.num_rows} files under {job.input.uri} hold no rows")
    return discovery


def first_schema(storage: Storage, job: Job) -> pa.Schema:
    """The columns of the first readable file: enough to check a job without reading every footer."""
    error = ""
    for entry in input_files(storage, job):
        footer = _footer(storage, entry)
        if isinstance(footer, parquet.Footer):
            return footer.schema
        error = error or footer
    raise JobError(f"input.uri: no file can be read; the first: {error}")


def input_files(storage: Storage, job: Job) -> Iterator[Entry]:
    """The input's files, sorted by uri. Hidden ones (a name starting with `.` or `_`) are no input.

    Raises:
        JobError: nothing matches; names `input.uri`, and what was found there instead.
    """
    uri = job.input.uri
    exact = _stat(storage, uri)
    if exact is not None:
        yield exact
        return
    base, pattern = _split_glob(uri)
    found, others = 0, 0
    for entry in storage.list(base):
        name = entry.uri[len(base.rstrip("/")) + 1 :]
        if any(part.startswith((".", "_")) for part in name.split("/")):
            continue
        if pattern.fullmatch(name) and (job.input.format or name.lower().endswith(parquet.SUFFIXES)):
            found += 1
            yield entry
        else:
            others += 1
    if not found:
        also = f" ({others} other files; name one by its path, or set input.format)" if others else ""
        raise JobError(f"input.uri: no Parquet files at {uri}{also}")


def _stat(storage: Storage, uri: str) -> Entry | None:
    if uri.endswith("/"):
        return None
    try:
        return storage.stat(uri)
    except Missing:
        return None


def _split_glob(uri: str) -> tuple[str, re.Pattern[str]]:
    """The folder to list, and the pattern of names below it."""
    scheme, _, path = ("", "", uri) if is_local(uri) else uri.partition("://")
    parts = path.rstrip("/").split("/")
    depth = next((i for i, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    base = "/".join(parts[:depth])
    rest = "/".join(parts[depth:])
    return (f"{scheme}://{base}" if scheme else base or "/"), re.compile(_translate(rest) if rest else ".*")


def _translate(glob: str) -> str:
    """A glob over whole paths as a regular expression: `*` stays in one folder, `**` crosses them."""
    out = ""
    for token in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", glob):
        out += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token) or (
            f"[{'^' + token[2:-1] if token[1] == '!' else token[1:-1]}]" if token.startswith("[") else re.escape(token)
        )
    return out


def _footer(storage: Storage, entry: Entry) -> parquet.Footer | str:
    try:
        return parquet.read_footer(storage, entry.uri)
    except InputCorrupt as error:
        return str(error)


def _line(entry: Entry, footer: parquet.Footer | str) -> dict[str, Any]:
    line: dict[str, Any] = {"uri": entry.uri, "size": entry.size, "version": entry.version}
    if isinstance(footer, parquet.Footer):
        return line | {"rows": footer.rows, "sizes": footer.sizes, "error": None}
    return line | {"rows": [], "sizes": [], "error": footer}
