"""`input.where` from the job to the publication: which rows are scored, which numbers they keep, and what is counted.

What a condition means is in tests/unit/job/test_where.py, what each format makes of it in
tests/contract/test_sources.py.
"""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps as run
from nightjar.flows.pages.estimate import plan_text, planned
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import AuditFailed, GateFailed, JobError
from nightjar.inference.history.replay import Replayed, _replay_here, replay_row
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.records import Crumb, Receipt
from nightjar.inference.scoring.assignment import Assignment
from nightjar.inference.scoring.suspects import Attempt, Rows
from nightjar.inference.scoring.worker import ShardWorker
from support import Lake, Measuring

SOME = "x >= 1500 AND name NOT LIKE '%7' AND x < 6000"
REFUSES = """
def score(batch):
    if set(batch["x"].astype(int)) & {1504, 4600}:
        raise ValueError("not this one")
    return {"score": batch["x"] * 2}
"""


def wanted(lake: Lake) -> pd.DataFrame:
    """The rows that match, with file and row, as pandas reads the lake."""
    files = sorted((lake.folder / "data").rglob("*.parquet"))
    frames = [
        pd.read_parquet(path, partitioning=None).assign(_file=str(path)).reset_index(names="_row") for path in files
    ]
    rows = pd.concat(frames, ignore_index=True)
    return rows[(rows["x"] >= 1500) & (rows["x"] < 6000) & ~rows["name"].str.endswith("7")]


def test_only_rows_that_match_are_scored_and_each_keeps_its_number(lake: Lake) -> None:
    """Two of them cannot be scored; their numbers, the replay and the second scoring are those of the file."""
    lake.write_model(REFUSES)
    lake.ready(input__where=SOME, model__features=["x"], carry=["id"], rescore={"share": 1}, retry__max_quarantined=0.1)
    ran = lake.run(engine=LOCAL)
    rows = wanted(lake)
    scored = rows[~rows["id"].isin([1504, 4600])]
    found = lake.published()
    for name in ("id", "_file", "_row"):
        assert found[name].tolist() == scored[name].tolist()
    assert found["score"].tolist() == (scored["id"] * 2).tolist()
    bad = lake.quarantined()
    assert list(zip(bad["_file"].str[-15:], bad["_row"], strict=True)) == [
        ("part-00.parquet", 1504),
        ("part-02.parquet", 600),
    ]
    shard = bad["replay"][1].split("--shard ")[1].split()[0]
    *_, again = _replay_here(lake.request(), shard, 600, None, False, False, "")
    assert isinstance(again, Replayed)
    assert (again.scored, "ValueError: not this one" in again.text) == (False, True)
    assert replay_row(lake.request(), shard, 601, None, pdb=True).outputs == (("score", "9202"),)
    with pytest.raises(JobError, match=r"--row 607: it does not match input\.where \(x >= 1500 AND"):
        replay_row(lake.request(), shard, 607, None, pdb=True)
    totals = json.loads((lake.out / ran.publication.manifest).read_text())["totals"]
    assert (totals["rows_in"], totals["rows_left_out"]) == (len(rows), 8000 - len(rows))
    assert (totals["rows_out"], totals["rows_quarantined"]) == (len(scored), 2)
    assert (ran.scored.progress.rows, ran.scored.progress.counts.rows_left_out) == (len(rows), 8000 - len(rows))
    gate = next(gate for gate in ran.verdict.gates if gate.name == "rescore")
    assert gate.observed == f"0 of {len(scored):,} rows of 5 shards differ"


def test_a_condition_that_no_row_meets_publishes_no_empty_night(lake: Lake) -> None:
    """As one with a typing error does; readers keep what they see. A job may allow it."""
    lake.ready(input__where="x < 100")
    lake.run(engine=LOCAL)
    lake.write_job(input__where="x < -100")
    with pytest.raises(GateFailed, match=r"no row that was read matches input\.where \(x < -100\)"):
        lake.run(engine=LOCAL)
    assert len(lake.published()) > 0
    lake.write_job(input__where="x < -100", checks=[{"rows": {"min": 0}}])
    ran = lake.run(engine=LOCAL)
    assert (ran.publication.number, len(lake.published())) == (2, 0)


def test_crumbs_suspects_and_killers_go_by_the_numbers_of_the_file(lake: Lake) -> None:
    """Else a row that ends its process would never be found, or another one would be blamed."""
    lake.ready(input__where=SOME, carry=["id"], model__batch_size=100)
    shard = next(shard for shard in lake.planned().shards() if shard.label.startswith("part-00.parquet[1000:"))
    (piece,) = shard.pieces
    alone = Attempt(2, crumbs=True, singly=Rows(piece.uri, 1600, 110), skip=(Rows(piece.uri, 1604, 1),))
    events = list(ShardWorker(lake.worker_spec()).process([Assignment(shard, alone)]))
    rows = wanted(lake).query(f"_file == {piece.uri!r}")["_row"].tolist()
    *_, receipt = events
    assert isinstance(receipt, Receipt), receipt
    assert (receipt.rows_in, receipt.rows_out, receipt.rows_quarantined) == (450, 449, 1)
    assert receipt.rows_left_out == 550
    assert lake.quarantined()["_row"].tolist() == [1604]
    crumbs = [(event.row, event.rows) for event in events if isinstance(event, Crumb) and event.rows]
    singly = [row for row in rows if 1600 <= row < 1710 and row != 1604]
    assert [crumb for crumb in crumbs if crumb[1] == 1] == [(row, 1) for row in singly]
    whole = [(low, count) for low, count in crumbs if count > 1]
    assert whole[0] == (1500, 100)
    assert [row for low, count in crumbs for row in rows if low <= row < low + count] == [
        row for row in rows if row != 1604
    ]


def test_another_condition_is_another_night_and_the_same_one_goes_on(lake: Lake) -> None:
    lake.ready(input__where=SOME)
    assert not lake.run(engine=LOCAL).scored.progress.reused_shards
    again = lake.run(engine=LOCAL).scored.progress
    assert (again.reused_shards, again.counts.rows_left_out) == (8, 8000 - len(wanted(lake)))
    lake.write_job(input__where="x >= 1500")
    other = lake.run(engine=LOCAL)
    assert other.scored.progress.reused_shards == 0
    assert "input.where" in other.scored.again[0]
    assert len(lake.published()) == 6500


def test_rows_that_match_are_what_checks_and_the_allowance_count(lake: Lake) -> None:
    lake.ready(input__where="x = 7", checks=[{"rows": {"min": 2}}])
    with pytest.raises(GateFailed, match=r"1 row in 4 files, less than checks\[0\]\.rows\.min = 2"):
        lake.run(engine=LOCAL)


def test_columns_of_the_condition_alone_are_no_columns_of_the_output(lake: Lake) -> None:
    lake.ready(input__where="name = 'row 4'", carry=["id"])
    lake.run(engine=LOCAL)
    assert lake.published().to_dict("records") == [
        {"id": 4, "score": 8.0, "_file": str(lake.folder / "data/part-00.parquet"), "_row": 4}
    ]


def test_a_column_that_is_not_there_is_told_before_anything_is_scored(lake: Lake) -> None:
    lake.ready(input__where="id > 5 AND nam = 'x'")
    with pytest.raises(JobError, match=r"'nam' is not a column of the input; did you mean 'name'\?"):
        run.discover(lake.request())


def test_what_cannot_match_is_not_read(lake: Lake) -> None:
    """Of a Parquet file the row groups that its statistics rule out; of partitions whole files."""
    for index, country in enumerate(["de", "de", "fr", "__HIVE_DEFAULT_PARTITION__"]):
        path = lake.folder / f"data/country={country}/part-{index}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = range(index * 100_000, (index + 1) * 100_000)
        pq.write_table(pa.table({"id": ids, "x": pa.array(ids, pa.float32())}), path, row_group_size=10_000)
    lake.write_model()
    lake.write_job(
        input={
            "uri": "data/",
            "partitions": {"country": "string"},
            "where": "country = 'de' AND id BETWEEN 110000 AND 119990",
        },
        carry=["id", "country"],
    )
    request = lake.request()
    discovery = run.discover(request)
    ran_plan = run.plan(request, discovery).plan
    assert (discovery.files.num_rows, discovery.left_out) == (2, 2)
    text = plan_text(planned(request, discovery, run.plan(request, discovery)))
    assert "of these rows only those with country = 'de' AND id BETWEEN 110000 AND 119990; 2 other files cannot" in text
    ran = lake.run(engine=LOCAL)
    assert lake.published()["id"].tolist() == list(range(110_000, 119_991))
    assert (ran.scored.progress.rows, ran.scored.progress.counts.rows_left_out) == (9991, 190_009)
    storage = Measuring()
    for piece in (piece for shard in ran_plan.shards() for piece in shard.pieces):
        read_piece(storage, request.job, piece, discovery.schema)
    first, second = sorted(storage.read_of)
    assert 0 < storage.share(first) < 0.25, "only its footer"
    assert storage.share(first) < storage.share(second) < 0.5, "and two row groups"


def test_where_no_file_can_match_that_is_said(lake: Lake) -> None:
    path = lake.write_file("country=fr/a.parquet", 0, 10)
    lake.write_model()
    lake.write_job(input={"uri": "data/", "partitions": {"country": "string"}, "where": "country = 'de'"})
    with pytest.raises(
        JobError, match=r"input\.where: none of 1 file at .* can match \"country = 'de'\", by what their"
    ):
        run.discover(lake.request())
    assert path.exists()


def test_a_row_that_is_neither_scored_nor_left_out_is_missed(lake: Lake) -> None:
    """One row less in the count of those that were left out: then no number of rows explains the files."""
    lake.ready(input__where=SOME)
    request = lake.request()
    found = run.discover(request)
    scored = run.score(request, found)
    for path in (lake.revision() / "ledger").iterdir():
        path.write_text(path.read_text().replace('"rows_left_out":550', '"rows_left_out":549'))
    with pytest.raises(AuditFailed, match="input rows: found 999, the receipt says 1000"):
        run.validate(request, scored, found)
