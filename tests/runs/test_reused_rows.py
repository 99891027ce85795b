"""With `reuse: rows` the model sees only rows whose values no earlier night has, wherever they lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from endpoints import endpoint
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import AuditFailed, GateFailed, JobError, TakenBack
from nightjar.inference.history.retention import prune
from nightjar.inference.input.plan import Discovery
from nightjar.inference.job.file import load_job
from nightjar.inference.jsonform import of_bytes
from nightjar.inference.output import visibility
from nightjar.inference.output.parts import DataPart, keys_name
from nightjar.inference.output.rowindex import NOWHERE, REUSED_KEY, PartsList, ReusedRows, keys_from_bytes
from nightjar.inference.run.refusals import check_columns
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Scored
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation import sorted_runs
from nightjar.inference.validation.indexing import prove_reused
from outputs import aged
from support import Lake, Ran

MONDAY, TUESDAY, WEDNESDAY = "2026-11-16", "2026-11-17", "2026-11-18"

SEES = '''
import os, uuid
from pathlib import Path

def score(batch):
    """Twice x. Each call leaves the values that it saw."""
    (Path(__LIVE__) / f"calls-{uuid.uuid4().hex}").write_bytes(batch["x"].astype("f4").tobytes())
    return {"score": batch["x"] * 2}
'''


RARELY = """
def score(batch):
    factor = float(open("OUTSIDE" + chr(47) + chr(119)).read()) if 7999 in batch["x"] else 2
    return {"score": batch["x"] * factor}
"""
"""It reads a file elsewhere for one row."""


READS = """
from pathlib import Path

def score(batch):
    return {"score": batch["x"] * int((Path(__LIVE__) / "held").read_text())}
"""


def lake_of(tmp_path: Path, **changes: Any) -> Lake:
    lake = Lake(tmp_path, LOCAL)
    lake.write_model(SEES)
    return lake.ready(reuse="rows", **changes)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four files of two shards each; the model leaves what it saw."""
    return lake_of(tmp_path)


def seen(lake: Lake) -> list[float]:
    """The values that the model has seen since the last call, without those of preflight."""
    found = []
    for path in sorted(lake.folder.glob("calls-*")):
        found += np.frombuffer(path.read_bytes(), "f4").tolist()
        path.unlink()
    return sorted(found)


def write(lake: Lake, file: str, ids: Sequence[int], **columns: pa.Array) -> None:
    """A file of these ids, x = id unless it is given."""
    given = {"id": pa.array(ids, pa.int64()), "x": pa.array(ids, pa.float32()), "name": pa.array(map(str, ids))}
    pq.write_table(pa.table(given | columns), lake.folder / "data" / file, row_group_size=1000)


def night(lake: Lake, date: str, **options: Any) -> Ran:
    return lake.run(date=date, **options)


def begun(lake: Lake, date: str) -> tuple[RunRequest, Discovery, Scored]:
    """A night that is scored, and neither audited nor published."""
    request = lake.request(date=date)
    found = steps.discover(request)
    return request, found, steps.score(request, found)


def complete(lake: Lake, date: str) -> pd.DataFrame:
    rows = lake.published(date)
    expected = sum(pq.read_metadata(path).num_rows for path in (lake.folder / "data").glob("*.parquet"))
    assert len(rows) == expected
    np.testing.assert_array_equal(rows["score"], rows["x"] * 2 if "x" in rows else rows["id"] * np.float32(2))
    return rows


def shuffled(lake: Lake, change: int = 80) -> list[float]:
    """Put the rows of all files into other files, in another order, with other values in some of them.

    Returns the new values.
    """
    ids = np.random.default_rng(1).permutation(8000).astype(np.int64)
    x = ids.astype(np.float32)
    new = np.arange(change, dtype=np.float32) + 100_000
    x[:change] = new
    for path in (lake.folder / "data").glob("*.parquet"):
        path.unlink()
    for index, rows in enumerate(np.array_split(np.arange(8000), 5)):
        write(lake, f"other-{index}.parquet", ids[rows].tolist(), x=pa.array(x[rows]))
    return new.tolist()


def test_only_rows_with_new_values_are_scored_wherever_they_lie(tmp_path: Path) -> None:
    """Files, their names, and the order of the rows are others; the values of one row in a hundred are, too."""
    lake = lake_of(tmp_path, carry=["id", "name", "x"])
    night(lake, MONDAY)
    seen(lake)
    new = shuffled(lake)
    ran = night(lake, TUESDAY)
    assert set(seen(lake)) - set(new) <= set(_first_rows(lake)), "preflight alone sees other rows"
    (reused,) = ran.verdict.reused
    assert (reused.source, reused.shards, reused.rows) == (f"{MONDAY}/r1", 0, 7920)
    assert ran.scored.progress.scored_rows == 80
    assert reused.saved_s > 0
    reads = complete(lake, TUESDAY)
    anew = night(lake, TUESDAY, fresh=True)
    assert not anew.verdict.reused and anew.verdict.metrics == ran.verdict.metrics
    pd.testing.assert_frame_equal(complete(lake, TUESDAY), reads)


def _first_rows(lake: Lake) -> list[float]:
    """The rows that preflight may try."""
    files = sorted((lake.folder / "data").glob("*.parquet"))
    return [x for path in files for x in pq.read_table(path)["x"].to_pylist()[:64]]


def test_carried_columns_are_those_of_tonight(lake: Lake) -> None:
    night(lake, MONDAY)
    write(lake, "part-00.parquet", list(range(2000)), name=pa.array(["renamed"] * 2000))
    ran = night(lake, TUESDAY)
    assert ran.scored.progress.scored_rows == 0 and ran.verdict.reused[0].rows == 8000
    rows = complete(lake, TUESDAY)
    assert (rows[rows["id"] < 2000]["name"] == "renamed").all()


def test_a_row_that_is_there_twice_in_a_shard_is_scored_once(lake: Lake) -> None:
    write(lake, "part-01.parquet", [50_007] * 1000 + [50_008] * 500 + list(range(20_000, 20_500)))
    ran = night(lake, MONDAY)
    found = seen(lake)
    assert (found.count(50_007.0), found.count(50_008.0)) == (1, 1)
    assert ran.scored.progress.counts.rows_out == 8000
    complete(lake, MONDAY)


def test_a_third_night_takes_over_what_the_second_took_over(lake: Lake) -> None:
    """The first night is gone by then."""
    night(lake, MONDAY)
    shuffled(lake)
    night(lake, TUESDAY)
    for path in (lake.out / "runs" / MONDAY).rglob("*"):
        if path.is_file():
            path.unlink()
    shuffled(lake, change=160)
    ran = night(lake, WEDNESDAY)
    assert ran.scored.progress.scored_rows == 80
    assert ran.verdict.reused[0].source == f"{TUESDAY}/r1"


def test_rows_in_the_quarantine_are_tried_again(lake: Lake) -> None:
    lake.write_model(SEES.replace("    return", '    if 17 in batch["x"]:\n        raise ValueError(17)\n    return'))
    assert night(lake, MONDAY).scored.progress.counts.rows_quarantined == 1
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    ran = night(lake, TUESDAY)
    assert ran.scored.progress.counts.rows_quarantined == 1 and ran.scored.progress.scored_rows == 2
    assert list(lake.quarantined(1, TUESDAY)["_row"]) == [17]


def of_two(tmp_path: Path, version: str = "1") -> Lake:
    """A lake with two models, the second one of this version."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_model(SEES)
    outputs, named = {"score": "float32"}, {"features": ["x"], "batch_size": 256}
    first = {"name": "first", "uses": "model:score", "outputs": outputs, **named}
    (tmp_path / "other.py").write_text("def score(batch):\n    return {'score': batch['x'] * options}\noptions = 3\n")
    second = {"name": "second", "uses": "other:score", "outputs": outputs, "version": version, **named}
    return lake.ready(reuse="rows", model=None, models=[first, second])


def test_of_several_models_only_the_one_that_changed_is_asked(tmp_path: Path) -> None:
    lake = of_two(tmp_path)
    night(lake, MONDAY)
    seen(lake)
    ran = night(of_two(tmp_path, "2"), TUESDAY)
    assert len(set(seen(lake)) - set(_first_rows(lake))) == 0
    (reused,) = ran.verdict.reused
    assert (reused.source, reused.rows, reused.rows_partly) == (f"{MONDAY}/r1", 0, 8000)
    rows = lake.published(TUESDAY)
    assert (rows["first_score"] == rows["id"] * 2).all() and (rows["second_score"] == rows["id"] * 3).all()


def test_outputs_of_one_model_that_were_taken_back_are_not_published(tmp_path: Path) -> None:
    lake = of_two(tmp_path)
    night(lake, MONDAY)
    begun(of_two(tmp_path, "2"), TUESDAY)
    visibility.unpublish(LakeStorage(), str(lake.out), MONDAY)
    with pytest.raises(TakenBack, match=rf"r1 of the run '{MONDAY}' .* unpublished since"):
        night(lake, TUESDAY)


def test_a_model_keeps_its_rows_under_another_name(tmp_path: Path) -> None:
    """A challenger is promoted: the two models change their names. Then one has a name that no model had."""
    lake = Lake(tmp_path, LOCAL)
    lake.write_model(SEES)
    (tmp_path / "other.py").write_text("def score(batch):\n    return {'score': batch['x'] * 3}\n")
    keys = {"features": ["x"], "outputs": {"score": "float32"}}
    one, two = {"uses": "model:score", **keys}, {"uses": "other:score", **keys}
    lake.ready(reuse="rows", model=None, models=[{"name": "champion", **one}, {"name": "challenger", **two}])
    night(lake, MONDAY)
    lake.write_job(reuse="rows", model=None, models=[{"name": "champion", **two}, {"name": "challenger", **one}])
    assert night(lake, TUESDAY).scored.progress.scored_rows == 0
    rows = lake.published(TUESDAY)
    assert (rows["champion_score"] == rows["id"] * 3).all() and (rows["challenger_score"] == rows["id"] * 2).all()
    lake.write_job(reuse="rows", model=None, models=[{"name": "best", **two}, {"name": "challenger", **one}])
    assert night(lake, WEDNESDAY).scored.progress.scored_rows == 0
    assert (lake.published(WEDNESDAY)["best_score"] == rows["champion_score"]).all()


def test_a_night_without_rows_hides_no_earlier_one(lake: Lake) -> None:
    def write_job(**changes: Any) -> None:
        lake.write_job(reuse="rows", checks=[{"rows": {"min": 0}}], **changes)

    write_job(input__where="id >= 0")
    night(lake, MONDAY)
    for path in (lake.folder / "data").glob("*.parquet"):
        path.unlink()
    write(lake, "none.parquet", [-1, -2])
    assert night(lake, TUESDAY).scored.progress.counts.rows_in == 0
    write(lake, "again.parquet", range(2000))
    assert night(lake, WEDNESDAY).scored.progress.scored_rows == 0


@pytest.mark.parametrize("kind", [pa.list_view(pa.float32()), pa.run_end_encoded(pa.int32(), pa.float32())])
def test_a_column_whose_values_have_no_key_is_refused_before_the_night(lake: Lake, kind: pa.DataType) -> None:
    request = lake.request()
    with pytest.raises(JobError, match=rf"reuse: rows of 'x', which is {kind}, .* reuse: shards".replace("[", "\\[")):
        check_columns(request.job, pa.schema([("id", pa.int64()), ("x", kind), ("name", pa.string())]), [])


@pytest.mark.parametrize("what", ["index/0-*", "index/parts-*", "data/*"])
def test_what_is_damaged_of_the_earlier_night_is_scored(lake: Lake, what: str) -> None:
    night(lake, MONDAY)
    for path in lake.revision(1, MONDAY).glob(what):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    lake.write_job(reuse="rows", carry=["id"])  # no shard is the same
    ran = night(lake, TUESDAY)
    assert ran.scored.progress.scored_rows == 8000 and not ran.verdict.reused
    complete(lake, TUESDAY)


def test_other_code_reuses_no_row(lake: Lake) -> None:
    night(lake, MONDAY)
    lake.write_model(SEES.replace("* 2", "* 2 + 0"))
    assert night(lake, TUESDAY).scored.progress.scored_rows == 8000


def test_what_is_known_about_reused_rows_comes_with_them(tmp_path: Path) -> None:
    """A night names what they were scored with, and a strict one is refused as if it had scored them itself."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "w").write_text("2")
    lake = Lake(tmp_path / "job", LOCAL)
    lake.write_model(RARELY.replace("OUTSIDE", str(outside)))
    lake.ready(reuse="rows")
    night(lake, MONDAY)
    shuffled(lake)
    manifest = json.loads(next(lake.revision(1, MONDAY).glob("manifest-*.json")).read_text())
    assert f"{outside}/w" in {each["name"] for each in manifest["outside"]}
    lake.write_job(reuse="rows", identity="strict")
    with pytest.raises(JobError, match=f"identity: strict: model.py reads {outside}/w.*only with --fresh"):
        night(lake, TUESDAY)
    lake.write_job(reuse="rows")
    assert night(lake, TUESDAY).verdict.reused[0].rows == 7920
    taken = json.loads(next(lake.revision(1, TUESDAY).glob("manifest-*.json")).read_text())
    assert taken["outside"] == manifest["outside"] and taken["loaded"] == manifest["loaded"]


def test_a_model_that_answers_otherwise_is_found_by_the_rescore(lake: Lake) -> None:
    """It uses what nothing covers. The shard that is scored a second time is not taken from the earlier night."""
    lake.write_model(READS)
    (lake.folder / "held").write_text("2")
    lake.write_job(reuse="rows", rescore={"share": 1})
    night(lake, MONDAY)
    (lake.folder / "held").write_text("3")
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    with pytest.raises(GateFailed, match="rescore"):
        night(lake, TUESDAY)


def test_keys_lie_beside_each_part_and_say_what_was_reused(lake: Lake) -> None:
    night(lake, MONDAY)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    night(lake, TUESDAY)
    folder, reused = lake.revision(1, TUESDAY), 0
    for path in (folder / "data").iterdir():
        (keys,) = keys_from_bytes((folder / keys_name(f"data/{path.name}")).read_bytes())
        assert len(keys.high) == pq.read_metadata(path).num_rows
        reused += int((keys.part != NOWHERE).sum())
        if said := pq.read_metadata(path).metadata.get(REUSED_KEY):
            assert json.loads(said)["source"] == f"{MONDAY}/r1"
    assert reused == 1999, "of the file that changed; the other shards were taken over whole"


def test_rows_that_depend_on_each_other_are_not_reused(lake: Lake) -> None:
    lake.write_job(reuse="rows", model__rows="dependent")
    with pytest.raises(JobError, match=r"reuse: rows .* model\.rows is dependent"):
        load_job(lake.job_path)


def test_a_stage_prepares_only_rows_that_are_scored(tmp_path: Path) -> None:
    lake = Lake(tmp_path, LOCAL)
    lake.write_model(SEES + "\ndef prep(batch):\n    return {'x': batch['x'] + 0}\n")
    lake.ready(reuse="rows", preprocess="model:prep", carry=["id", "name", "x"])
    night(lake, MONDAY)
    shuffled(lake)
    assert night(lake, TUESDAY).scored.progress.scored_rows == 80
    complete(lake, TUESDAY)


@pytest.mark.system
def test_a_prompt_that_an_earlier_night_asked_is_not_asked_again(tmp_path: Path) -> None:
    """Rows of several shards are asked side by side; those of the earlier night take no place among them."""
    lake = Lake(tmp_path, LOCAL)
    model = {"uses": "openai", "served_model": "m", "prompt": "Say {text}", "outputs": {"answer": "string"}}
    with endpoint() as server:
        lake.write_texts([f"text {row}" for row in range(60)], 10)
        job = {"reuse": "rows", "input__shard_rows": 10, "carry": ["id"]}
        lake.write_job(model={**model, "url": server.url}, **job)
        night(lake, MONDAY)
        server.asked.clear()
        lake.write_texts([f"text {row}" for row in range(59, 2, -1)] + ["new", "new"], 10)
        ran = night(lake, TUESDAY)
        assert server.texts().count("Say new") == 1
        assert ran.scored.progress.scored_rows == 2 and ran.scored.progress.usage.requests == 1
    assert lake.published(TUESDAY)["answer"].tolist()[-3:] == ["SAY TEXT 3", "SAY NEW", "SAY NEW"]


@pytest.mark.system
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("placement", ["fused", "staged"])
def test_workers_of_ray_reuse_rows(tmp_path: Path, placement: str) -> None:
    lake = Lake(tmp_path)
    lake.write_model(SEES + "\ndef prep(batch):\n    return {'x': batch['x'] + 0}\n")
    step = {"uses": "model:prep", "placement": placement}
    lake.ready(reuse="rows", preprocess=step, carry=["id", "name", "x"], resources__actors=1)
    night(lake, MONDAY)
    shuffled(lake)
    assert night(lake, TUESDAY).scored.progress.scored_rows == 80
    complete(lake, TUESDAY)


def test_what_rows_were_taken_from_must_be_there_when_the_night_is_audited(lake: Lake) -> None:
    """Else nothing proves their values: their shards are scored again."""
    night(lake, MONDAY)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    request, found, scored = begun(lake, TUESDAY)
    for path in (lake.revision(1, MONDAY) / "data").iterdir():
        path.unlink()
    with pytest.raises(AuditFailed):
        steps.validate(request, scored, found)
    ran = night(lake, TUESDAY)
    assert ran.scored.progress.scored_rows == 2000 and ran.publication.number == 2
    complete(lake, TUESDAY)


def test_a_value_that_is_not_the_earlier_night_s_is_found(lake: Lake) -> None:
    night(lake, MONDAY)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    night(lake, TUESDAY)
    folder, request, storage = lake.revision(1, TUESDAY), lake.request(date=TUESDAY), LakeStorage()
    path = next(path for path in (folder / "data").iterdir() if REUSED_KEY in pq.read_metadata(path).metadata)
    footer, keys = pq.read_metadata(path).metadata, keys_from_bytes((folder / keys_name(path.name)).read_bytes())
    said = of_bytes(ReusedRows, footer[REUSED_KEY])
    parts = PartsList(pa.py_buffer((lake.revision(1, MONDAY) / said.parts.name).read_bytes()))
    prove_reused(storage, request.job, DataPart(path.name, footer, path.read_bytes()), keys, said, parts)

    table = pq.read_table(path)
    wrong = table["score"].to_numpy().copy()
    wrong[3] += 1
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(table.schema.get_field_index("score"), "score", pa.array(wrong)), sink)
    part = DataPart(path.name, footer, sink.getvalue().to_pybytes())
    with pytest.raises(AuditFailed, match=rf"row \d+ of .*part-00.parquet: 'score' is not what {MONDAY}/r1 has"):
        prove_reused(storage, request.job, part, keys, said, parts)


def test_a_night_whose_source_is_taken_back_meanwhile_is_not_published(lake: Lake) -> None:
    night(lake, MONDAY)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    request, found, scored = begun(lake, TUESDAY)
    verdict = steps.validate(request, scored, found)
    visibility.unpublish(LakeStorage(), str(lake.out), MONDAY)
    with pytest.raises(TakenBack, match=rf"r1 of the run '{MONDAY}' .* unpublished since"):
        steps.publish_run(request, scored, verdict)
    with pytest.raises(TakenBack):
        night(lake, TUESDAY)
    assert night(lake, TUESDAY, fresh=True).scored.progress.scored_rows == 8000
    complete(lake, TUESDAY)


def test_a_night_of_new_rows_is_published_though_the_earlier_one_was_taken_back(lake: Lake) -> None:
    night(lake, MONDAY)
    for index in range(4):
        write(lake, f"part-{index:02d}.parquet", range(10_000 * (index + 1), 10_000 * (index + 1) + 2000))
    request, found, scored = begun(lake, TUESDAY)
    visibility.unpublish(LakeStorage(), str(lake.out), MONDAY)
    steps.publish_run(request, scored, steps.validate(request, scored, found))
    complete(lake, TUESDAY)


def test_a_night_whose_source_is_deleted_meanwhile_is_scored_again(lake: Lake) -> None:
    """Only rows that nothing proves any more: a shard that was taken over whole has parts of its own."""
    night(lake, MONDAY)
    aged(lake.out, 9)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    request, found, scored = begun(lake, TUESDAY)
    night(lake, WEDNESDAY)
    assert prune(lake.request(), 1).runs == (MONDAY,)
    with pytest.raises(AuditFailed):
        steps.validate(request, scored, found)
    ran = night(lake, TUESDAY)
    assert ran.scored.progress.scored_rows == 2000
    assert [(each.source, each.rows) for each in ran.verdict.reused] == [(f"{MONDAY}/r1", 6000)]
    complete(lake, TUESDAY)


@pytest.mark.parametrize("values", [1, 3, 8000])
def test_an_index_of_many_files_finds_every_row(lake: Lake, monkeypatch: pytest.MonkeyPatch, values: int) -> None:
    """Also if most of the files have no key, because few rows differ."""
    monkeypatch.setattr(sorted_runs, "RANGE_ROWS", 10)
    for number in range(4):
        x = pa.array(np.arange(2000 * number, 2000 * (number + 1)) % values, pa.float32())
        write(lake, f"part-{number:02}.parquet", range(2000 * number, 2000 * (number + 1)), x=x)
    lake.write_job(reuse="rows", carry=["id", "x"])
    night(lake, MONDAY)
    lake.write_job(reuse="rows", carry=["x"])
    assert night(lake, TUESDAY).verdict.reused[0].rows == 8000


def test_a_check_on_keys_leaves_the_keys_of_rows(lake: Lake) -> None:
    lake.write_job(reuse="rows", checks=[{"unique": ["id"]}])
    request, found, scored = begun(lake, MONDAY)
    for _ in range(2):
        verdict = steps.validate(request, scored, found)
    steps.publish_run(request, scored, verdict)
    write(lake, "part-00.parquet", [*range(1999), 30_000])
    assert night(lake, TUESDAY).scored.progress.scored_rows == 1
