"""`{unique: [flight_id]}`: no two published rows of a night have the same key, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.metrics import keyhash
from nightjar.inference.validation import sorted_runs, unique
from nightjar.inference.validation.gates import GateResult
from support import Lake


def write(lake: Lake, file: str, ids: Sequence[int], **more: Any) -> None:
    path = lake.folder / "data" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(ids, pa.float32())})
    for title, values in {"name": [f"row {each}" for each in ids], **more}.items():
        table = table.append_column(title, values if isinstance(values, pa.Array) else pa.array(values))
    pq.write_table(table, path, row_group_size=1000)


def ready(lake: Lake, *files: Sequence[int], on: Any = "id", **changes: Any) -> Lake:
    lake.write_model()
    for index, ids in enumerate(files):
        write(lake, f"part-{index}.parquet", ids)
    lake.write_job(**{"checks": [{"unique": on}], **changes})
    return lake


def refused(lake: Lake) -> GateResult:
    with pytest.raises(GateFailed) as caught:
        lake.run()
    assert not lake.snapshot().runs
    assert not list(lake.out.glob("runs/*/*/keys/*")), "the files of hashes are gone"
    return caught.value.gates[-1]


def test_a_night_without_duplicates_passes(lake: Lake) -> None:
    ready(lake, range(3000), range(3000, 5000), on=["id", "name"])
    gate = lake.run().verdict.gates[-1]
    assert (gate.name, gate.passed, gate.observed, gate.limit) == ("id+name.unique", True, "0 rows repeated", "0 rows")
    assert gate.sentence == "No two rows have the same 'id' and 'name'; checks[0].unique holds."
    assert not list(lake.out.glob("runs/*/*/keys/*"))


def test_duplicates_are_named_with_the_files_and_rows_of_both(lake: Lake) -> None:
    """In one shard, in two of one file, and in two files; the first few keys, whatever their number."""
    ready(lake, [*range(2500), 7], [*range(2500, 5000), 2400, 7])
    gate = refused(lake)
    assert (gate.passed, gate.observed) == (False, "3 rows repeated")
    assert gate.sentence == (
        "3 rows have the 'id' of another row, which checks[0].unique forbids. Look whether the input has a file twice, "
        "or name all the columns that make a row."
    )
    files = [str(lake.folder / "data" / f"part-{index}.parquet") for index in range(2)]
    found = {(each.file, each.row, each.value) for each in gate.where}
    assert found == {
        (files[0], 2500, f"id = 7, as row 7 of {files[0]} does"),
        (files[1], 2500, f"id = 2400, as row 2400 of {files[0]} does"),
    }


def test_a_key_that_python_cannot_hold_is_named_with_its_rows(lake: Lake) -> None:
    """A date after the year 9999, which databases have for "never"."""
    ready(lake, range(3), on="day", carry=["id", "day"])
    path = lake.folder / "data" / "part-0.parquet"
    days = pa.array([3_000_000, 3_000_000, 1], pa.int32()).cast(pa.date32())
    pq.write_table(pq.read_table(path).append_column("day", days), path)
    gate = refused(lake)
    assert (gate.observed, [each.row for each in gate.where]) == ("1 row repeated", [1])


def test_a_file_that_is_there_twice_is_found_and_few_rows_are_named(lake: Lake) -> None:
    ready(lake, range(2000), range(2000))
    gate = refused(lake)
    assert gate.observed == "2,000 rows repeated"
    assert len(gate.where) == 3


def test_one_key_for_all_rows_reads_no_more_than_two_blocks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = unique.read_data
    monkeypatch.setattr(unique, "read_data", lambda *given: read.append(given[3]) or real(*given))
    ready(lake, range(5000), on="same", carry=["id", "same"])
    write(lake, "part-0.parquet", range(5000), same=["x"] * 5000)
    gate = refused(lake)
    assert (gate.observed, len(gate.where), len(read)) == ("4,999 rows repeated", 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_as_many_rows_are_repeated_as_pandas_finds(lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Keys at random, among them nulls, in files of different sizes and ranges of few hashes."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", int(random.integers(1, 2000)))
    ready(lake, on=["id", "name"])
    frames = []
    for index in range(4):
        ids = random.integers(0, 300, random.integers(1, 2500))
        names = [None if each < 10 else "ab"[each % 2] for each in random.integers(0, 100, len(ids))]
        write(lake, f"part-{index}.parquet", ids, name=pa.array(names, pa.string()))
        frames.append(pd.DataFrame({"id": ids, "name": names}))
    repeated = int(pd.concat(frames).duplicated().sum())
    gate = refused(lake)
    assert gate.observed == f"{repeated:,} rows repeated"


def test_rows_in_quarantine_are_not_published_and_do_not_count(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n    if 7 in batch['x'] and 1 not in batch['x']:\n        raise ValueError('7')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ready(lake, range(1000), [], retry__max_quarantined=0.01, model__batch_size=1000)
    lake.write_model(
        "def score(batch):\n    if -1 in batch['x']:\n        raise ValueError('-1')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    table = pa.table({"id": pa.array([7]), "x": pa.array([-1.0], pa.float32()), "name": ["row 7"]})
    pq.write_table(table, lake.folder / "data" / "part-1.parquet")
    ran = lake.run()
    assert ran.scored.progress.counts.rows_quarantined == 1
    assert ran.verdict.gates[-1].passed


@pytest.mark.parametrize("bits", [0, 3])
def test_keys_that_share_a_hash_are_not_condemned(lake: Lake, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """With a hash that is no good: each hash is that of many keys, and only keys that are the same are told."""
    real = keyhash.hashes
    monkeypatch.setattr(unique, "hashes", lambda *given: real(*given) & np.uint64(2**bits - 1))
    ready(lake, range(1500), range(1500, 3000))
    assert lake.run().verdict.gates[-1].observed == "0 rows repeated"


def test_ranges_of_hashes_find_what_one_range_finds(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 10)
    ready(lake, range(3000), [*range(3000, 6000), *range(0, 3000, 1000)])
    gate = refused(lake)
    assert gate.observed == "3 rows repeated"
    assert {each.value.split(",")[0] for each in gate.where} == {"id = 0", "id = 1000", "id = 2000"}


def test_a_check_that_is_new_scores_nothing_and_a_repaired_night_is_published(lake: Lake) -> None:
    ready(lake, range(2000), [*range(2000, 3000), 5], checks=[])
    lake.run(publish=False)
    lake.write_job(checks=[{"unique": "id"}])
    assert refused(lake).observed == "1 row repeated"
    write(lake, "part-1.parquet", range(2000, 3000))
    ran = lake.run()
    assert (ran.scored.progress.reused_shards, ran.publication.number) == (2, 1)


def test_outputs_are_compared_too(lake: Lake) -> None:
    ready(lake, range(1000), on="score", carry=["id", "name"])
    write(lake, "part-0.parquet", range(1000), name=["a", "b"] * 500)
    assert lake.run().verdict.gates[-1].passed
    write(lake, "part-0.parquet", [*range(999), 5], name=["a", "b"] * 500)
    with pytest.raises(GateFailed, match=r"1 row has the 'score' of another row.* holds score = 10, as row 5 of"):
        lake.run(run_id="again")


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("x", r"checks\[0\]\.unique: 'x' is neither an output nor a carried column"),
        ([], r"checks\[0\]\.unique: must be a column or a list of columns"),
        (["id", "id"], r"checks\[0\]\.unique: 'id' is listed twice"),
        (3, r"checks\[0\]\.unique: must be a column or a list of columns, not 3"),
    ],
)
def test_what_is_no_key_is_refused(lake: Lake, on: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        ready(lake, range(10), on=on).request()


def test_a_pattern_of_carry_must_match_the_key(lake: Lake) -> None:
    ready(lake, range(10), on="idd", carry=["id*"])
    with pytest.raises(JobError, match=r"checks\[0\]\.unique: 'idd' is neither .*did you mean 'id'"):
        lake.run()
