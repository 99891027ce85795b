"""Shards: every row of every file in exactly one, whatever the sizes; and what stands stays as it was."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.input.plan import _BATCH, DECODED_BYTES, FILES, LARGE, LEAST_BYTES, Discovery, Plan, make_plan
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import Preprocess
from nightjar.inference.records import UNKNOWN, UNREADABLE, Piece

Lines = list[dict[str, Any]]


def job(shard_rows: int | None = None, actors: int = 2) -> Job:
    content = {
        "name": "t",
        "input": {"uri": "data/", **({"shard_rows": shard_rows} if shard_rows else {})},
        "model": {"uses": "m:f", "outputs": {"score": "float32"}},
        "output": {"uri": "out"},
        "resources": {"actors": actors},
    }
    return parse_job(content, Path("/lake/job.yaml"))


def line(name: str, rows: list[int], sizes: list[int] | None = None, version: str = "1") -> dict[str, Any]:
    sizes = [100 * count for count in rows] if sizes is None else sizes
    uri = f"/lake/data/{name}.parquet"
    return {"uri": uri, "size": sum(sizes) + 1, "version": version, "rows": rows, "sizes": sizes, "error": None}


def unreadable(name: str) -> dict[str, Any]:
    return {**line(name, []), "error": "not a Parquet file"}


def lake(lines: Lines) -> Discovery:
    files = pa.Table.from_pylist(sorted(lines, key=lambda each: str(each["uri"])), schema=FILES)
    return Discovery(files, pa.schema([("x", pa.float32())]))


def check_cover(plan: Plan, lines: Lines) -> None:
    """Each readable file's rows once and in order, with the row groups that hold them; each unreadable file once."""
    pieces = [piece for shard in plan.shards() for piece in shard.pieces]
    for each in lines:
        ours = sorted((p for p in pieces if p.uri == each["uri"]), key=lambda p: p.first_row)
        if each["error"] is not None:
            assert ours == [Piece(each["uri"], each["size"], each["version"], 0, UNREADABLE, (0, 0))]
            continue
        edges = list(itertools.accumulate(each["rows"], initial=0))
        first = 0
        for piece in ours:
            low, high = piece.row_groups
            assert piece.first_row == first, "each piece begins where the one before ended"
            first += piece.rows
            assert edges[low] <= piece.first_row <= first <= edges[high]
            assert high - low == 1 or (piece.first_row, first) == (edges[low], edges[high]), "only one unit is cut"
            assert (piece.size, piece.version) == (each["size"], each["version"])
        assert first == sum(each["rows"])
    assert {p.uri for p in pieces} <= {str(each["uri"]) for each in lines}
    assert len(set(plan.ids())) == len(plan), "no id twice"
    assert plan.rows == sum(sum(each["rows"]) for each in lines)


GROUPS = st.lists(
    st.tuples(st.integers(0, 2_000_000), st.integers(0, 4_000_000_000)),
    max_size=8,
)


@st.composite
def lakes(draw: st.DrawFn) -> Lines:
    """Files large, small, empty and unreadable."""
    lines: Lines = []
    for index, groups in enumerate(draw(st.lists(st.none() | GROUPS, max_size=12))):
        name = f"f{index:02d}"
        if groups is None:
            lines.append(unreadable(name))
        else:
            lines.append(line(name, [rows for rows, _ in groups], [size for _, size in groups]))
    return lines


SHARD_ROWS = st.none() | st.integers(300_000, 5_000_000)
ACTORS = st.integers(1, 64)


@given(lakes(), SHARD_ROWS, ACTORS)
def test_every_row_is_in_exactly_one_shard(lines: Lines, shard_rows: int | None, actors: int) -> None:
    """Promise 1 begins here: nothing of the lake is left out or planned twice."""
    check_cover(make_plan(lake(lines), job(shard_rows, actors), "model"), lines)


@given(lakes(), st.integers(300_000, 5_000_000))
def test_a_shard_is_no_larger_than_asked(lines: Lines, shard_rows: int) -> None:
    plan = make_plan(lake(lines), job(shard_rows), "model")
    assert all(shard.rows <= shard_rows for shard in plan.shards())


def cuts(lines: Lines, shard_rows: int | None = None) -> list[tuple[int, int, tuple[int, int]]]:
    """First row, rows and units of each piece."""
    plan = make_plan(lake(lines), job(shard_rows), "model")
    check_cover(plan, lines)
    return [(p.first_row, p.rows, p.row_groups) for shard in plan.shards() for p in shard.pieces]


def test_a_row_group_with_more_rows_than_asked_is_cut_into_equal_parts() -> None:
    """And only that one: the others stay whole, beside each other if they fit."""
    assert cuts([line("a", [10, 25, 4, 6, 0])], 10) == [
        (0, 10, (0, 1)),
        (10, 8, (1, 2)),
        (18, 8, (1, 2)),
        (26, 9, (1, 2)),
        (35, 10, (2, 5)),
    ]


def test_a_row_group_four_times_as_large_as_a_shard_is_cut() -> None:
    """A shard is a sixteenth of a lake of one file, as each of two actors gets eight, and a part has 2 MiB or more."""
    whole = 32 * LEAST_BYTES
    assert [rows for _, rows, _ in cuts([line("a", [1_000_000], [whole])])] == [62_500] * 16
    assert len(cuts([line("a", [1_000_000], [LARGE * LEAST_BYTES])])) == 1
    assert len(cuts([line("a", [1_000_000], [LARGE * LEAST_BYTES + 1])])) == LARGE + 1
    # In a large lake a shard has 128 MiB.
    many = [line(f"b{index}", [1_000_000], [LARGE * DECODED_BYTES]) for index in range(16)]
    assert len(cuts(many)) == 16
    assert len(cuts([*many, line("c", [1_000_000], [8 * DECODED_BYTES])])) == 16 + 8


def test_a_unit_has_no_more_parts_than_rows() -> None:
    assert [rows for _, rows, _ in cuts([line("a", [3], [100 * LEAST_BYTES])])] == [1, 1, 1]


def test_units_of_a_format_that_cannot_be_divided_stay_whole() -> None:
    lines = [{**line("a", [25, 25]), "uri": "/lake/data/a.jsonl"}]
    assert cuts(lines, 10) == [(0, 25, (0, 1)), (25, 25, (1, 2))]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 30))
def test_if_units_cannot_be_divided_no_piece_but_the_first_begins_with_an_empty_one(
    rows: list[int], shard_rows: int
) -> None:
    """A reader of such a format may need to know by the unit's number where rows begin."""
    lines = [{**line("a", rows), "uri": "/lake/data/a.csv"}]
    for first, count, (low, high) in cuts(lines, shard_rows) if any(rows) else ():
        assert (first, count) == (sum(rows[:low]), sum(rows[low:high]))
        assert rows[low] or not low
        assert count <= shard_rows or len([each for each in rows[low:high] if each]) == 1


@given(lakes(), SHARD_ROWS, SHARD_ROWS, ACTORS, ACTORS)
def test_continuing_with_other_actors_or_shard_sizes_keeps_every_shard(
    lines: Lines, before_rows: int | None, after_rows: int | None, before_actors: int, after_actors: int
) -> None:
    """What was committed stays committed: boundaries, and so ids, are those of the earlier plan."""
    readable = [each for each in lines if each["error"] is None]
    before = make_plan(lake(readable), job(before_rows, before_actors), "model")
    after = make_plan(lake(readable), job(after_rows, after_actors), "model", before)
    assert after.ids() == before.ids()


@given(lakes(), SHARD_ROWS, st.data())
def test_changed_new_and_deleted_files_cost_only_the_shards_they_are_in(
    lines: Lines, shard_rows: int | None, data: st.DataObject
) -> None:
    before = make_plan(lake(lines), job(shard_rows), "model")
    fates = {each["uri"]: data.draw(st.sampled_from(["stays", "changes", "goes"])) for each in lines}
    after_lines = [
        {**each, "version": "2"} if fates[each["uri"]] == "changes" else each
        for each in lines
        if fates[each["uri"]] != "goes"
    ]
    after_lines += [line(f"new{index}", [5, 5]) for index in range(data.draw(st.integers(0, 3)))]
    after = make_plan(lake(after_lines), job(shard_rows), "model", before)
    check_cover(after, after_lines)
    untouched = {
        shard.id
        for shard in before.shards()
        if shard.rows != UNREADABLE and all(fates[piece.uri] == "stays" for piece in shard.pieces)
    }
    assert untouched <= set(after.ids())
    changed = {each["uri"] for each in lines if fates[each["uri"]] != "stays"}
    stale = {shard.id for shard in before.shards() if any(piece.uri in changed for piece in shard.pieces)}
    assert not stale & set(after.ids()), "no result of a changed or deleted file is used again"


@given(lakes(), SHARD_ROWS)
def test_another_model_makes_every_shard_another(lines: Lines, shard_rows: int | None) -> None:
    """Promise 4: the same boundaries, but no id in common."""
    before = make_plan(lake(lines), job(shard_rows), "one")
    after = make_plan(lake(lines), job(shard_rows), "two")
    assert [shard.pieces for shard in after.shards()] == [shard.pieces for shard in before.shards()]
    assert not set(after.ids()) & set(before.ids())


def test_shards_keep_their_ids_where_the_inodes_are_others() -> None:
    """As after the folder was mounted again."""
    before = make_plan(lake([line("a", [5], version="17+20+3+1")]), job(), "one")
    now = lake([line("a", [5], version="17+20+4+2")])
    assert make_plan(now, job(), "one", before).ids() == before.ids() != make_plan(now, job(), "one").ids()


@given(lakes(), SHARD_ROWS, st.integers(1, 30_000_000))
def test_a_limited_plan_is_the_first_shards_that_hold_the_rows(
    lines: Lines, shard_rows: int | None, limit: int
) -> None:
    plan = make_plan(lake(lines), job(shard_rows), "model")
    limited = plan.limited(limit)
    assert limited.ids() == plan.ids()[: len(limited)]
    if plan.rows >= limit:
        assert limited.rows >= limit
        without_last = [max(rows, 0) for rows in limited.table["rows"].to_pylist()[:-1]]
        assert sum(without_last) < limit
    else:
        assert len(limited) == len(plan)


@given(lakes(), SHARD_ROWS, st.integers(1, 30_000_000))
def test_continuing_a_limited_plan_covers_the_whole_lake(lines: Lines, shard_rows: int | None, limit: int) -> None:
    """A file of which only the beginning was planned is planned anew, not taken for whole."""
    limited = make_plan(lake(lines), job(shard_rows), "model").limited(limit)
    check_cover(make_plan(lake(lines), job(shard_rows), "model", limited), lines)


@given(lakes(), SHARD_ROWS)
def test_a_plan_survives_being_stored(lines: Lines, shard_rows: int | None) -> None:
    plan = make_plan(lake(lines), job(shard_rows), "model")
    assert Plan.from_bytes(plan.to_bytes()).table.equals(plan.table)
    assert all(plan.shard(shard.id) == shard for shard in plan.shards())


def test_a_plan_of_many_shards_holds_them_all_and_stays_small() -> None:
    """More shards than one batch of lines; compressed, a shard takes less than its id does."""
    files = [line(f"{index:05d}", [7], [70]) for index in range(_BATCH + 3)]
    plan = make_plan(lake(files), job(7), "model")
    assert [shard.pieces[0].uri for shard in plan.shards()] == [each["uri"] for each in files]
    stored = plan.to_bytes()
    assert len(stored) < len(plan) * len(plan.ids()[0])
    assert Plan.from_bytes(stored).table.equals(plan.table)


@given(lakes())
def test_the_plan_is_in_input_order(lines: Lines) -> None:
    """By file and row: the order of parts in reports and of rows for readers."""
    firsts = [(s.pieces[0].uri, s.pieces[0].first_row) for s in make_plan(lake(lines), job(100_000), "m").shards()]
    assert firsts == sorted(firsts)


def test_a_million_tiny_files_are_packed_a_thousand_at_a_time() -> None:
    """A shard of tens of thousands would take an actor all night, and the audit for ever."""
    plan = make_plan(lake([line(f"{i:04d}", [1], [1]) for i in range(2500)]), job(shard_rows=10**6), "model")
    assert [len(shard.pieces) for shard in plan.shards()] == [1000, 1000, 500]


def test_a_file_of_more_than_half_a_shard_is_one_alone() -> None:
    """And smaller ones are packed together."""
    lines = [line("a", [51]), line("b", [49]), line("c", [50]), line("d", [1])]
    plan = make_plan(lake(lines), job(shard_rows=100), "model")
    assert [[Path(piece.uri).stem for piece in shard.pieces] for shard in plan.shards()] == [["a"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("batch", "shards"),
    [
        (64, [128] * 6 + [32]),
        (100, [100] * 8),
        (99, [150] * 5 + [50]),  # 198 would be too large a shard
        (101, [100] * 8),  # no shard has a whole batch
        ("auto", [100] * 8),
    ],
)
def test_files_of_one_row_are_packed_in_whole_batches(batch: int | str, shards: list[int]) -> None:
    """Not by rows that the user asked for, and not files of several rows."""
    asked = job(actors=1)
    asked = asked.model_copy(update={"models": (asked.models[0].model_copy(update={"batch_size": batch}),)})
    images = lake([line(f"{number:04}", [1], [1000]) for number in range(800)])
    assert [shard.rows for shard in make_plan(images, asked, "model").shards()] == shards
    by_rows = asked.model_copy(update={"input": asked.input.model_copy(update={"shard_rows": 100})})
    assert [shard.rows for shard in make_plan(images, by_rows, "model").shards()] == [100] * 8
    pairs = lake([line(f"{number:04}", [2], [2000]) for number in range(400)])
    assert [shard.rows for shard in make_plan(pairs, asked, "model").shards()] == [100] * 8


def test_without_a_size_of_batches_no_shard_is_made_larger_for_whole_ones() -> None:
    images = lake([line(f"{number:04}", [1], [1000]) for number in range(808)])
    assert [shard.rows for shard in make_plan(images, job(actors=1), "model").shards()] == [101] * 8


def test_splitting_a_packed_shard_gives_one_per_file_and_loses_nothing() -> None:
    lines = [line(f"f{index}", [10]) for index in range(6)]
    plan = make_plan(lake(lines), job(30), "model")
    assert [len(shard.pieces) for shard in plan.shards()] == [3, 3]
    after, parts = plan.with_splits([plan.ids()[0], "one of an earlier plan"], "model")
    assert list(parts) == [plan.ids()[0]]
    alone = make_plan(lake(lines), job(10), "model")
    assert [part.id for part in parts[plan.ids()[0]]] == alone.ids()[:3], "as if each file had been planned alone"
    assert [shard.pieces[0].uri for shard in parts[plan.ids()[0]]] == [each["uri"] for each in lines[:3]]
    check_cover(after, lines)
    assert [len(shard.pieces) for shard in after.shards()] == [1, 1, 1, 3]
    both, _ = plan.with_splits(plan.ids(), "model")
    check_cover(both, lines)
    assert [len(shard.pieces) for shard in both.shards()] == [1] * 6
    assert after.with_splits(plan.ids(), "model")[0].ids() == both.ids()


def test_a_repaired_file_is_planned_anew() -> None:
    """An unreadable file has a shard of its own, which fails; once it can be read it gets its own shards."""
    before = make_plan(lake([unreadable("a"), line("b", [10])]), job(10), "model")
    lines = [{**line("a", [7, 7]), "size": 1}, line("b", [10])]
    after = make_plan(lake(lines), job(10), "model", before)
    check_cover(after, lines)
    assert before.ids()[1] in after.ids()


@pytest.mark.parametrize(("actors", "shards"), [(1, 8), (2, 16), (4, 32)])
def test_by_default_each_actor_has_eight_shards(actors: int, shards: int) -> None:
    plan = make_plan(lake([line(f"f{index:03d}", [10] * 4) for index in range(64)]), job(actors=actors), "model")
    assert len(plan) == shards


@pytest.mark.parametrize(("placement", "shards"), [("staged", 32), ("fused", 16)])
def test_by_default_each_worker_of_a_cpu_stage_has_eight_shards(placement: str, shards: int) -> None:
    lines = [line(f"f{index:03d}", [10] * 4) for index in range(64)]
    step = Preprocess(uses="m:prep", placement=placement, workers=4)
    plan = make_plan(lake(lines), job(actors=2).model_copy(update={"preprocess": step}), "model")
    assert len(plan) == shards


def test_by_default_a_shard_is_at_most_128_mib_decoded() -> None:
    lines = [line(f"f{index}", [1000] * 100, [32 << 20] * 100) for index in range(8)]
    plan = make_plan(lake(lines), job(actors=1), "model")
    assert {shard.rows for shard in plan.shards()} == {4000}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux shows them")
def test_a_plan_is_read_without_threads_of_arrow(tmp_path: Path) -> None:
    """One that lets go of a Python object while a short command ends aborts it: `nightjar files` did."""
    path = tmp_path / "plan.parquet"
    path.write_bytes(Plan.of([]).to_bytes())
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from nightjar.inference.input.plan import Plan\n"
        "data = Path(sys.argv[1]).read_bytes()\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "Plan.from_bytes(data)\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def uncounted(name: str, size: int) -> dict[str, Any]:
    return line(name, [UNKNOWN], [size])


def spans(plan: Plan) -> list[list[tuple[str, int, int]]]:
    """For each shard, of each piece: the file's name, its first row and its rows."""
    return [[(p.uri[11:-8], p.first_row, p.rows) for p in shard.pieces] for shard in plan.shards()]


def test_a_file_that_is_not_counted_is_planned_by_its_bytes() -> None:
    """Small ones are packed, a large one is a shard of its own; the plan adds up what is known."""
    found = lake([uncounted("a", 10), uncounted("b", 10), uncounted("c", 10_000), line("d", [5], [9_000])])
    plan = make_plan(found, job(actors=1), "m")
    assert spans(plan) == [[("a", 0, UNKNOWN), ("b", 0, UNKNOWN)], [("c", 0, UNKNOWN)], [("d", 0, 5)]]
    assert [shard.rows for shard in plan.shards()] == [UNKNOWN, UNKNOWN, 5]
    assert (plan.rows, plan.uncounted, found.rows, found.uncounted) == (5, 2, 5, 3)


def test_where_rows_limit_a_shard_a_file_that_is_not_counted_is_one() -> None:
    plan = make_plan(lake([uncounted("a", 10), uncounted("b", 10), line("c", [5]), line("d", [5])]), job(100), "m")
    assert spans(plan) == [[("a", 0, UNKNOWN)], [("b", 0, UNKNOWN)], [("c", 0, 5), ("d", 0, 5)]]


def test_a_limit_ends_at_the_first_shard_that_is_not_counted() -> None:
    plan = make_plan(lake([line("a", [5]), uncounted("b", 10), line("c", [5])]), job(5), "m")
    assert spans(plan.limited(3)) == [[("a", 0, 5)]]
    assert spans(plan.limited(6)) == [[("a", 0, 5)], [("b", 0, UNKNOWN)]]


def test_a_limit_counts_the_rows_of_all_shards_up_to_it() -> None:
    plan = make_plan(lake([line(name, [5]) for name in "abcd"]), job(5), "m")
    assert [len(plan.limited(rows)) for rows in (1, 5, 6, 11, 20, 21)] == [1, 1, 2, 3, 4, 4]


def test_a_limit_counts_no_row_of_a_file_that_cannot_be_read() -> None:
    plan = make_plan(lake([unreadable("a"), line("b", [5])]), job(5), "m")
    assert len(plan.limited(1)) == 2


def test_a_plan_has_no_shard_of_another_plan_and_splits_none() -> None:
    plan = make_plan(lake([line("a", [5])]), job(5), "m")
    assert plan.shard("one of another plan") is None
    assert plan.with_splits([], "m") == (plan, {})


@pytest.mark.parametrize("changed", [{"version": "2"}, {"size": 7}])
def test_a_file_that_was_written_over_keeps_no_shard_by_name(changed: dict[str, Any]) -> None:
    """Whether its size or its version tells."""
    before = make_plan(lake([line("a", [5]), line("b", [5])]), job(5), "m")
    after = make_plan(lake([{**line("a", [5]), **changed}, line("b", [5])]), job(5), "m", before)
    assert [one == other for one, other in zip(after.ids(), before.ids(), strict=True)] == [False, True]


def test_what_is_not_counted_keeps_its_shard_as_long_as_it_stands_and_what_cannot_be_read_does_not() -> None:
    files = [uncounted("a", 10), unreadable("b")]
    before = make_plan(lake(files), job(), "m")
    again = make_plan(lake(files), job(actors=8), "m", before)
    assert again.ids() == before.ids()
    now = make_plan(lake([uncounted("a", 10), uncounted("b", 10)]), job(), "m", before)
    assert len(set(now.ids()) & set(before.ids())) == 1
    assert [shard.rows for shard in now.shards()] == [UNKNOWN, UNKNOWN]
