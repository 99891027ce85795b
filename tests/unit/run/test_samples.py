"""What `check` shows before the night: rows of several files, and what the model makes of them. No Ray here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.input.plan import BEGINNING, discover
from nightjar.inference.records import Piece
from nightjar.inference.run.checking import Examined, Sampled, check_labels, examine, refuse_broken, sample_notes
from nightjar.inference.scoring.preflight import samples
from nightjar.inference.scoring.worker import ShardWorker
from nightjar.inference.storage.lake import LakeStorage
from support import Lake


def looked(lake: Lake, source: str, **changes: Any) -> Sampled:
    """What the worker says at last of a lake of four files."""
    lake.write_model(source)
    lake.ready(**changes)
    *_, last = examine(ShardWorker(lake.worker_spec()), samples(lake.planned()))
    assert isinstance(last, Examined), last
    return last.sampled


SOMETIMES = """
import numpy as np

def score(batch):
    x = batch["x"]
    {body}
"""


def test_the_first_rows_are_shown_beside_what_is_carried(lake: Lake) -> None:
    found = looked(lake, "def score(batch):\n    return {'score': batch['x'] / 3}\n")
    assert (found.rows, found.places) == (8 * 32, 8)
    rows = tuple(
        (str(n), f"row {n}", text) for n, text in enumerate(["0", "0.33333334", "0.6666667", "1", "1.3333334"])
    )
    assert (found.file, found.names, found.values) == (
        f"{lake.folder}/data/part-00.parquet",
        ("id", "name", "score"),
        rows,
    )
    assert (found.broken, found.failed, found.nonfinite) == ((), 0, {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'return {"score": x[x != 4010]}',
            "output 'score' has 31 values for a batch of 32 rows",
        ),
        (
            'return {"score": x.astype(str) if 4000 in x else x}',
            "output 'score' is declared float32, but the predictor returned string",
        ),
        (
            'return {"odds" if 4000 in x else "score": x}',
            "output 'score' is missing; the predictor returned",
        ),
    ],
)
def test_outputs_that_are_wrong_in_one_file_only_are_found(lake: Lake, body: str, said: str) -> None:
    """The third of four files: a run's own preflight ends at the first that works. One row dropped is enough."""
    found = looked(lake, SOMETIMES.format(body=body))
    (sentence,) = found.broken
    assert sentence.startswith(said)
    assert sentence.endswith(f"(32 rows of {lake.folder}/data/part-02.parquet)")
    with pytest.raises(JobError, match=r"^model\.uses: output 'score' .*part-02\.parquet\)$"):
        refuse_broken(lake.request().job, found)


def test_a_place_counts_once_however_many_models_are_wrong_there(lake: Lake) -> None:
    model = {"uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}}
    body = 'return {"score": x.astype(str) if x[0] == 4000 or x[0] == 5000 else x}'
    both = [{"name": "a", **model}, {"name": "b", **model}]
    found = looked(lake, SOMETIMES.format(body=body), model=None, models=both)
    with pytest.raises(JobError, match=r"a: output 'score' .*; the like at 1 of the 7 other places looked at$"):
        refuse_broken(lake.request().job, found)


def test_rows_that_fail_files_that_do_and_what_is_not_finite_are_notes(lake: Lake) -> None:
    body = """if 4010 in x:
        raise ValueError("not 4010")
    return {"score": np.where(x == 6001, np.inf, x)}"""
    lake.write_model(SOMETIMES.format(body=body))
    lake.ready()
    odd = lake.folder / "data" / "part-00.parquet"
    places = samples(lake.planned())
    pq.write_table(pq.read_table(odd).drop_columns("x"), odd)
    *_, last = examine(ShardWorker(lake.worker_spec()), places)
    assert isinstance(last, Examined)
    found = last.sampled
    assert (found.rows, found.failed, len(found.unread)) == (6 * 32, 1, 2)
    refuse_broken(lake.request().job, found)
    assert sample_notes(lake.worker_spec(), found)[2:] == [
        "1 of 192 sample rows cannot be scored, and retry.max_quarantined = 0.001 allows 8 of the whole run; the "
        f"first: {lake.folder}/data/part-02.parquet: ValueError: not 4010 (model.py:7, in score)",
    ]
    (note,) = last.notes
    assert note.startswith("'score' is NaN or infinite in 1 value of 191 rows of the sample; a check ")
    assert "column 'x' is missing: its shards will fail" in sample_notes(lake.worker_spec(), found)[0]


def test_a_row_that_fails_beside_a_carried_column_of_views_costs_itself(lake: Lake) -> None:
    """Arrow cannot take rows of such a column."""
    path = lake.write_file("views.parquet", 0, 100)
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, pa.field("name", pa.string_view()), table["name"].cast(pa.string_view())), path)
    body = """if 0 in x:
        raise ValueError("not 0")
    return {"score": x}"""
    lake.write_model(SOMETIMES.format(body=body))
    lake.write_job()
    *_, last = examine(ShardWorker(lake.worker_spec()), samples(lake.planned()))
    assert isinstance(last, Examined), last
    assert last.sampled.file is not None
    assert last.sampled.values[0] == ("1", "row 1", "1")


def test_a_gate_that_the_sample_fails_is_a_note(lake: Lake) -> None:
    """Of an output and of a carried column, over all places; nothing is published in the morning if it stays so."""
    lake.write_model()
    lake.ready(checks=[{"column": "score", "max": 14000}, {"column": "id", "min": 0, "max": 5}])
    *_, last = examine(ShardWorker(lake.worker_spec()), samples(lake.planned()))
    assert isinstance(last, Examined)
    gates = [note.partition(": ")[0] for note in last.notes]
    assert gates == ["score.max does not pass on the sample", "id.max does not pass on the sample"]
    assert "The greatest 'score' is 14062, above checks[0].max = 14000." in last.notes[0]


def test_a_batch_that_no_row_explains_is_a_note_if_it_is_in_one_file(lake: Lake) -> None:
    """A run goes on after one such accident; at its first two places it would not."""
    body = """if 4010 in x and len(x) > 1:
        raise ValueError("too many")
    return {"score": x}"""
    lake.write_model(SOMETIMES.format(body=body))
    lake.ready()
    *_, last = examine(ShardWorker(lake.worker_spec()), samples(lake.planned()))
    assert isinstance(last, Examined)
    assert (last.sampled.broken, last.sampled.failed) == ((), 0)
    (note,) = last.notes
    assert note.startswith("the predictor fails for batches though it can score each of their rows")
    assert note.endswith(f"(32 rows of {lake.folder}/data/part-02.parquet)")


def labelled(lake: Lake, *labels: Any) -> list[Piece]:
    lake.write_model()
    lake.ready(label="late")
    for index, value in enumerate(labels):
        path = lake.folder / "data" / f"part-{index:02d}.parquet"
        table = pq.read_table(path)
        pq.write_table(
            table.append_column("late", pa.array([value] * len(table), pa.int8())), path, row_group_size=1000
        )
    return samples(lake.planned())


def test_labels_of_three_classes_are_found_in_whichever_file(lake: Lake) -> None:
    """By reading that one column: no model, no cluster."""
    places = labelled(lake, 0, 1, None, 2)
    request = lake.request()
    schema = pa.schema([("late", pa.int8())])
    with pytest.raises(JobError) as caught:
        check_labels(LakeStorage(), request.job, schema, places)
    assert str(caught.value) == (
        f"label: label column 'late' holds 2; it must be 0, 1 or null (in {lake.folder}/data/part-03.parquet)"
    )
    check_labels(LakeStorage(), request.job, schema, places[:6])


def test_labels_are_looked_at_as_the_task_of_the_job_has_them(lake: Lake) -> None:
    """A label 2 is no 0 or 1, but a number; an infinite one is neither."""
    places = labelled(lake, 0, 1, None, 2)
    lake.write_job(label="late", evaluation={"task": "regression"})
    schema = pa.schema([("late", pa.int8())])
    check_labels(LakeStorage(), lake.request().job, schema, places)
    for path in sorted((lake.folder / "data").iterdir()):
        table = pq.read_table(path)
        late = pa.array([math.inf if "-01" in path.name else 1.5] * len(table))
        pq.write_table(table.set_column(3, "late", late), path, row_group_size=1000)
    schema = pa.schema([("late", pa.float64())])
    with pytest.raises(JobError, match=r"'late' holds inf; it must be a finite number or null .*part-01\.parquet"):
        check_labels(LakeStorage(), lake.request().job, schema, samples(lake.planned()))


def test_a_run_is_refused_only_where_all_labels_are_wrong(lake: Lake) -> None:
    """One bad file costs that file. A place without labels, or that cannot be read, says nothing."""
    places = labelled(lake, 2, None, 1, 3)
    request = lake.request()
    schema = pa.schema([("late", pa.int8())])

    def check(places: list[Piece]) -> None:
        check_labels(LakeStorage(), request.job, schema, places, all_alike=True)

    check(places)
    check(places[2:4])
    wrong = [*places[:4], *places[6:]]
    (lake.folder / "data" / "part-01.parquet").write_text("no Parquet")
    with pytest.raises(JobError, match=r"holds 2; it must be 0, 1 or null \(in .*/part-00\.parquet\)$"):
        check(wrong)
    first = list(discover(LakeStorage(), request.job, BEGINNING).pieces(3))
    assert [(Path(piece.uri).name, piece.rows) for piece in first] == [
        ("part-00.parquet", 1000),
        ("part-02.parquet", 1000),
    ]
