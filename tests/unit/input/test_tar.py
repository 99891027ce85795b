"""Tar archives: samples are those that WebDataset reads, and what is wrong with an archive is its own error."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import InputCorrupt, ShardsFailed
from nightjar.inference.input.sources import lines
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

STORAGE = LakeStorage()


def archive(path: Path, *files: tuple[str, bytes], kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as out:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


def job(path: Path, **options: Any) -> Job:
    model = {"uses": "m:f", "outputs": {"y": "float64"}}
    given = {"uri": str(path), "format": "tar", "options": options}
    return parse_job({"name": "t", "input": given, "model": model, "output": {"uri": "out"}}, path.parent / "job.yaml")


def read(path: Path, **options: Any) -> RowsRead:
    entry = STORAGE.stat(str(path))
    here = job(path, **options)
    schema = describe(STORAGE, here, entry).schema
    return read_piece(STORAGE, here, Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, (0, 1)), schema)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_are_those_that_webdataset_reads(tmp_path: Path, kind: int) -> None:
    """Keys with folders and long names, endings with dots and capitals, samples that lack a file, other files."""
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset, of the extra `dev`")
    files = []
    for index in range(40):
        key = f"train/{'long' * 10}/{index:05}"
        files += [(f"{key}.JPG", bytes([index]) * 700), (f"{key}.cls", b"%d" % index)]
        files += [(f"{key}.seg.png", b"seg")] if index % 3 else []
        files += [(f"{key}.txt", f"größe {index}".encode()), (f"{key}.json", json.dumps({"i": index}).encode())]
    path = archive(tmp_path / "a.tar", ("README", b"no sample"), *files, (".hidden", b"nor this"), kind=kind)
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False))
    raw = read(path, decode=False).table.to_pylist()
    assert [{name: value for name, value in row.items() if value is not None} for row in raw] == [
        {name: value for name, value in row.items() if name not in ("__url__", "__local_path__")} for row in theirs
    ]
    decoded = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False).decode())
    ours = read(path).table
    assert ours["cls"].to_pylist() == [row["cls"] for row in decoded]
    assert ours["txt"].to_pylist() == [row["txt"] for row in decoded]
    assert [json.loads(text) for text in ours["json"].to_pylist()] == [row["json"] for row in decoded]
    assert {field.name: str(field.type) for field in ours.schema} == {
        "__key__": "string", "jpg": "binary", "cls": "int64", "seg.png": "binary", "txt": "string", "json": "string",
    }  # fmt: skip


def test_a_sample_that_is_not_what_its_ending_says_costs_its_row(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.tar", ("a.cls", b"1"), ("a.txt", b"x"), ("b.cls", b"cat"), ("b.txt", b"y"), ("c.txt", b"\xff"),
        ("d.cls", b" 4\n"), ("d.txt", b"z"), ("e.cls", b"1864829384729384729"), ("f.cls", b"-9223372036854775808"),
        ("g.cls", b"9223372036854775808"),
    )  # fmt: skip
    found = read(path)
    assert found.table["cls"].to_pylist() == [1, None, None, 4, 1864829384729384729, -(2**63), None]
    assert {row: failure.message for row, failure in found.failures.items()} == {
        1: f"{path}: b.cls: 'cat' is no int64; for bytes write input.options: {{decode: false}}",
        2: f"{path}: c.txt is not UTF-8 text: invalid start byte; save the file as UTF-8",
        6: f"{path}: g.cls: '9223372036854775808' is no int64; for bytes write input.options: {{decode: false}}",
    }
    assert not read(path, decode=False).failures


@pytest.mark.parametrize("cut", [1, 511, 512, 700, 1536, 2000, 2560, 3000])
def test_an_archive_that_was_cut_off_anywhere_is_told(tmp_path: Path, cut: int) -> None:
    """Also between two files, where Python's `tarfile` takes it for the end."""
    path = archive(tmp_path / "a.tar", *((f"{index}.bin", b"x" * 600) for index in range(3)))
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    entry = STORAGE.stat(str(path))
    piece = Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, (0, 1))
    with pytest.raises(InputCorrupt, match=rf"^{path}: "):
        read_piece(STORAGE, job(path), piece, describe(STORAGE, job(path), entry).schema)


def test_what_tarfile_passes_over_is_told(tmp_path: Path) -> None:
    """A damaged header in the middle, and a second archive behind the end: the samples there would be lost."""
    one = archive(tmp_path / "a.tar", ("a.bin", b"x" * 600), ("b.bin", b"y")).read_bytes()
    two = archive(tmp_path / "b.tar", ("c.bin", b"z")).read_bytes()
    path = tmp_path / "c.tar"
    path.write_bytes(one + two)
    with pytest.raises(InputCorrupt, match="cut off or damaged at byte 2560, or another archive follows"):
        read(path)
    path.write_bytes(one[:1536] + b"\x07" * 512 + one[2048:])
    with pytest.raises(InputCorrupt, match="cut off or damaged at byte 1536, or"):
        read(path)


def test_a_bad_sample_costs_its_row_by_archive_and_key(tmp_path: Path) -> None:
    """Two files of one ending, in small letters or not, and endings that no column can be named."""
    path = archive(
        tmp_path / "a.tar", ("a.x", b"1"), ("a.x", b"2"), ("b.x", b"3"), ("c.X", b"4"), ("c.x", b"5"), ("d.x", b"6"),
        ("d.__key__", b"7"), ("e.x", b"8"), ("e.", b"9"), ("f.x", b"0"),
    )  # fmt: skip
    found = read(path)
    assert found.table.schema.names == ["__key__", "x"]
    assert found.table["x"].to_pylist() == [None, b"3", None, None, None, b"0"]
    assert {row: failure.message for row, failure in found.failures.items()} == {
        0: f"{path}: the sample 'a' has two files that end with .x",
        2: f"{path}: the sample 'c' has two files that end with .x",
        3: f"{path}: d.__key__: no column can be named '__key__'; rename the file",
        4: f"{path}: e.: no column can be named ''; rename the file",
    }


@pytest.mark.parametrize("chunk", [1, 64 << 20])
def test_a_key_that_comes_back_costs_all_of_its_rows(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A straggler at the end, and samples that interleave; whichever chunks the rows are parsed in."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", chunk)
    path = archive(
        tmp_path / "a.tar", ("0.a", b"a0"), ("1.a", b"a1"), ("1.b", b"b1"), ("2.a", b"a2"), ("3.a", b"a3"),
        ("2.b", b"b2"), ("3.b", b"b3"), ("4.a", b"a4"), ("./0.b", b"b0"),
    )  # fmt: skip
    found = read(path)
    assert [row for row in range(len(found.table)) if row not in found.failures] == [1, 6]
    assert found.table.take([1, 6]).to_pylist() == [
        {"__key__": "1", "a": b"a1", "b": b"b1"}, {"__key__": "4", "a": b"a4", "b": None},
    ]  # fmt: skip
    assert found.failures[0].message == (
        f"{path}: the files of the sample './0' do not follow each other: write the archive sorted by name "
        "(tar --sort=name)"
    )
    archive(path, ("0.a", b"A0"), ("1.a", b"A1"), ("0.b", b"B0"), ("1.b", b"B1"))
    with pytest.raises(InputCorrupt, match="the sample '0' do not follow each other"):
        read(path)


def test_a_link_in_an_archive_costs_its_row_where_its_column_is_read(tmp_path: Path) -> None:
    """GNU tar writes a hard link by itself where two files are one on the disk."""
    path = archive(tmp_path / "a.tar", ("0.cls", b"1"), ("0.bin", b"x"), ("1.cls", b"2"))
    with tarfile.open(path, "a") as out:
        for name, kind in (("1.bin", tarfile.LNKTYPE), ("2.bin", tarfile.LNKTYPE), ("3.bin", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "0.bin"
            out.addfile(member)
    found = read(path)
    assert found.table["__key__"].to_pylist() == ["0", None, None, None]
    assert [found.failures[row].message.partition(": ")[2] for row in (1, 3)] == [
        f"{name}.bin: a link, or a sparse file; write the archive with tar --dereference --hard-dereference"
        for name in "13"
    ]
    assert [*found.failures] == [1, 2, 3]
    entry = STORAGE.stat(str(path))
    piece = Piece(entry.uri, entry.size, entry.version, 0, UNKNOWN, (0, 1))
    alone = read_piece(STORAGE, job(path), piece, pa.schema({"__key__": pa.string(), "cls": pa.int64()}))
    assert alone.table.to_pydict() == {"__key__": ["0", "1", "2", "3"], "cls": [1, 2, None, None]}


def test_a_name_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    """Also in the ending, which is then no column, and whichever columns are read; a link may lead to such a name."""
    path = archive(
        tmp_path / "a.tar", ("a.cls", b"1"), ("gr\udcf6\udcdfe.cls", b"2"), ("c.cls", b"3"), ("c.\udcff", b"x"),
        ("d.cls", b"4"), kind=tarfile.GNU_FORMAT,
    )  # fmt: skip
    with tarfile.open(path, "a", format=tarfile.GNU_FORMAT) as out:
        member = tarfile.TarInfo("e.cls")
        member.type, member.linkname = tarfile.SYMTYPE, "\udcff.cls"
        out.addfile(member)
    found = read(path)
    assert found.table.to_pydict() == {"__key__": ["a", None, None, "d", None], "cls": [1, None, None, 4, None]}
    assert {row: failure.message for row, failure in found.failures.items()} == {
        1: rf"{path}: gr\xf6\xdfe.cls: its name is not UTF-8; rename the file",
        2: rf"{path}: c.\xff: its name is not UTF-8; rename the file",
        4: f"{path}: e.cls: a link, or a sparse file; write the archive with tar --dereference --hard-dereference",
    }


def test_shards_are_scored_and_a_cut_one_costs_itself(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    (tmp_path / "data").mkdir()
    for shard in range(3):
        files = [
            (f"{shard}-{i:03}.{end}", data) for i in range(50) for end, data in (("id", b"%d" % i), ("bin", b"x" * i))
        ]
        archive(tmp_path / "data" / f"s{shard}.tar", *files)
    lake.write_model("def score(batch):\n    return {'score': [len(x) for x in batch['bin']]}\n")
    lake.write_job(
        input={"uri": "data/"}, model__features=["bin"], model__outputs={"score": "int64"}, carry=["__key__"]
    )
    lake.run()
    found = lake.published()
    assert found["__key__"].tolist() == [f"{shard}-{i:03}" for shard in range(3) for i in range(50)]
    assert found["score"].tolist() == [*range(50)] * 3
    assert found["_row"].tolist() == [*range(50)] * 3
    path = tmp_path / "data" / "s1.tar"
    path.write_bytes(path.read_bytes()[:-12_000])
    with pytest.raises(ShardsFailed, match=r"1 of \d shards has no result; the first is s1\.tar .*unexpected end"):
        lake.run(run_id="cut")
