"""`output.partition_by`: every promise about parts holds of the many files that a part has in hive folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import steps
from nightjar.inference.errors import AuditFailed, JobError, RunFailed, ShardsFailed
from nightjar.inference.output import hive
from nightjar.inference.output.outcomes import FILES
from nightjar.inference.records import Failed
from nightjar.inference.run.validating import _check_folders
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.validation.audit import Audited
from partitioned import ROWS, SOME, by_python, check, files_of, fill, in_data, ready, rows, wanted
from support import Lake
from writers import BEFORE_RECEIPTS, Point, die_at, publications_of

BAD_FOR_ONE = '''
def score(batch):
    """Twice x, but 3 of 600 rows are refused."""
    if (batch["x"] % 200 == 7).any():
        raise ValueError("not this row")
    return {"score": batch["x"] * 2}
'''


def test_a_part_stays_one_receipt_of_bounded_size(lake: Lake) -> None:
    many = [f"country number {index:03d}" for index in range(200)]
    ready(lake, countries=many)
    ran = lake.run()
    receipts = [record for record in lake.records() if record["t"] == "receipt"]
    assert len(receipts) == ran.scored.progress.shards == 6
    assert all(len(json.dumps(receipt)) < 2000 for receipt in receipts)
    assert len(files_of(lake)) == 1200
    sizes = sum(path.stat().st_size for path in [*files_of(lake), *(lake.revision() / "index").iterdir()])
    assert sum(receipt["data"]["size"] for receipt in receipts) == sizes


BETWEEN_FILES = Point("between the files of a part", "score", "write", "*/data/*", 3, scoring=True)
BEFORE_INDEX = Point("between the files and their part", "score", "write", "*/index/*", 2, scoring=True)


@pytest.mark.chaos
@pytest.mark.parametrize("point", [BETWEEN_FILES, BEFORE_INDEX, BEFORE_RECEIPTS], ids=str)
def test_a_run_killed_among_the_files_of_a_part_publishes_each_row_once(
    lake: Lake, tmp_path: Path, point: Point
) -> None:
    ready(lake)
    die_at(lake.request(), point, tmp_path)
    assert not publications_of(lake, "2026-11-19")
    left = set(files_of(lake))
    assert left
    lake.run()
    check(lake)
    assert not left & set(files_of(lake)) or point is not BETWEEN_FILES
    assert not list((lake.revision() / "data").rglob(".*"))


def test_a_second_attempt_at_a_shard_leaves_one(lake: Lake) -> None:
    """Both wrote all of their files; the first receipt counts, and the other's files are swept."""
    ready(lake)
    request = lake.request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    twin = {}
    for path in [*files_of(lake), *(lake.revision() / "index").iterdir()]:
        shard, epoch, _ = path.stem.split("-")
        twin[path] = path.with_name(f"{shard}-{epoch}-00000000.parquet")
        twin[path].write_bytes(path.read_bytes())
    began = files_of(lake)[0]
    (began.parent / f".nightjar-{began.name}-{'0' * 32}.tmp").write_bytes(b"half")
    verdict = steps.validate(request, scored, found)
    steps.publish_run(request, scored, verdict)
    check(lake)
    assert not any(path.exists() for path in twin.values())
    assert not list((lake.revision() / "data").rglob(".*"))


def test_a_continued_night_takes_over_the_files_of_what_did_not_change(lake: Lake) -> None:
    ready(lake)
    lake.run()
    before = {path.stat().st_ino for path in files_of(lake)}
    (lake.folder / "data" / "1.parquet").unlink()
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 3
    check(lake, range(ROWS), number=2)
    assert {path.stat().st_ino for path in files_of(lake, 2)} <= before
    assert {path.stem for path in files_of(lake, 2)} == {path.stem for path in (lake.revision(2) / "index").iterdir()}


@pytest.mark.parametrize("later", [["day"], ["country", "day"], []])
def test_another_layout_reuses_nothing(lake: Lake, later: list[str]) -> None:
    """A published revision has one layout."""
    ready(lake)
    lake.run()
    ready(lake, later or None)
    if not later:
        lake.write_job(input__shard_rows=200, carry=["id", "country", "day", "store", "late"])
    ran = lake.run()
    assert ran.scored.again == ("output.partition_by changed in the job: 6 of 6 shards are scored again",)
    assert rows(by_python(lake)) == wanted()
    layouts = {tuple(hive.texts_of(hive.folder_of(f"data/{name}"))) for name in in_data(lake, 2)}
    assert layouts == {tuple(later or [""])}


# ---- the audit -----------------------------------------------------------------------------------------------


def swap(files: list[Path], index: Path) -> None:
    """Two files of one part change places, with as many rows each."""
    first, second = files[-2:]
    aside = index.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def lose(files: list[Path], index: Path) -> None:
    files[0].unlink()


def move(files: list[Path], index: Path) -> None:
    """A file lies in the folder of another value."""
    other = files[0].parent.with_name("country=xx")
    other.mkdir()
    files[0].rename(other / files[0].name)


def cut(files: list[Path], index: Path) -> None:
    files[0].write_bytes(files[0].read_bytes()[:-7])


def spoil(files: list[Path], index: Path) -> None:
    raw = bytearray(files[0].read_bytes())
    raw[40] ^= 1
    files[0].write_bytes(raw)


def without_index(files: list[Path], index: Path) -> None:
    index.unlink()


def spoilt_index(files: list[Path], index: Path) -> None:
    index.write_bytes(index.read_bytes() + b"\0")


HARMS: list[Callable[[list[Path], Path], None]] = [swap, lose, move, cut, spoil, without_index, spoilt_index]


def test_any_harm_to_a_file_is_found_and_costs_its_shard_alone(lake: Lake) -> None:
    """Seven of nine shards are harmed, each in another way: seven findings, and the other two stay."""
    ready(lake)
    fill(lake.folder, files=3)
    request = lake.request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    indices = sorted((lake.revision() / "index").iterdir())
    assert len(indices) == 9
    for harm, index in zip(HARMS, indices, strict=False):
        harm([path for path in files_of(lake) if path.stem == index.stem], index)
    with pytest.raises(
        AuditFailed, match=r"7 findings: .*Repeat the command: it scores these 7 shards again"
    ) as failed:
        steps.validate(request, scored, found)
    assert failed.value.revoked == 7
    assert not (lake.out / "publications").exists()
    assert lake.run().scored.progress.reused_shards == 2
    check(lake, range(3 * ROWS))


def test_rows_that_are_left_out_are_in_no_folder(lake: Lake) -> None:
    """Quarantined, unfit for a folder's name, or not asked for: every other row is there once."""
    countries = [*SOME, "n" * 300, hive.NULL]
    lake.write_model(BAD_FOR_ONE)
    ready(lake, countries=countries, input__where="id < 1000", retry__max_quarantined=0.5)
    lake.run()
    unfit, refused = {i for i in range(1000) if i % 6 in (4, 5)}, {i for i in range(1000) if i % 200 == 7}
    assert rows(by_python(lake)) == wanted(countries, (i for i in range(1000) if i not in unfit | refused))
    lost = lake.quarantined()
    assert set(lost["input"].map(lambda row: row["id"])) == unfit | refused
    said = sorted(lost[lost["error"] == "FoldersInvalid"]["message"].unique())
    assert said == [
        f"output.partition_by: 'country' is the text {hive.NULL}, by which readers know a null",
        f"output.partition_by: 'country' is too long for the name of a folder (at most 255 bytes): {'n' * 60} …",
    ]


@pytest.mark.parametrize("crumbs", [False, True])
def test_rows_unfit_for_a_folder_count_against_what_a_shard_may_lose(lake: Lake, crumbs: bool) -> None:
    """Also in a suspect, whose files are scored one after the other."""
    lake.write_model("def score(batch):\n    return {'score': ['n' * 300 if x < 5 else 'de' for x in batch['x']]}\n")
    lake.write_files(files=2, rows=20, row_group=20)
    lake.write_job(model__outputs={"score": "string"}, output={"uri": "out/", "partition_by": ["score"]})
    (shard,) = lake.planned().shards()
    worker = ShardWorker(replace(lake.worker_spec(), budget=3))
    *_, last = worker.process([Assignment(shard, Attempt(2, crumbs=crumbs))])
    assert isinstance(last, Failed)
    assert (last.cause, last.terminal) == ("OverBudget", True)
    assert last.message.startswith(
        "5 rows failed where at most 3 may (retry.max_quarantined); the first is row 0: Folders"
    )


def test_a_shard_whose_rows_are_all_in_quarantine_has_no_file(lake: Lake) -> None:
    countries = list(islice(cycle(["n" * 300]), 200)) + list(islice(cycle(["de"]), 1000))
    ready(lake, countries=countries, retry__max_quarantined=0.5, rescore__share=1.0)
    lake.run()
    assert len(files_of(lake)) == 5
    assert len(list((lake.revision() / "index").iterdir())) == 6
    assert by_python(lake).num_rows == 1000


@pytest.mark.parametrize("lineage", [True, False])
def test_what_is_scored_again_is_compared_row_by_row(lake: Lake, lineage: bool) -> None:
    lake.write_model(BAD_FOR_ONE)
    ready(lake, ["country", "late"], rescore__share=1.0, output__lineage=lineage, retry__max_quarantined=0.1)
    ran = lake.run()
    (gate,) = [gate for gate in ran.verdict.gates if gate.name == "rescore"]
    assert "1,194 rows" in gate.sentence or "1194" in gate.sentence, gate.sentence
    assert gate.passed


def test_a_model_that_answers_differently_is_found(lake: Lake) -> None:
    """The check above says something only because of this one."""
    lake.write_model(
        "import time\n\n\ndef score(batch):\n"
        "    changing = time.monotonic_ns() % 1_000_003 if len(batch['x']) > 32 else 0  # not in preflight\n"
        "    return {'score': batch['x'] * 0 + changing}\n"
    )
    ready(lake, rescore__share=1.0)
    with pytest.raises(RunFailed, match=r"'score' was"):
        lake.run()


def test_a_folder_is_named_by_an_output_and_by_null_where_its_model_failed(lake: Lake) -> None:
    lake.write_model(
        "def kind(batch):\n"
        "    if (batch['x'] % 200 == 7).any():\n"
        "        raise ValueError('not this row')\n"
        "    return {'kind': ['even' if x % 2 == 0 else 'odd' for x in batch['x']]}\n\n\n"
        "def twice(batch):\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    models = [
        {"name": "k", "uses": "model:kind", "features": ["x"], "outputs": {"kind": "string"}, "batch_size": 64},
        {"name": "t", "uses": "model:twice", "features": ["x"], "outputs": {"score": "float32"}, "batch_size": 64},
    ]
    ready(lake, ["k_kind"], model=None, models=models, retry__max_quarantined=0.1)
    lake.run()
    found = by_python(lake).select(["id", "k_kind", "t_score"]).sort_by("id").to_pylist()
    kinds = ["even", "odd"]
    assert found == [
        {"id": i, "k_kind": None if i % 200 == 7 else kinds[i % 2], "t_score": i * 2.0} for i in range(2 * ROWS)
    ]


def test_a_gate_names_a_row_that_it_refuses(lake: Lake) -> None:
    ready(lake, checks=[{"column": "score", "max": 500}])
    with pytest.raises(RunFailed) as failed:
        lake.run()
    assert "--row 251 " in f"{failed.value} ", failed.value


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"by": ["cuntry"]}, r"'cuntry' is not a column of the output; did you mean 'country'\?"),
        ({"by": ["x"]}, "'x' is a column of the input that is not carried; add it to carry"),
        ({"by": ["score"]}, "'score' is float32; folders are named by texts, integers, bools and dates"),
        (
            {"by": ["vector"], "model__outputs": {"score": "float32", "vector": "list<int64>"}},
            "'vector' is list<int64>; folders are named by texts, integers, bools and dates",
        ),
        (
            {"by": ["a=b"], "model__outputs": {"score": "float32", "a=b": "string"}},
            "the name 'a=b' has a character that no folder's name can have as it is",
        ),
        (
            {"by": ["_kind"], "model__outputs": {"score": "float32", "_kind": "string"}},
            "'_kind' begins with '_', and pandas, pyarrow and Hive skip folders of such names",
        ),
        ({"by": ["country"], "output__uri": "out/country=de/"}, r"output\.uri has a folder country=… already"),
        ({"by": ["country"], "output__uri": "out/COUNTRY=de/"}, r"folder COUNTRY=… .* from the column 'country'"),
        ({"by": ["country"], "output__uri": "out/Day=1/"}, r"folder Day=… .* from the column 'day'"),
        (
            {
                "by": ["country", "day"],
                "carry": ["country", "day"],
                "output__lineage": False,
                "model__outputs": {"kind": "string"},
                "more": ["kind"],
            },
            "these are all columns of the output, and none is left for the files",
        ),
        ({"by": ["_file"]}, r"output\.partition_by: '_file' is a lineage column"),
        ({"by": ["country", "country"]}, "'country' is listed twice"),
    ],
)
def test_what_cannot_name_folders_is_refused_before_anything_is_scored(
    lake: Lake, changes: dict[str, Any], said: str
) -> None:
    by = [*changes.pop("by"), *changes.pop("more", [])]
    with pytest.raises(JobError, match=said) as refused:
        ready(lake, by, **changes).run()
    assert "output.partition_by" in str(refused.value)
    assert not list(lake.folder.rglob("runs"))


def test_a_column_of_too_many_values_publishes_nothing_and_is_named(lake: Lake) -> None:
    many = [f"{index}" for index in range(2 * ROWS)]
    ready(lake, countries=many, input__shard_rows=100)
    with pytest.raises(ShardsFailed) as failed:
        lake.run()
    said = "output.partition_by: this would make 1,100 folders or more, and a night may have 1,000: 'country' has 1,100"
    assert f"{said} distinct values here; leave it out" in str(failed.value)
    assert not (lake.out / "publications").exists()


def test_the_folders_of_a_night_are_counted_over_all_workers() -> None:
    """Each of two workers saw fewer than are allowed."""
    parts = [[{"name": f"data/a=1/b={index}/x.parquet"} for index in range(low, low + 600)] for low in (0, 500)]
    _check_folders(Audited(files=[pa.array(parts[:1], FILES)]))
    with pytest.raises(RunFailed, match=r"1,100 folders or more, and a night may have 1,000: 'b' has 1,100 distinct"):
        _check_folders(Audited(files=[pa.array([part], FILES) for part in parts]))
