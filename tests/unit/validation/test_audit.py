"""The audit finds every kind of damage to a part, also when the receipt was made to agree with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.engine import auditing
from nightjar.inference.errors import AuditFailed
from nightjar.inference.metrics.slices import Slices
from nightjar.inference.output import parts as sink
from nightjar.inference.records import UNKNOWN, Counts, Piece, Receipt, Shard
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.audit import (
    MAX_DAMAGED,
    MAX_FINDINGS,
    Audited,
    _prove_cover,
    audit_block,
    check_plan_covers,
)
from nightjar.inference.validation.unique import Spill
from support import Lake, OneStep

BAD_ROW = 1400
"""The one row the scorer of these tests refuses."""

Line = dict[str, Any]


@dataclass
class Scorer(OneStep):
    """Twice x, but not of one row."""

    bad: int = BAD_ROW
    device = "cpu"

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        if self.bad in table["x"].to_pylist():
            raise ValueError("not this row")
        return {"score": pa.array(np.asarray(table["x"]) * 2, pa.float32())}


class Scored:
    """Two shards of one file and a packed one of two files, really scored; the second has a quarantined row."""

    def __init__(self, folder: Path, bad: int = BAD_ROW, **changes: Any) -> None:
        self.lake = Lake(folder)
        self.lake.write_file("part.parquet", 0, 2000)
        self.lake.write_file("small-1.parquet", 2000, 100)
        self.lake.write_file("small-2.parquet", 2100, 100)
        self.lake.write_model()
        self.lake.write_job(**{"checks": [{"column": "score", "min": 3}], **changes})
        plan, spec = self.lake.planned(), self.lake.worker_spec()
        self.storage, self.job, self.revision = spec.storage, spec.job, spec.revision
        events = ShardWorker(spec, Scorer(bad)).process([Assignment(shard) for shard in plan.shards()])
        receipts = {event.shard: event for event in events if isinstance(event, Receipt)}
        self.lines: list[Line] = [{**line, **asdict(receipts[line["shard"]])} for line in plan.table.to_pylist()]

    def audit(self, *lines: Line) -> Audited:
        return audit_block(self.storage, self.revision, self.job, lines)

    def path(self, line: Line, kind: str = "data") -> Path:
        return Path(self.revision) / str(line[kind]["name"])

    def table(self, line: Line, kind: str = "data") -> pa.Table:
        with pq.ParquetFile(self.path(line, kind)) as file:
            return file.read()

    def saying(self, line: Line, kind: str, footer: dict[bytes, bytes]) -> dict[str, Any]:
        """Another part with the same rows, whose footer says this: what a receipt would have of it."""
        written = pa.BufferOutputStream()
        pq.write_table(self.table(line, kind).replace_schema_metadata(footer), written)
        raw, name = written.getvalue(), sink.part_name(kind, line["shard"], 1)
        self.storage.write(f"{self.revision}/{name}", raw)
        return {**line[kind], "name": name, "size": raw.size, "checksum": sink.checksum(raw)}

    def moved(self, line: Line, index: int, row: int) -> Line:
        """The line with one row of its part taken for another row of the file."""
        table = self.table(line)
        rows = table["_row"].to_numpy().copy()
        rows[index] = row
        return self.rewritten(line, table.set_column(table.schema.get_field_index("_row"), "_row", pa.array(rows)))

    def rewritten(self, line: Line, table: pa.Table) -> Line:
        """The line as if this table had been written, its receipt agreeing in every figure."""
        metrics = sink.read_metrics(
            self.storage, self.revision, line["data"]["name"], pq.read_metadata(self.path(line)).metadata
        )
        name = sink.part_name("data", line["shard"], 1)
        part = sink.write_data(
            self.storage, self.revision, name, table, line["shard"], metrics, states_beside=self.job.states_beside
        )
        return {**line, "data": asdict(part)}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Never changed by a test: damage is done to copies."""
    return Scored(tmp_path_factory.mktemp("audit"))


def finding(audited: Audited) -> str:
    """What one damaged shard was found to have; it must be that shard's only finding and count for nothing."""
    assert (audited.problems, audited.shards, audited.counts.rows_in) == (1, 0, 0)
    (found,) = audited.damaged.values()
    return found


def test_whole_parts_prove_every_row(scored: Scored) -> None:
    audited = scored.audit(*scored.lines)
    assert audited.damaged == {}
    assert (audited.shards, audited.counts.rows_in, audited.counts.rows_out, audited.counts.rows_quarantined) == (
        3,
        2200,
        2199,
        1,
    )


def test_blocks_audited_apart_come_to_what_one_block_comes_to(scored: Scored) -> None:
    """In order, damaged shards and the rows that a gate refuses among them."""
    first, second, third = scored.lines
    lines = [first, {**second, "rows_in": 1001}, third]
    together, apart = scored.audit(*lines), Audited()
    for line in lines:
        apart.merge(scored.audit(line))
    assert apart == together
    assert together == Audited(
        shards=2,
        counts=Counts(rows_in=1200, rows_out=1200),
        size=first["data"]["size"] + third["data"]["size"],
        problems=1,
        damaged={second["shard"]: "input rows: found 1001, the receipt says 1000"},
        metrics=together.metrics,
        offenders=together.offenders,
    )
    one, other = (Spill(name, name, b"", "checks[0].unique", 1) for name in "ab")
    summed = Audited(counts=Counts(rows_left_out=1, rows_partial=2), spills=[one])
    summed.merge(Audited(counts=Counts(rows_left_out=10, rows_partial=20), spills=[other]))
    assert summed == Audited(counts=Counts(rows_left_out=11, rows_partial=22), spills=[one, other])
    assert [offender.row for offender in together.offenders["checks[0].min"]] == [0]
    counted = together.metrics
    assert (counted.columns["score"].rows, counted.columns["score"].max) == (1200, 2 * 2199)
    before = replace(apart)
    apart.merge(Audited())
    assert apart == before, "a block without a whole shard has no metrics"


def test_a_block_has_the_hashes_of_its_keys_unless_it_is_damaged(tmp_path: Path) -> None:
    scored = Scored(tmp_path, checks=[{"unique": ["id"]}])
    whole = scored.audit(*scored.lines)
    assert sum(np.frombuffer(spill.counts, np.int32).sum() for spill in whole.spills) == whole.counts.rows_out
    assert all(Path(scored.revision, spill.name).is_file() for spill in whole.spills)
    damaged = {**scored.lines[0], "data": {**scored.lines[0]["data"], "checksum": "0"}}
    assert not scored.audit(damaged, *scored.lines[1:]).spills


def test_a_block_has_the_slices_of_all_its_shards(tmp_path: Path) -> None:
    scored = Scored(tmp_path, label="x", evaluation={"task": "regression", "slices": ["name"]}, carry=["id", "name"])
    whole = scored.audit(*scored.lines).metrics.slices
    apart = scored.audit(scored.lines[0]).metrics.slices
    for line in scored.lines[1:]:
        apart.merge(scored.audit(line).metrics.slices)
    assert whole == apart
    assert whole.to_bytes() != Slices.for_job(scored.job).to_bytes()


def test_blocks_are_described_apart_as_they_are_together(tmp_path: Path) -> None:
    scored = Scored(tmp_path, profile="all")
    together, apart = scored.audit(*scored.lines), Audited()
    for line in scored.lines:
        apart.merge(scored.audit(line))
    assert apart == together
    assert together.metrics.profile.columns["score"].rows == 2199
    apart.merge(Audited())
    assert apart == together


def test_what_is_kept_of_the_damage_is_bounded(scored: Scored) -> None:
    """The count is not."""
    damaged = [{**scored.lines[0], "shard": f"s{index:04d}", "rows_in": 1} for index in range(MAX_DAMAGED + 2)]
    audited = scored.audit(*damaged)
    assert audited.problems == MAX_DAMAGED + 2
    assert list(audited.damaged) == [line["shard"] for line in damaged[:MAX_DAMAGED]]
    audited.merge(Audited(problems=1, damaged={"later": "damaged, too"}))
    assert audited.problems == MAX_DAMAGED + 3
    assert len(audited.damaged) == MAX_DAMAGED
    assert "later" not in audited.damaged
    gone = [{"pieces": [{"uri": f"f{index}", "first_row": 1, "rows": 0}]} for index in range(MAX_FINDINGS + 1)]
    assert len(check_plan_covers(gone, {})) == MAX_FINDINGS


def test_a_damaged_shard_does_not_hide_the_others(scored: Scored) -> None:
    first, second, third = scored.lines
    audited = scored.audit(first, {**second, "rows_in": 1001}, third)
    assert (audited.problems, audited.shards, audited.counts.rows_in) == (1, 2, 1200)
    assert list(audited.damaged) == [second["shard"]]


@settings(max_examples=20)
@given(index=st.integers(0, 199), which=st.sampled_from([0, 1, 2]))
def test_a_missing_row_is_found(scored: Scored, index: int, which: int) -> None:
    """Even when every counter was lowered with it, or another row stands in its place."""
    line = scored.lines[which]
    table = scored.table(line)
    rest = pa.concat_tables([table.slice(0, index), table.slice(index + 1)])
    assert "rows" in finding(scored.audit(scored.rewritten(line, rest)))
    lowered = {**scored.rewritten(line, rest), "rows_out": rest.num_rows}
    assert "rows out and quarantined" in finding(scored.audit(lowered))
    doubled = pa.concat_tables([rest, rest.slice(rest.num_rows - 1)])
    assert "row" in finding(scored.audit(scored.rewritten(line, doubled)))


@settings(max_examples=20)
@given(order=st.permutations(range(6)), which=st.sampled_from([0, 1, 2]))
def test_rows_out_of_order_are_found(scored: Scored, order: list[int], which: int) -> None:
    line = scored.lines[which]
    table = scored.table(line)
    taken = [*order, *range(6, table.num_rows)]
    audited = scored.audit(scored.rewritten(line, table.take(taken)))
    assert audited.problems == (order != sorted(order))


def test_a_row_scored_and_quarantined_is_found(scored: Scored) -> None:
    """Its double takes the place of a row that is nowhere."""
    line = scored.lines[1]
    at = scored.table(line)["_row"].to_pylist().index(BAD_ROW + 1)
    file = line["pieces"][0]["uri"]
    found = finding(scored.audit(scored.moved(line, at, BAD_ROW)))
    assert found == f"row {BAD_ROW} of {file} is there 2 times"


def test_what_is_wrong_with_the_rows_is_said_with_the_first_of_them(scored: Scored) -> None:
    first, second, third = scored.lines
    file = first["pieces"][0]["uri"]
    small = [piece["uri"] for piece in third["pieces"]]
    table = scored.table(third)
    at = table.schema.get_field_index("_file")
    stranger = pa.array([*table["_file"].to_pylist()[:-1], "/elsewhere.parquet"]).dictionary_encode()
    uncounted_stranger = uncounted(scored.rewritten(third, table.set_column(at, "_file", stranger)))
    nameless = pa.array([None, *table["_file"].to_pylist()[1:-1], None]).dictionary_encode()
    uncounted_nameless = uncounted(scored.rewritten(third, table.set_column(at, "_file", nameless)))
    beside_a_quarantine = scored.table(second)
    last = pa.array([*beside_a_quarantine["_file"].to_pylist()[:-1], "/elsewhere.parquet"]).dictionary_encode()
    beside_a_quarantine = beside_a_quarantine.set_column(at, "_file", last)
    one_piece, other_piece = third["pieces"]
    shifted = {**third, "pieces": [{**one_piece, "rows": 99}, {**other_piece, "rows": 101}]}
    for line, said in (
        (scored.moved(first, 17, 16), f"rows of {file} are not in input order, or one occurs twice"),
        (scored.moved(first, 999, 1000), f"no part has 1 row of rows 0 to 999 of {file}, the first is row 999"),
        (scored.moved(second, 0, 999), f"no part has 1 row of rows 1000 to 1999 of {file}, the first is row 1000"),
        (scored.moved(second, 998, 2000), f"no part has 1 row of rows 1000 to 1999 of {file}, the first is row 1999"),
        (
            scored.rewritten(third, table.set_column(at, "_file", files(200))),
            f"no part has 100 rows of rows 0 to 99 of {small[0]}, the first is row 0",
        ),
        (
            scored.rewritten(third, table.set_column(at, "_file", stranger)),
            f"no part has 1 row of rows 0 to 99 of {small[1]}, the first is row 99",
        ),
        (shifted, f"row 99 of {small[0]} is in a part, and not in this shard"),
        (uncounted_stranger, "the files of 1 row are not in this shard"),
        (
            uncounted(scored.rewritten(second, beside_a_quarantine)),
            "the files of 1 row are not in this shard",
        ),
        (uncounted_nameless, f"no part has 1 row of rows 0 to 98 of {small[0]}, the first is row 0"),
    ):
        assert finding(scored.audit(line)) == said
    extra = {**first["pieces"][0], "rows": 999}
    narrower = {**first, "pieces": [extra], "rows_in": 999}
    assert "input rows" not in finding(scored.audit(narrower))


def test_what_is_wrong_with_a_part_is_said_with_what_was_found(scored: Scored) -> None:
    first, second, third = scored.lines
    data, other, lost = first["data"], third["data"], second["quarantine"]
    part, nameless = scored.saying(first, "data", {}), scored.saying(second, "quarantine", {})
    thirds = scored.saying(second, "quarantine", {sink.SHARD_KEY: third["shard"].encode()})
    for line, said in (
        ({**first, "rows_in": 1001}, "input rows: found 1001, the receipt says 1000"),
        ({**first, "rows_out": 1001}, "rows of the data part: found 1000, the receipt says 1001"),
        ({**first, "rows_quarantined": 1}, "rows of the quarantine: found 0, the receipt says 1"),
        ({**uncounted(first), "rows_in": 1001}, "rows out and quarantined: found 1000, the receipt says 1001"),
        ({**first, "data": {**data, "rows": 7}}, f"rows of {data['name']}: found 1000, the receipt says 7"),
        ({**first, "data": {**data, "size": 7}}, f"bytes of {data['name']}: found {data['size']}, the receipt says 7"),
        (
            {**first, "data": {**data, "checksum": "00"}},
            f"checksum of {data['name']}: found {data['checksum']}, the receipt says 00",
        ),
        (
            {**first, "data": other, "rows_out": 200},
            f"shard named in {other['name']}: found {third['shard']}, the receipt says {first['shard']}",
        ),
        ({**first, "data": part}, f"shard named in {part['name']}: found , the receipt says {first['shard']}"),
        ({**second, "quarantine": {**lost, "rows": 7}}, f"rows of {lost['name']}: found 1, the receipt says 7"),
        (
            {**second, "quarantine": thirds},
            f"shard named in {thirds['name']}: found {third['shard']}, the receipt says {second['shard']}",
        ),
        (
            {**second, "quarantine": nameless},
            f"shard named in {nameless['name']}: found , the receipt says {second['shard']}",
        ),
    ):
        assert finding(scored.audit(line)) == said


def test_what_lies_beside_a_part_is_what_the_part_says_of_it(tmp_path: Path) -> None:
    """Every byte of it; the other shards stay whole."""
    scored = Scored(tmp_path, profile="outputs")
    first, second, third = scored.lines
    assert scored.audit(*scored.lines).damaged == {}
    folder = Path(scored.revision)
    profile = sink.states_name(first["data"]["name"])
    whole = (folder / profile).read_bytes()
    for damaged, said in (
        (whole[:-1], f"bytes of {profile}: found {len(whole) - 1}, the receipt says {len(whole)}"),
        (whole[:-2] + b"0\n", f"checksum of {profile}: found "),
    ):
        (folder / profile).write_bytes(damaged)
        assert finding(scored.audit(first)).startswith(said)
    (folder / profile).unlink()
    audited = scored.audit(first, second, third)
    assert list(audited.damaged) == [first["shard"]]
    assert profile in audited.damaged[first["shard"]]
    scored.job = scored.job.model_copy(update={"profile": type(scored.job.profile)()})
    said = f"whether states lie beside {second['data']['name']}: found True, the receipt says False"
    assert finding(scored.audit(second)) == said


def test_rows_that_the_condition_left_out_are_rows_that_were_planned(tmp_path: Path) -> None:
    """The audit counts them over all shards."""
    scored = Scored(tmp_path, input__where="id >= 10 and id < 2195")
    first, _, third = scored.lines
    audited = scored.audit(*scored.lines)
    assert audited.damaged == {}
    assert (audited.counts.rows_in, audited.counts.rows_out, audited.counts.rows_left_out) == (2185, 2184, 15)
    assert finding(scored.audit({**first, "rows_left_out": 11})) == "input rows: found 1001, the receipt says 1000"
    assert finding(scored.audit({**third, "rows_left_out": 0})) == "input rows: found 195, the receipt says 200"


def test_a_quarantine_that_lost_its_row_is_found(scored: Scored) -> None:
    line = scored.lines[1]
    assert "quarantine" in finding(scored.audit({**line, "quarantine": None}))
    without = {**line, "quarantine": None, "rows_quarantined": 0}
    assert "rows out and quarantined" in finding(scored.audit(without))


@pytest.mark.parametrize("kind", ["data", "quarantine"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path, raw: path.unlink(), "no such file"),
        (lambda path, raw: path.write_bytes(raw[: len(raw) // 2]), "bytes of"),
        (lambda path, raw: path.write_bytes(b""), "bytes of"),
        (lambda path, raw: path.write_bytes(raw[:50] + bytes([raw[50] ^ 1]) + raw[51:]), "checksum of"),
        (lambda path, raw: path.write_bytes(raw + b"\0"), "bytes of"),
    ],
    ids=["gone", "torn", "empty", "one bit", "longer"],
)
def test_damaged_bytes_are_found(
    scored: Scored, kind: str, damage: Callable[[Path, bytes], object], said: str, request: pytest.FixtureRequest
) -> None:
    """Of the data and of the quarantine alike."""
    line = scored.lines[1]
    path = scored.path(line, kind)
    raw = path.read_bytes()
    request.addfinalizer(lambda: path.write_bytes(raw))
    damage(path, raw)
    assert said in finding(scored.audit(line))


def test_another_shards_part_is_found(scored: Scored) -> None:
    """By the shard it names, and by the rows it holds when it was made to name this one."""
    first, second, third = scored.lines
    swapped = {**third, "data": first["data"], "rows_out": 1000}
    assert "shard named in" in finding(scored.audit({**first, "data": second["data"], "rows_out": 999}))
    assert "shard named in" in finding(scored.audit(swapped))
    renamed = scored.rewritten(first, scored.table(second))
    assert finding(scored.audit({**renamed, "rows_out": 999}))
    table = scored.table(third)
    strangers = scored.rewritten(third, table.set_column(table.schema.get_field_index("_file"), "_file", files(200)))
    assert "no part has" in finding(scored.audit(strangers))


def files(rows: int) -> pa.Array:
    return pa.array(["/elsewhere.parquet"] * rows).dictionary_encode()


def test_a_counter_that_lies_is_found(scored: Scored) -> None:
    """Counters are compared with what was found, never trusted."""
    for key in ("rows_in", "rows_out", "rows_quarantined"):
        for line in scored.lines:
            assert finding(scored.audit({**line, key: line[key] + 1}))


def test_a_shard_without_rows_is_whole(scored: Scored) -> None:
    """A row group may be empty: nothing is missing then."""
    line = scored.lines[2]
    empty = {**scored.rewritten(line, scored.table(line).slice(0, 0)), "rows_in": 0, "rows_out": 0}
    assert scored.audit({**empty, "pieces": [{**line["pieces"][0], "rows": 0}]}).damaged == {}


def lineage(rows: list[int], uri: str = "a") -> pa.Table:
    return pa.table(
        {"_file": pa.array([uri] * len(rows), pa.string()).dictionary_encode(), "_row": pa.array(rows, pa.int64())}
    )


@pytest.mark.parametrize(
    ("kept", "lost", "said"),
    [
        ([12, 15], [13], ""),
        ([10, 29], [], ""),
        ([15, 12], [], "rows of a are not in input order"),
        ([12, 12], [], "rows of a are not in input order, or one occurs twice"),
        ([12, 15], [15], "row 15 of a is there 2 times"),
        ([9, 12], [], "row 9 of a is in a part, and not in this shard"),
        ([12, 30, 31], [], "row 30 of a is in a part, and not in this shard"),
        ([12, 15, 16, 17], [15, 16], "row 15 of a is there 2 times"),
    ],
)
def test_the_audit_proves_that_what_is_there_is_there_once(kept: list[int], lost: list[int], said: str) -> None:
    """Rows may be absent then; how many is proved by their number."""
    pieces = [{"uri": "a", "first_row": 10, "rows": 10}, {"uri": "b", "first_row": 0, "rows": 2}]
    pieces.append({"uri": "a", "first_row": 20, "rows": 10})
    if said:
        with pytest.raises(AuditFailed, match=said):
            _prove_cover(pieces, lineage(kept), lineage(lost), left_out=7)
    else:
        _prove_cover(pieces, lineage(kept), lineage(lost), left_out=7)
    with pytest.raises(AuditFailed, match="row 2 of b is in a part, and not in this shard"):
        _prove_cover(pieces, lineage([12]), lineage([2], "b"), left_out=7)
    with pytest.raises(AuditFailed, match="the files of 1 row are not in this shard"):
        _prove_cover(pieces, lineage([12]), lineage([13], "c"), left_out=7)
    uncounted = [{"uri": "a", "first_row": 0, "rows": UNKNOWN}]
    _prove_cover(uncounted, lineage([0, 99]), lineage([5]), left_out=7)
    with pytest.raises(AuditFailed):  # without left_out each row must be there
        _prove_cover(uncounted, lineage([0, 99]), lineage([5]))


def plan_lines(*spans: tuple[int, int]) -> list[Line]:
    piece = Piece("/a.parquet", 1, "1", 0, 0, (0, 0))
    pieces = [replace(piece, first_row=low, rows=high - low) for low, high in spans]
    return [asdict(Shard(str(index), (piece,))) for index, piece in enumerate(pieces)]


def uncounted(line: Line) -> Line:
    """The line as if nobody had counted its rows before they were read."""
    return {**line, "rows": UNKNOWN, "pieces": [{**piece, "rows": UNKNOWN} for piece in line["pieces"]]}


def test_of_files_that_were_not_counted_rows_are_proved_from_the_first_on(scored: Scored) -> None:
    """Of each file of the shard, without a gap; and as many as the worker says that it read."""
    line = uncounted(scored.lines[2])
    assert [piece["first_row"] for piece in line["pieces"]] == [0, 0]
    audited = scored.audit(line)
    assert (audited.problems, audited.counts.rows_in) == (0, 200)
    table = scored.table(line)
    for gap, found in ((0, 1), (40, 1), (100, 1), (99, 0), (199, 0)):
        less = scored.rewritten(line, pa.concat_tables([table.slice(0, gap), table.slice(gap + 1)]))
        # The last row of a file is missed by the count alone, which is the worker's.
        assert scored.audit({**less, "rows_in": 199, "rows_out": 199}).problems == found, gap
        assert scored.audit(less).problems == 1
    for read in (199, 201):
        assert scored.audit({**line, "rows_in": read}).problems == 1


def test_a_file_that_was_not_counted_is_covered_by_one_piece() -> None:
    whole = [{"pieces": [{"uri": "f", "first_row": 0, "rows": UNKNOWN}]}]
    assert check_plan_covers(whole, {"f": UNKNOWN}) == []
    assert check_plan_covers(whole * 2, {"f": UNKNOWN})
    assert check_plan_covers([], {"f": UNKNOWN})
    assert check_plan_covers(whole, {"f": 10})
    assert check_plan_covers(plan_lines((0, 10)), {"f": UNKNOWN})
    rest = [{"pieces": [{"uri": "/a.parquet", "first_row": 10, "rows": UNKNOWN}]}]
    assert check_plan_covers(plan_lines((0, 10)) + rest, {"/a.parquet": UNKNOWN})


def test_a_plan_that_leaves_a_gap_is_found() -> None:
    """Whatever the parts prove of their shards: the shards must cover every file from its first row to its last."""
    rows = {"/a.parquet": 30}
    assert check_plan_covers(plan_lines((0, 10), (10, 30)), rows) == []
    assert check_plan_covers(plan_lines((0, 10), (20, 30)), {**rows, "/b.parquet": 5}) == [
        "/a.parquet: row 10 is not where a shard begins",
        "/b.parquet: shards end at row 0 of 5",
    ]
    assert check_plan_covers(plan_lines((0, 20), (10, 30)), rows) == ["/a.parquet: row 20 is not where a shard begins"]
    assert check_plan_covers(plan_lines((0, 10), (10, 29)), rows) == ["/a.parquet: shards end at row 29 of 30"]
    assert check_plan_covers(plan_lines((10, 30)), rows) == ["/a.parquet: row 0 is not where a shard begins"]
    assert check_plan_covers([], {"/a.parquet": 1}) == ["/a.parquet: shards end at row 0 of 1"]
    assert check_plan_covers([], {"/a.parquet": 0}) == []


@given(st.integers(1, 100_000))
@settings(max_examples=30)
def test_no_block_of_an_audit_outgrows_the_time_it_has(shards: int) -> None:
    """Each has the same time to end, however many shards the night has; together they are all, in order."""
    table = pa.table({"shard": pa.array(range(shards))})
    blocks = list(auditing.audit_blocks(table))
    assert max(block.num_rows for block in blocks) <= auditing.AUDIT_SHARDS
    assert pa.concat_tables(blocks).equals(table)


class OneRequest(LakeStorage):
    """A storage that gives no object above a size in one answer."""

    def read(self, uri: str) -> bytes:
        assert Path(uri).stat().st_size <= sink.PART, "in one request it may never end in time"
        return super().read(uri)


@pytest.mark.parametrize("size", [1, sink.PART, sink.PART + 1])
def test_a_large_part_is_read_in_several_requests(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "part").write_bytes(data)
    assert sink.read_part(OneRequest(), str(tmp_path / "part"), size) == data
