"""The micro-batches for which memory suffices are found once, by whoever needs them first, and remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.errors import ShardsFailed
from nightjar.inference.output.publications import newest
from nightjar.inference.validation.manifest import read_manifest
from support import Lake

SMALL_MEMORY = '''
import os

def score(batch):
    """Twice x, where a device's memory suffices for 1000 rows."""
    rows = len(batch["x"])
    with open(os.path.join(__LIVE__, "calls"), "a") as calls:
        calls.write(f"{rows}\\n")
    if rows > 1000:
        raise MemoryError("out of memory")
    return {"score": batch["x"] * 2}
'''


@pytest.fixture
def growing(lake: Lake) -> Lake:
    """A night of 500, 3500 and 6000 rows, each in a shard of its own."""
    for index, rows in enumerate((500, 3500, 6000)):
        lake.write_file(f"part-{index}.parquet", 10_000 * index, rows)
    lake.write_model(SMALL_MEMORY)
    lake.write_job(model__batch_size="auto", input__shard_rows=6000, resources={"actors": 1})
    return lake


def calls(lake: Lake) -> list[int]:
    """The rows of each call since this was last asked, without preflight's 32 and none."""
    path = Path(lake.folder / "calls")
    sizes = [int(line) for line in path.read_text().split()] if path.exists() else []
    path.unlink(missing_ok=True)
    return sizes


def test_the_next_night_begins_with_what_memory_sufficed_for(growing: Lake) -> None:
    ran = growing.run(date="2026-11-18")
    assert ran.scored.progress.counts.rows_out == 10_000
    assert [size for size in calls(growing) if size > 1000] == [3500, 1750]
    assert any("micro-batches of more than 875 rows" in said for said in ran.scored.warnings)
    ran = growing.run(date="2026-11-19")
    assert max(calls(growing)) == 875
    assert ran.scored.progress.counts.rows_out == 10_000
    # Memory did suffice this night. The sentence stays when the night is looked at again.
    earlier = (
        "on an earlier night memory did not suffice for micro-batches of more than 875 rows, so that this one began"
    )
    for again in (ran, growing.run(date="2026-11-19")):
        assert [said.startswith(earlier) for said in again.scored.warnings if "memory" in said] == [True]
    now = newest(growing.request().storage, growing.request().output)
    manifests = [read_manifest(growing.request().storage, growing.request().output, now.runs[run]) for run in now.runs]
    assert [manifest.totals.ceilings for manifest in manifests] == [(875,), (875,)]


def test_a_damaged_manifest_of_the_last_night_costs_no_night(growing: Lake) -> None:
    """Without it the size is found out again."""
    growing.run(date="2026-11-18")
    (manifest,) = growing.revision(run_id="2026-11-18").glob("manifest-*.json")
    manifest.write_bytes(manifest.read_bytes().replace(b"2026-11-18", b"2026-11-17"))
    assert growing.run(date="2026-11-19").publication.number == 2


def test_a_continued_run_does_not_search_again(growing: Lake) -> None:
    (growing.folder / "data" / "part-3.parquet").write_bytes(b"not a table")
    with pytest.raises(ShardsFailed, match="1 of 4 shards"):
        growing.run()
    assert max(calls(growing)) > 1000
    growing.write_file("part-3.parquet", 90_000, 5000)
    growing.run()
    assert max(calls(growing)) == 875


def test_other_code_and_fresh_search_again(growing: Lake) -> None:
    """Another model may need less memory, and somebody may have given the actors more."""
    growing.run(date="2026-11-18")
    growing.write_model(SMALL_MEMORY.replace("rows > 1000", "rows > 9000"))
    calls(growing)
    growing.run(date="2026-11-19")
    assert max(calls(growing)) == 6000
    growing.write_model(SMALL_MEMORY)
    growing.run(date="2026-11-20")
    calls(growing)
    growing.run(date="2026-11-21", fresh=True)
    assert max(calls(growing)) == 3500


def test_a_number_of_rows_stays_the_number(growing: Lake) -> None:
    """It is what the job says, every night, and halved every night."""
    growing.write_job(model__batch_size=1200, input__shard_rows=6000, resources={"actors": 1})
    for date in ("2026-11-18", "2026-11-19"):
        growing.run(date=date)
        assert max(calls(growing)) == 1200


def test_of_several_models_each_begins_the_next_night_with_its_own_size(growing: Lake) -> None:
    """Also where memory sufficed for all of them."""
    models = [
        {"name": name, "uses": f"model:{uses}", "outputs": {"score": "float32"}}
        for name, uses in (("one", "score"), ("two", "plain"))
    ]
    growing.write_model(SMALL_MEMORY + 'def plain(batch):\n    return {"score": batch["x"]}\n')
    growing.write_job(model=None, models=[models[1], {**models[1], "name": "three"}], input__shard_rows=6000)
    for date in ("2026-11-16", "2026-11-17"):
        assert growing.run(date=date).scored.progress.counts.rows_out == 10_000
    growing.write_job(model=None, models=models, input__shard_rows=6000, resources={"actors": 1})
    growing.run(date="2026-11-18")
    assert max(calls(growing)) > 1000
    growing.run(date="2026-11-19")
    assert max(calls(growing)) == 875
