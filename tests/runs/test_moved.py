"""`nightjar diff`: the rows of two published runs are joined by a key, and those that moved most are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from nightjar.flows import diff
from nightjar.flows.cli.main import app
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, Missing
from nightjar.inference.history.comparison import ROWS
from nightjar.inference.output import visibility
from nightjar.inference.storage.lake import LakeStorage
from support import NIGHT, Lake, conforms

EARLIER = "2026-11-18"

MODEL = """
import numpy as np

def score(batch):
    x = batch["x"] * FACTOR
    kind = np.where(x % 7 < 3, "AA", "DL")
    return {"score": x, "kind": kind, "embedding": np.stack([x, -x], axis=1)}
"""
OUTPUTS = {"score": "float32", "kind": "string", "embedding": "float32[2]"}


def scored(lake: Lake, night: str, first: int, rows: int, factor: float = 1.0, **changes: object) -> None:
    """Score these ids, under a model that is another one if the factor is."""
    for path in (lake.folder / "data").glob("*.parquet"):
        path.unlink()
    lake.write_file("part.parquet", first, rows)
    lake.write_model(MODEL.replace("FACTOR", repr(factor)))
    lake.write_job(**{"model__outputs": OUTPUTS, "checks": [{"unique": ["id"]}], **changes})
    lake.run(date=night)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Rows 0 to 1,999 and then 10 to 2,099, scored 1.5 times as high."""
    lake = Lake(tmp_path_factory.mktemp("moved"), LOCAL)
    scored(lake, EARLIER, 0, 2000)
    scored(lake, NIGHT, 10, 2090, 1.5)
    return lake


def test_the_rows_that_moved_most_are_those_that_pandas_finds(nights: Lake) -> None:
    found = diff(nights.job_path, EARLIER, NIGHT).rows
    assert found is not None
    assert (found.key, found.joined) == (("id",), 1990)
    assert (found.before.rows, found.before.only, found.before.keyless, found.before.repeated) == (2000, 10, 0, 0)
    assert (found.now.rows, found.now.only, found.now.keyless, found.now.repeated) == (2090, 100, 0, 0)
    one, other = (nights.published(night) for night in (EARLIER, NIGHT))
    both = pd.merge(one, other, on="id", suffixes=("_before", "_now"))
    change = (both["score_now"].astype(float) - both["score_before"].astype(float)).set_axis(both["id"])
    score, kind, embedding = found.outputs
    assert [each.output for each in found.outputs] == list(OUTPUTS)
    wanted = change.abs().sort_values(ascending=False)[:ROWS].index
    assert [(int(row.key[0]), row.change) for row in score.rows] == [(at, change[at]) for at in wanted]
    assert score.median == pytest.approx(change.abs().median(), rel=1 / 100)
    assert score.max == change.abs().max()
    assert embedding.max == pytest.approx(score.max * 2**0.5)
    changed = both[both["kind_before"] != both["kind_now"]].groupby(["kind_before", "kind_now"]).size()
    assert {(each.before, each.now): each.rows for each in kind.changes} == changed.to_dict()
    assert (kind.changed, kind.unchanged) == (changed.sum(), 1990 - changed.sum())


def test_a_night_that_was_taken_back_is_compared_like_any_other(tmp_path: Path) -> None:
    """That is when a person wants to see it."""
    lake = Lake(tmp_path, LOCAL)
    scored(lake, EARLIER, 0, 1000)
    scored(lake, NIGHT, 0, 1000, 1.5)
    before = diff(lake.job_path, EARLIER, NIGHT)
    visibility.unpublish(LakeStorage(), str(lake.out), NIGHT)
    assert diff(lake.job_path, EARLIER, NIGHT) == before
    with pytest.raises(
        JobError, match=r"^no run '2026-01-01' in .* passed its gates; `nightjar runs JOB` lists the runs"
    ):
        diff(lake.job_path, EARLIER, "2026-01-01")


def test_a_run_beside_itself_has_moved_nowhere(nights: Lake) -> None:
    found = diff(nights.job_path, NIGHT, NIGHT).rows
    assert found is not None
    assert [each.changed for each in found.outputs] == [0] * len(found.outputs)
    figures = [(each.median, each.p99, each.max) for each in found.outputs if each.kind != "value"]
    assert str(figures) == str([(0.0, 0.0, 0.0)] * len(figures))


def test_what_the_command_prints(nights: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    app(["diff", str(nights.job_path), EARLIER, NIGHT, "--rows", "2"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "1,990 rows of both runs joined by id\n" in said
    assert re.search(r"only this run has the key +10 +100 *\n", said)
    assert re.search(r"score +0\.00% +1,990 +502\S* +\S+ +999\.5 *\n", said)
    assert "score: 2 rows of 1,990, the farthest first\n" in said
    assert re.search(r"1999 +1999\S* +2998\.5 +\+999\.5 *\n", said)
    assert re.search(r"AA +DL +\d+ +\d+\.\d\d% *\n", said)
    app(["diff", str(nights.job_path), EARLIER, NIGHT, "--key", "id", "--json"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    conforms(printed, "diff")
    first = {"key": ["1999"], "before": "1999", "now": "2998.5", "change": 999.5}
    assert printed["rows"]["outputs"][0]["rows"][0] == first
    app(["diff", str(nights.job_path), EARLIER, NIGHT, "--rows", "0"], standalone_mode=False)
    assert "joined" not in capsys.readouterr().out


def test_a_key_that_cannot_join_is_refused_if_it_was_asked_for_and_else_only_said(nights: Lake, tmp_path: Path) -> None:
    for key, said in (
        ("idd", "key: 'idd' is not a column of the run 2026-11-18; did you mean 'id'"),
        ("score", "key: 'score' is float32 in the run 2026-11-18, which is no key, because floats are not exact"),
    ):
        with pytest.raises(JobError, match=re.escape(said)):
            diff(nights.job_path, EARLIER, NIGHT, key=key)
    with pytest.raises(JobError, match=r"no run 'nope' in .* passed its gates; `nightjar runs JOB` lists the runs"):
        diff(nights.job_path, EARLIER, "nope")
    elsewhere = Lake(tmp_path, LOCAL)
    elsewhere.write_model(MODEL.replace("FACTOR", "1.0"))
    common = {"output": {"uri": str(nights.out)}, "model__outputs": OUTPUTS}
    elsewhere.write_job(**common, late_labels={"key": ["id", "name"], "label": "late"})
    found = diff(elsewhere.job_path, EARLIER, NIGHT).rows
    assert found is not None
    assert (found.key, found.joined) == (("id", "name"), 1990)
    elsewhere.write_job(**common)
    said = "name the columns by which a row is found in both runs, --key COLUMN"
    assert said in diff(elsewhere.job_path, EARLIER, NIGHT).unjoined
    found = diff(elsewhere.job_path, EARLIER, NIGHT, key=["_file", "_row"]).rows
    assert found is not None
    assert found.joined == 2000, "row 0 of the second night is another one than row 0 of the first"


def test_outputs_that_only_one_run_has_or_of_another_type_are_said_and_the_others_compared(tmp_path: Path) -> None:
    """Also a run that was validated and not published."""
    lake = Lake(tmp_path, LOCAL)
    scored(lake, EARLIER, 0, 1500)
    other = MODEL.replace("FACTOR", "2.0").replace('"kind": kind, ', "").replace("np.stack([x, -x], axis=1)", "kind")
    lake.write_model(other)
    lake.write_job(
        model__outputs={"score": "float64", "embedding": "string"}, carry=["id"], checks=[{"unique": ["id"]}]
    )
    lake.run(publish=False)
    found = diff(lake.job_path, EARLIER, NIGHT).rows
    assert found is not None
    said = {each.output: (each.types, each.kind, each.why) for each in found.outputs}
    assert said["score"] == (("float32", "float64"), "number", "")
    assert said["kind"] == (("string", None), "", f"only {EARLIER} has it")
    assert said["embedding"][2] == f"it is float32[2] in {EARLIER} and string in {NIGHT}; score one of the runs again"
    assert (found.joined, found.outputs[0].changed, found.outputs[0].max) == (1500, 1499, 1499.0)
    for part in sorted((lake.revision(1, EARLIER) / "data").rglob("*.parquet"))[1:]:
        part.unlink()
    with pytest.raises(Missing, match=f"the files of the run '{EARLIER}' were deleted after it was published"):
        diff(lake.job_path, EARLIER, NIGHT)
