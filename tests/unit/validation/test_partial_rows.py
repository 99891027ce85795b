"""The audit of rows that are in data and quarantine: every count is exact, and damage of every kind is found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_audit import Line, finding

from nightjar.inference.output import outcomes
from nightjar.inference.output import parts as sink
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.quarantine import write_quarantine
from nightjar.inference.records import RowFailure, as_line
from nightjar.inference.validation.audit import Audited, audit_block
from nightjar.inference.validation.rescore import Rescored, rescore
from severalmodels import severals
from support import Lake

Rows = list[tuple[int, str | None]]


class Night:
    """A night that was really scored. line: of its first shard with a quarantine. others: of the shards without one."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        lake.run()
        request = lake.request()
        self.job, self.storage, self.revision = request.job, request.storage, str(self.lake.revision())
        newest = revs.newest_revision(request.storage, request.run_uri)
        assert newest is not None
        plan = newest.plan()
        assert plan is not None
        lines = outcomes.outcomes(plan, newest.ledger, newest.state).to_pylist()
        self.line: Line = next(line for line in lines if line["quarantine"])
        self.others: list[Line] = [line for line in lines if not line["quarantine"]]

    def audit(self, *lines: Line, **output: Any) -> Audited:
        keys = self.job.output.model_copy(update=output)
        return audit_block(self.storage, self.revision, self.job.model_copy(update={"output": keys}), lines)

    def table(self, kind: str) -> pa.Table:
        with pq.ParquetFile(Path(self.revision) / self.line[kind]["name"]) as file:
            return file.read()

    def with_data(self, table: pa.Table, **receipt: int) -> Line:
        """The line as if this table had been written, and its receipt said so."""
        path = Path(self.revision) / self.line["data"]["name"]
        metrics = sink.read_metrics(
            self.storage, self.revision, self.line["data"]["name"], pq.read_metadata(path).metadata
        )
        name = sink.part_name("data", self.line["shard"], 1)
        part = sink.write_data(self.storage, self.revision, name, table, self.line["shard"], metrics)
        return {**self.line, "data": as_line(part), **receipt}

    def with_quarantine(self, rows: Rows, **receipt: int) -> Line:
        """The line as if these rows had been quarantined under these models, and its receipt said so."""
        uri = self.line["pieces"][0]["uri"]
        bad = [(uri, row, RowFailure(row, "E", "m", "", model=model or ""), "again") for row, model in rows]
        name = sink.part_name("quarantine", self.line["shard"], 1)
        inputs = pa.table({"id": [row for row, _ in rows]})
        part = write_quarantine(self.storage, self.revision, name, self.line["shard"], bad, inputs, several=True)
        return {**self.line, "quarantine": as_line(part), **receipt}

    def rescored(self, *lines: Line) -> list[Rescored]:
        """What scoring these shards again in this process finds."""
        return list(rescore(replace(self.lake.worker_spec(), revision=self.revision), lines))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """Of a shard of 1,000 rows `double` cannot score 3, `named` not 5, neither of them 7.

    Never changed by a test: damage is done to copies.
    """
    return Night(severals(Lake(tmp_path_factory.mktemp("partly")), double=[3, 7], named=[5, 7]))


TRUE: Rows = [(3, "double"), (5, "named"), (7, "double"), (7, "named")]


def test_a_row_in_both_counts_as_data_and_on_its_own(night: Night) -> None:
    audited = night.audit(night.line, *night.others)
    assert audited.damaged == {}
    assert (audited.counts.rows_in, audited.counts.rows_out, audited.counts.rows_quarantined) == (8000, 7999, 1)
    assert audited.counts.rows_partial == 2
    assert night.audit(night.with_quarantine(TRUE)).damaged == {}


@pytest.mark.parametrize(
    ("rows", "receipt", "said"),
    [
        (TRUE[:1] + TRUE[2:], {}, "rows that some models could not score: found 1, the receipt says 2"),
        ([*TRUE, (9, "named")], {}, "rows that some models could not score: found 3, the receipt says 2"),
        ([*TRUE, (9, "named")], {"rows_partial": 3}, "named_word: 1 null, where the quarantine has 2 rows that"),
        (TRUE[:3], {"rows_quarantined": 0, "rows_partial": 3}, "rows out and quarantined: found 999"),
        ([*TRUE, (9, None)], {"rows_quarantined": 2}, "rows out and quarantined: found 1001"),
        ([*TRUE, (3, "double")], {}, "row 3 of .* is in the quarantine twice under one name"),
        ([*TRUE, (7, None)], {}, "row 7 of .* is in the quarantine twice under one name"),
        ([*TRUE[:1], (5, "name"), *TRUE[2:]], {}, "row 5 of .* is in the quarantine of a model 'name'"),
        ([(3, "named"), (5, "double"), *TRUE[2:]], {}, "_(score|word): 0 nulls, where the quarantine has 1 row that"),
        ([(3, "double"), (5, "named"), (6, None)], {}, "row 6 of .* is there 2 times"),
    ],
    ids=str,
)
def test_a_quarantine_that_says_another_thing_is_found(
    night: Night, rows: Rows, receipt: dict[str, int], said: str
) -> None:
    found = finding(night.audit(night.with_quarantine(rows, **receipt)))
    assert re.search(said, found), found


def test_a_value_where_the_quarantine_says_null_is_found(night: Night) -> None:
    table = night.table("data")
    values = table["double_score"].to_pylist()
    at = table["_row"].to_pylist().index(3)
    assert values[at] is None
    values[at] = 6.0
    column = table.schema.get_field_index("double_score")
    line = night.with_data(table.set_column(column, table.schema.field(column), pa.array(values, pa.float32())))
    said = (
        "double_score: 0 nulls, where the quarantine has 1 row that the model 'double' could not score, the first of "
        f"them row 3 of {line['pieces'][0]['uri']}"
    )
    assert finding(night.audit(line)) == said


def test_the_nulls_of_a_shard_are_looked_for_in_each_of_its_files(tmp_path: Path) -> None:
    packed = Night(severals(Lake(tmp_path), double=[3, 2003], input__shard_rows=4000))
    assert [piece["rows"] for piece in packed.line["pieces"]] == [2000, 2000]
    audited = packed.audit(packed.line)
    assert (audited.damaged, audited.counts.rows_partial) == ({}, 2)


def test_a_row_that_is_partly_lost_must_be_in_the_data(night: Night) -> None:
    table = night.table("data")
    at = table["_row"].to_pylist().index(3)
    gone = pa.concat_tables([table.slice(0, at), table.slice(at + 1)])
    assert "rows out and quarantined: found 999" in finding(night.audit(night.with_data(gone, rows_out=998)))
    doubled = pa.concat_tables([table.slice(0, at), table.slice(at - 1, 1), table.slice(at + 1)])
    assert "not in input order" in finding(night.audit(night.with_data(doubled)))


def test_where_all_must_score_a_row_every_row_of_the_quarantine_is_lost(night: Night) -> None:
    assert "rows of the quarantine: found 3, the receipt says 1" in finding(night.audit(night.line, rows="all"))


def test_scored_again_each_model_leaves_out_its_own_rows(night: Night) -> None:
    """What one of them cannot score is no difference; what it could is."""
    line, other = night.line, night.others[0]
    assert night.rescored(line, other) == [Rescored(1, 999), Rescored(1, 1000)]
    less = night.with_quarantine(TRUE[1:], rows_partial=1)
    (found,) = night.rescored(less)
    assert found.first == f"1 row of shard {line['shard']} could be scored at first, but not again"
    assert found.differing == 1
    more = night.with_quarantine([*TRUE, (9, "double")], rows_partial=3)
    (found,) = night.rescored(more)
    assert found.first.startswith(f"row 9 of {line['pieces'][0]['uri']}: 'double_score' was 18.0, ")
    assert found.differing == 1


def test_scored_again_a_row_must_be_scored_by_all_models_where_the_job_says_so(tmp_path: Path) -> None:
    night = Night(severals(Lake(tmp_path), double=[3, 7], named=[5, 7], output__rows="all"))
    assert night.rescored(night.line) == [Rescored(1, 997)]


def test_scored_again_a_row_that_could_not_be_read_is_lost_to_all_models(tmp_path: Path) -> None:
    lake = severals(Lake(tmp_path))
    lake.to_json_lines()
    path = tmp_path / "data" / "part-00.jsonl"
    path.write_text(path.read_text().replace('{"id": 5,', '{"id": 5 ', 1))
    night = Night(lake)
    assert night.rescored(night.line) == [Rescored(1, night.line["rows_out"])]
