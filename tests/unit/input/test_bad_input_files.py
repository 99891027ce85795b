"""A file that cannot be read costs itself, and whoever is on call learns that it can be replaced or removed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.flows.pages import standing
from nightjar.flows.pages.ending import after_failure
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import ShardsFailed
from support import Lake

CSV = "id,x\n" + "".join(f"{row},{row}.5\n" for row in range(2000))


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for row in range(20):
            for ending in ("id", "x"):
                member = tarfile.TarInfo(f"{row:03d}.{ending}")
                member.size = 3
                tar.addfile(member, io.BytesIO(f"{row:03d}".encode()))
    return packed.getvalue()


def deep(levels: int) -> bytes:
    """A Parquet file of one row, with a list of lists beside x."""
    kind: pa.DataType = pa.int64()
    for _ in range(levels):
        kind = pa.list_(kind)
    table, out = pa.table({"x": [2.0], "l": pa.nulls(1, kind)}), io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def drop_x(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns("x"), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def open_quote(path: Path) -> None:
    path.write_text('id,x\n1,"2\n3,4\n')


@pytest.mark.parametrize(
    ("ending", "content", "spoil"),
    [
        ("parquet", None, cut),
        ("parquet", None, drop_x),
        ("csv", CSV.encode(), open_quote),
        ("csv.gz", gzip.compress(CSV.encode()), cut),
        ("tar", archive(), cut),
    ],
    ids=["cut", "column", "quote", "gzip", "tar"],
)
def test_files_that_cannot_be_read_are_named_with_what_can_be_done_about_them(
    lake: Lake, ending: str, content: bytes | None, spoil: Callable[[Path], None]
) -> None:
    """In the closing lines and in `status`, for every format alike; a file that was replaced is not named."""
    lake.write_model(
        "import numpy as np\ndef score(batch):\n    return {'score': np.array([float(x) for x in batch['x']])}\n"
    )
    lake.ready(carry=[])
    data = lake.folder / "data"
    if content is not None:
        for path in data.iterdir():
            path.unlink()
        for index in range(4):
            (data / f"part-{index:02d}.{ending}").write_bytes(content)
    bad = [data / f"part-{index:02d}.{ending}" for index in (1, 2)]
    whole = [path.read_bytes() for path in bad]
    for path in bad:
        spoil(path)

    def told() -> str:
        with pytest.raises(ShardsFailed) as failed:
            lake.run(engine=LOCAL)
        request = lake.request(engine=LOCAL)
        (said,) = (each for each in after_failure(request, failed.value).splitlines() if each.startswith("  note"))
        sentence = said.removeprefix("  note       ")
        assert sentence in standing.status(request).notes
        return sentence

    assert told() == f"replace 2 files, or remove them from the input, then repeat the command: {bad[0]}, {bad[1]}"
    bad[0].write_bytes(whole[0])
    assert told() == f"replace {bad[1]}, or remove it from the input, then repeat the command"
    bad[1].unlink()
    assert lake.run(engine=LOCAL).publication.number == 1
    assert standing.status(lake.request()).notes == ()


@pytest.mark.parametrize(
    ("ending", "good", "bad"),
    [
        ("csv", "id,x\n1,2\n", f"id,{'x' * 140_000}\n1,2\n"),
        ("jsonl", '{"id": 1, "x": 2}\n', f'{{"id": 1, "x": {"[" * 500}{"]" * 500}}}\n'),
        ("jsonl", '{"id": 1, "x": 2}\n', f'{{"id": 1, "x": {"[" * 100_000}\n'),
        ("parquet", deep(1), deep(500)),
    ],
)  # fmt: skip
def test_bytes_that_no_library_decodes_are_their_files_fault(
    lake: Lake, ending: str, good: str | bytes, bad: str | bytes
) -> None:
    """The other files are planned and scored, whatever the library raises."""
    lake.ready(carry=[])
    data = lake.folder / "data"
    for path in data.iterdir():
        path.unlink()
    for name, content in (("a", good), ("b", bad)):
        (data / f"{name}.{ending}").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ShardsFailed):
        lake.run(engine=LOCAL)
    assert sum(record["rows_in"] for record in lake.records() if record["t"] == "receipt") == 1
    assert [record["cause"] for record in lake.records() if record["t"] == "failed"] == ["InputCorrupt"]


def test_a_predictor_that_fails_is_no_fault_of_a_file(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n"
        "    if batch['x'].max() >= 1000:\n"
        "        raise ValueError\n"
        "    return {'score': batch['x']}\n"
    )
    with pytest.raises(ShardsFailed) as failed:
        lake.ready().run(engine=LOCAL)
    assert "replace" not in after_failure(lake.request(engine=LOCAL), failed.value)
