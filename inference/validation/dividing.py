"""Divides rows by the hash of their key among files on the local disk, so that rows with the same key can be brought
together a division at a time, at any size, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import StorageError
from nightjar.inference.metrics.keyhash import hashes
from nightjar.inference.storage.local import storage_error
from nightjar.inference.validation.joinkeys import whole

BLOCK_ROWS = 1 << 20
"""The most rows that are divided, or looked up, at a time; and about the rows of a division."""

BLOCK_BYTES = 1 << 27
"""The same in bytes, for wide rows."""

_MOST = 256
"""The most divisions, each of which is an open file. Rows of more than so many blocks need more memory."""


def divisions(rows: int, size: int = 0) -> int:
    """The number of divisions for so many rows, which have so many bytes together."""
    return min(_MOST, max(1, -(-rows // BLOCK_ROWS), -(-size // BLOCK_BYTES)))


def divide(tables: Iterable[pa.Table], folder: Path, into: int) -> None:
    """Write rows to one file for each division that has any, by its index. The first column is the key; rows whose key
    is null are in one division.

    Raises:
        StorageError: The disk took no more.
    """
    with _on_disk(folder), ExitStack() as stack:
        folder.mkdir()
        files: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        for block in _gathered(tables):
            which = (hashes([whole(block.column(0))], block.num_rows) % np.uint64(into)).astype(np.uint8)
            order = np.argsort(which, kind="stable")
            rows = block.take(pa.array(order)) if into > 1 else block
            edges = np.searchsorted(which[order], np.arange(into + 1))
            for index, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
                if low == high:
                    continue
                if index not in files:
                    file = stack.enter_context(pa.OSFile(str(folder / str(index)), "wb"))
                    files[index] = stack.enter_context(pa.ipc.new_stream(file, rows.schema))
                files[index].write_table(rows.slice(low, high - low))


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = storage_error(error, str(folder))
        raise StorageError(f"{found}; the environment variable TMPDIR names another place for it") from error


def blocks(folder: Path, division: int) -> Iterator[pa.Table]:
    """The rows of a division, in blocks; none if it has no file. folder: as given to `divide`."""
    path = folder / str(division)
    if path.exists():
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as batches:
            yield from _gathered(pa.Table.from_batches([batch]) for batch in batches)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables together, as ones of about `BLOCK_ROWS` rows, or `BLOCK_BYTES`."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= BLOCK_ROWS or size >= BLOCK_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held and (last := pa.concat_tables(held)).num_rows:
        yield last
