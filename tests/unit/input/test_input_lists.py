"""A list of inputs in a text file: what its lines mean, what is said of a wrong one, and that a run follows it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from nightjar.inference.errors import JobError
from nightjar.inference.identity.code import find_code
from nightjar.inference.input.files import input_files, with_list
from nightjar.inference.input.plan import discover
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.run.request import fixed, make_request
from nightjar.inference.run.waiting import awaited
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from support import Lake

STORAGE = LakeStorage()


def job(folder: Path, **keys: Any) -> Job:
    content = {
        "name": "t",
        "input": {"list": "names.txt", **keys},
        "model": {"uses": "m:f", "outputs": {"score": "float32"}},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


def write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": pa.array(range(3), pa.int64())}), path)


def found(folder: Path, content: str | bytes, **keys: Any) -> list[str]:
    """The files below the folder that such a list means."""
    (folder / "names.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return [entry.uri.removeprefix(f"{folder}/") for entry in input_files(STORAGE, job(folder, **keys))]


# ---- what a line means --------------------------------------------------------------------------------------------


def test_each_line_is_a_place_and_blank_lines_and_comments_are_none(tmp_path: Path) -> None:
    write(
        *(tmp_path / name for name in ("a.parquet", "in/b.parquet", "in/c.parquet", "p/d-1.parquet", "p/e-1.parquet"))
    )
    write(tmp_path / "not listed.parquet")
    lines = ["# tonight", "", "  a.parquet  ", "\t", f"{tmp_path}/in/", "p/d-*.parquet", "  # and no more"]
    wanted = ["a.parquet", "in/b.parquet", "in/c.parquet", "p/d-1.parquet"]
    assert found(tmp_path, "\n".join(lines)) == wanted
    assert found(tmp_path, b"\xef\xbb\xbf" + "\r\n".join(lines).encode()) == wanted, "as Windows writes it"


def test_what_is_listed_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet")
    assert found(tmp_path, "in/a.parquet\nin/\nin/a.parquet\n") == ["in/a.parquet"]


def test_braces_and_brackets_of_a_name_are_its_own(tmp_path: Path) -> None:
    """Such names are made by programs; a date is filled into the list's own name, not into its lines."""
    names = ["{date}.parquet", "[x].parquet", "a{{b.parquet"]
    write(*(tmp_path / name for name in names))
    assert sorted(found(tmp_path, "\n".join(names))) == sorted(names)


def test_the_lists_own_name_may_have_a_date(tmp_path: Path) -> None:
    given = job(tmp_path / "a{b", list="lists/{date:%Y}/{date}.txt").at("2026-03-09")
    assert given.input.list_ == f"{tmp_path}/a{{b/lists/2026/2026-03-09.txt"


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "names no files: each of its lines is blank or a comment"),
        ("\n# a\n \n", "names no files: each of its lines is blank or a comment"),
        ("a.parquet\n\ns3a://b/x\n", "line 3: 's3a://b/x' is no place"),
        ("a.parquet\nhttps://example.org/data/", "line 2: 'https://example.org/data/' is a folder of a web server"),
        (b"a.parquet\n\xff\xfe.parquet", "line 2: it is not UTF-8"),
        ("# x\na.parquet\npostgresql://h/d", "line 3: a database is the only input of a job; name it in input.uri"),
        ("a.parquet\nhttps://me:pw@h/a.csv", "line 2: a place has no name or password before an @"),
        ("# x\na.parquet\nnone.parquet", r"line 3: no files at .*/none\.parquet; take the line out, or mend it"),
        (
            "a.parquet\nother.*",
            r"line 2: no input files at .*/other\.\*, only other files, as other\.md; take the line out",
        ),
        ("# x\n\nnone.parquet", r"line 3: no files at .*/none\.parquet; take the line out, or mend it"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(tmp_path: Path, content: str | bytes, said: str) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "other.md").write_text("no input")
    with pytest.raises(JobError, match=rf"^input\.list: .*/names\.txt,? {said}"):
        found(tmp_path, content)


def test_a_list_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^input\.list: there is no list .*/names\.txt$"):
        discover(STORAGE, job(tmp_path))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"uri": "in/"}, "input: uri and list both say what the input is; keep one of them"),
        ({"list": ""}, r"input\.list: must not be empty"),
        ({"list": ["a", "b"]}, r"input\.list: must be text"),
        ({"list": "s3a://b/x"}, r"input\.list: 's3a://b/x' is no place"),
        (
            {"format": "sql", "options": {"table": "t", "key": "k"}},
            r"input\.list: a database is the only input of a job",
        ),
        ({"lines": [1]}, "unknown key 'input.lines'"),
    ],
)
def test_a_job_that_cannot_have_a_list_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        job(tmp_path, **keys)


def test_an_input_of_nothing_is_refused(tmp_path: Path) -> None:
    content = {"name": "t", "input": {}, "model": {"uses": "m:f", "outputs": {"y": "int8"}}, "output": {"uri": "out"}}
    with pytest.raises(JobError, match="input: uri is required, or list for a file that lists them"):
        parse_job(content, tmp_path / "job.yaml")


def test_a_list_of_files_without_rows_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    (tmp_path / "names.txt").write_text("a.parquet\n")
    given = with_list(STORAGE, job(tmp_path))
    with pytest.raises(JobError, match=r"^input\.list: no rows in 1 file at .*"):
        discover(STORAGE, given)


def test_tables_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("table")
    with pytest.raises(
        JobError, match=r"^input\.list: a list of Delta tables is not read; write one job for each table"
    ):
        list(input_files(STORAGE, job(tmp_path, format="delta")))


# ---- a run --------------------------------------------------------------------------------------------------------


def listed(lake: Lake, *names: str, **changes: Any) -> Lake:
    (lake.folder / "names.txt").write_text("".join(f"data/{name}.parquet\n" for name in names))
    lake.engine = "local"
    lake.write_job(input={"list": "names.txt", "shard_rows": 1000}, **changes)
    return lake


def test_a_changed_list_is_changed_input(lake: Lake) -> None:
    """Lines that are new are scored, those that stay are kept, those that are gone are dropped: as files are."""
    listed(lake.ready(), "part-00", "part-01").run()
    assert lake.published()["id"].tolist() == list(range(4000))
    assert lake.run().publication.number == 1, "nothing has changed"
    ran = listed(lake, "part-01", "part-03").run()
    assert (ran.scored.progress.reused_shards, ran.scored.progress.shards) == (2, 4)
    assert lake.published()["id"].tolist() == [*range(2000, 4000), *range(6000, 8000)]


def test_a_list_is_no_code(lake: Lake) -> None:
    """Although the code names it. Each night has another one."""
    listed(lake.ready(), "part-00")
    (lake.folder / "names.txt").write_text("data/part-00.parquet\n")
    lake.write_model("open('names.txt')\ndef score(batch):\n    return {'score': batch['x']}\n")
    assert set(find_code(with_list(STORAGE, lake.request().job)).files) == {"model.py"}


def test_a_run_waits_for_its_list(lake: Lake) -> None:
    listed(lake.ready(), "part-00", input__wait={"for": "1h", "until": 1})
    lake.write_job(input={"list": "names.txt", "wait": {"for": "1h", "until": "_SUCCESS"}})
    (lake.folder / "names.txt").rename(lake.folder / "late")
    request = lake.request()
    now = awaited(STORAGE, request.job)
    assert now is not None
    assert now.sentence == f"waiting for the list {lake.folder}/names.txt (it is not there), at most 1h"
    (lake.folder / "late").rename(lake.folder / "names.txt")
    now = awaited(STORAGE, request.job)
    assert now is not None
    assert now.sentence.startswith(f"waiting for _SUCCESS in {lake.folder}/names.txt (1 file there)")
    (lake.folder / "_SUCCESS").touch()
    assert awaited(STORAGE, request.job) is None


def test_a_wrong_list_is_told_before_anything_starts(lake: Lake) -> None:
    listed(lake.ready(), "part-00")
    (lake.folder / "names.txt").write_text("data/part-00.parquet\ns3a://b/x\n")
    with pytest.raises(JobError, match=r"^input\.list: .*names\.txt, line 2: 's3a://b/x' is no place"):
        fixed(make_request(lake.job_path))
    make_request(lake.job_path)  # a command that only looks needs no list


def test_a_list_inside_of_the_output_is_refused(lake: Lake) -> None:
    listed(lake.ready(), "part-00")
    (lake.folder / "names.txt").write_text("out/")
    request = lake.request()
    with pytest.raises(JobError, match=r"input\.list"):
        steps.discover(request)


class Together(LakeStorage):
    """A storage that answers only when eight ask at the same time."""

    barrier = threading.Barrier(8)

    def stat(self, uri: str) -> Entry:
        self.barrier.wait(30)
        return super().stat(uri)


def test_thousands_of_names_are_found_quickly(tmp_path: Path) -> None:
    """No pair of them is compared, and they are asked for at the same time."""
    count = 3000
    (tmp_path / "in").mkdir()
    names = [tmp_path / "in" / f"{number:05d}.parquet" for number in range(count)]
    for name in names:
        name.touch()
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in names))
    began = time.process_time()
    assert sum(1 for _ in input_files(STORAGE, job(tmp_path))) == count
    assert time.process_time() - began < 10, "comparing each with each takes a minute"
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in names[:96]))
    assert sum(1 for _ in input_files(Together(), job(tmp_path))) == 96
