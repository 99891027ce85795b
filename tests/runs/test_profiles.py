"""`profile` and checks on drift: a night's columns are described where its rows are, whatever happens to the run, and a
night that is not like the last one is not published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import steps
from nightjar.flows.cli.main import app
from nightjar.inference.errors import AuditFailed, GateFailed, JobError
from nightjar.inference.history.comparison import diff
from nightjar.inference.metrics import profile
from nightjar.inference.metrics.profile import Profile
from support import NIGHT, Lake, conforms
from writers import BEFORE_MANIFEST, BEFORE_RECEIPTS, BEFORE_SWEEP, Point, die_at, metrics_of

EVERY = ("id", "name", "score", "x")


def profile_of(lake: Lake, run_id: str = NIGHT, number: int = 1) -> bytes:
    """The profile beside the manifest of a revision."""
    return rounded(Profile.from_bytes(max(lake.revision(number, run_id).glob("profile-*")).read_bytes()))


def rounded(profile: Profile) -> bytes:
    """The profile without the last digits of its sums, which depend on how the night is cut into shards."""
    for column in profile.columns.values():
        moments = column.numbers.moments
        moments.mean, moments.deviations = float(f"{moments.mean:.9g}"), float(f"{moments.deviations:.9g}")
    return profile.to_bytes()


def direct(lake: Lake) -> bytes:
    """The profile of what was published, in one go, with the feature of the input."""
    rows = lake.published().sort_values("id")
    table = pa.table(
        {
            "id": pa.array(rows["id"], pa.int64()),
            "name": pa.array(rows["name"], pa.string()),
            "score": pa.array(rows["score"], pa.float32()),
            "x": pa.array(rows["id"], pa.float32()),
        }
    )
    found = Profile.empty(EVERY)
    found.update(table)
    return rounded(found)


def test_the_profile_of_a_night_is_that_of_its_rows_however_they_were_cut(lake: Lake) -> None:
    """Of what goes in, comes out and is carried; rows in the quarantine do not count."""
    lake.write_model(
        "def score(batch):\n    if 1234 in batch['x']:\n        raise ValueError('1234')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ran = lake.ready(profile="all", retry__max_quarantined=0.01).run()
    assert profile_of(lake) == direct(lake)
    found = ran.verdict.metrics.profile
    assert set(found) == set(EVERY)
    assert {figures.rows for figures in found.values()} == {7999}
    assert found["name"].numbers is not None
    assert (found["name"].numbers.min, found["name"].numbers.max) == (len("row 0"), len("row 7999"))


def test_a_share_of_the_rows_is_described_the_same_however_they_were_cut(lake: Lake) -> None:
    """Each row that is described is so in whatever shard it is, and all of its columns are."""
    lake.ready(profile={"columns": "all", "share": 0.25})
    found = []
    for number, rows in enumerate((1000, 250, 8000), 1):
        lake.write_job(profile={"columns": "all", "share": 0.25}, input__shard_rows=rows)
        found.append(lake.run(fresh=number > 1).verdict.metrics)
    assert len({profile_of(lake, number=number) for number in (1, 2, 3)}) == 1
    described = {figures.rows for figures in found[0].profile.values()}
    assert len(described) == 1
    assert described.pop() == pytest.approx(2000, abs=170)  # more than four standard deviations
    assert found[0].columns["score"].rows == 8000, "checks are of every row"
    assert profile_of(lake) != direct(lake)


def test_of_a_large_night_as_many_rows_are_described_as_are_enough(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is decided when the night is first planned: what is added to it later is described by the same one."""
    monkeypatch.setattr(profile, "ENOUGH", 2000)
    lake.ready(profile="all").run()
    lake.write_job(profile={"columns": "all", "share": 0.25})
    asked = lake.run(run_id="asked")
    assert profile_of(lake) == profile_of(lake, "asked")
    assert asked.verdict.metrics.columns["score"].rows == 8000
    lake.write_job(profile="all")
    lake.write_file("part-09.parquet", 9000, 4000)
    grown = lake.run()
    assert grown.scored.progress.reused_shards == 8
    lake.write_job(profile={"columns": "all", "share": 0.25})
    lake.run(run_id="asked")
    assert profile_of(lake, number=2) == profile_of(lake, "asked", number=2)
    lake.write_job(profile="all")
    anew = lake.run(fresh=True).verdict.metrics.profile["x"].rows
    assert anew == pytest.approx(2000, abs=170), "a sixth of 12,000"


def test_a_night_that_was_begun_without_a_choice_goes_on_with_all_its_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an earlier version, which described every row."""
    lake.ready(profile="all").run()
    monkeypatch.setattr(profile, "ENOUGH", 2000)
    lake.write_file("part-09.parquet", 9000, 4000)
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 8
    assert ran.verdict.metrics.profile["x"].rows == 12_000


@pytest.mark.parametrize("changes", [{"profile": {"columns": "all", "share": 1}}, {"input__where": "id >= 0"}])
def test_all_rows_are_described_where_the_job_says_so_or_nobody_has_counted_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(profile, "ENOUGH", 2000)
    ran = lake.ready(**{"profile": "all"} | changes).run()
    assert ran.verdict.metrics.profile["x"].rows == 8000


@pytest.mark.parametrize("point", [BEFORE_RECEIPTS, BEFORE_MANIFEST, BEFORE_SWEEP], ids=str)
def test_a_run_that_was_killed_has_the_same_profile(lake: Lake, tmp_path: Path, point: Point) -> None:
    lake.ready(profile="all").run(run_id="undisturbed")
    die_at(lake.request(run_id="killed"), point, tmp_path)
    lake.run(run_id="killed")
    assert profile_of(lake, "killed") == profile_of(lake, "undisturbed")
    assert metrics_of(lake, "killed") == metrics_of(lake, "undisturbed")
    beside = lake.revision(1, "killed")
    parts = {path.stem for path in (beside / "data").iterdir()}
    assert {path.stem for path in (beside / "sidecars").iterdir()} == parts


def test_a_new_revision_copies_profiles_and_sweeps_those_of_no_part(lake: Lake) -> None:
    lake.ready(profile="outputs").run()
    stray = lake.revision(2) / "sidecars" / f"{'0' * 20}-000001-00000000.metrics"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"of an attempt that died before its part was there")
    lake.write_file("part-03.parquet", 9000, 1000)
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 6
    assert not stray.exists()
    parts = {path.stem for path in (lake.revision(2) / "data").iterdir()}
    assert {path.stem for path in stray.parent.iterdir()} == parts
    assert ran.verdict.metrics.profile["score"].rows == 7000


@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_a_damaged_profile_is_found_by_the_audit_and_its_shard_scored_again(lake: Lake, harm: str) -> None:
    lake.ready(profile="all")
    request = lake.request()
    found = steps.discover(request)
    scored = steps.score(request, found)
    first = min((lake.revision() / "sidecars").iterdir())
    if harm == "gone":
        first.unlink()
    else:
        first.write_bytes(first.read_bytes()[:-1] + b"x")
    with pytest.raises(AuditFailed, match=r"sidecars/.*Repeat the command: it scores this shard again"):
        steps.validate(request, scored, found)
    lake.run()
    assert profile_of(lake) == direct(lake)


def test_a_profile_that_is_asked_for_later_is_made_of_every_shard(lake: Lake) -> None:
    """And a limit of a check on drift is judged again without scoring."""
    lake.ready().run()
    lake.write_job(checks=[{"drift": "x"}])
    ran = lake.run()
    assert ran.scored.again == ("profile changed in the job: 8 of 8 shards are scored",)
    assert list(ran.verdict.metrics.profile) == ["x"]
    lake.write_job(checks=[{"drift": "x", "psi": 0.01, "on_fail": "warn"}])
    assert lake.run().scored.progress.reused_shards == 8


def shifted(lake: Lake, by: float) -> None:
    """The input with another x."""
    for path in (lake.folder / "data").iterdir():
        table = pq.read_table(path)
        x = pa.array(table["x"].to_numpy() + np.float32(by))
        pq.write_table(table.set_column(1, "x", x), path, row_group_size=1000)


def test_a_night_that_has_drifted_is_not_published_until_somebody_says_it_is_right(lake: Lake) -> None:
    """The first night passes; the second one changes a feature that is not carried, and is compared with the first."""
    lake.ready(checks=[{"drift": ["x", "score"]}, {"drift": "all", "on_fail": "warn"}])
    first = lake.run(date="2026-11-18")
    drifts = first.verdict.gates[-3:]
    assert [(gate.name, gate.verdict, gate.observed) for gate in drifts] == [
        ("x.drift", "pass", "nothing to compare with"),
        ("score.drift", "pass", "nothing to compare with"),
        ("drift", "pass", "nothing to compare with"),
    ]
    assert "no earlier night is published" in drifts[0].sentence
    same = lake.run(date=NIGHT)
    assert [(gate.passed, gate.observed) for gate in same.verdict.gates[-3:]] == [
        (True, "psi 0"),
        (True, "psi 0"),
        (True, "0 of 4 columns"),
    ]
    shifted(lake, 4000)
    with pytest.raises(GateFailed) as failed:
        lake.run(date="2026-11-20")
    said = str(failed.value)
    assert said.startswith(
        f"'x' has drifted from {NIGHT}, the last published night: its population stability index is "
    )
    assert "where checks[0].psi = 0.2 allows 0.20" in said
    assert "between 8,000 and 8,000 rows. Most changed: " in said
    assert "Look at what makes the values, or raise checks[0].psi if tonight is right.; 'score' has drifted" in said
    assert [gate.verdict for gate in failed.value.gates[-3:]] == ["block", "block", "warn"]
    assert failed.value.gates[-1].sentence.startswith(
        f"2 of 4 columns drifted from {NIGHT}, the last published night: "
    )
    assert set(lake.snapshot().runs) == {"2026-11-18", NIGHT}
    lake.write_job(checks=[{"drift": ["x", "score"], "on_fail": "warn"}, {"drift": "all", "on_fail": "warn"}])
    agreed = lake.run(date="2026-11-20")
    assert agreed.scored.progress.reused_shards == 8
    assert "2026-11-20" in lake.snapshot().runs


def test_a_run_may_be_compared_with_a_night_that_the_job_names(lake: Lake) -> None:
    lake.ready(checks=[{"drift": "x", "against": "gone"}])
    with pytest.raises(GateFailed, match=r"checks\[0\]\.drift has nothing to compare with: no run 'gone' is published"):
        lake.run(run_id="one")
    lake.write_job(profile=["x"])
    lake.run(run_id="one")
    shifted(lake, 9000)
    lake.write_job(profile=["x"])
    lake.run(date="2026-11-20")
    lake.write_job(checks=[{"drift": "x", "against": "one"}])
    with pytest.raises(GateFailed, match=f"'x' has drifted from the run one of {NIGHT}: "):
        lake.run(date="2026-11-21")


def test_a_run_that_is_not_there_is_missed_before_anything_is_scored_and_once(lake: Lake) -> None:
    """Whatever is compared with it; where the check only warns, the night is scored."""
    checks = [{"drift": [name], "against": "baseline"} for name in ("x", "score")]
    lake.ready(profile="all", checks=checks)
    with pytest.raises(
        GateFailed, match=r"^checks\[0\].drift has nothing to compare with: no run 'baseline' is publ"
    ) as told:
        lake.run()
    assert str(told.value).count("nothing to compare with") == 1
    assert not [record for record in lake.records() if record["t"] == "committed"]
    lake.ready(profile="all", checks=[{**check, "on_fail": "warn"} for check in checks])
    assert lake.run().publication.number == 1


def test_training_data_may_be_what_a_night_is_compared_with(lake: Lake) -> None:
    """A run that is validated and not published: a second job file of the same name has the training data as input."""
    lake.ready(profile="all")
    lake.run(run_id="training", publish=False)
    assert not lake.snapshot().runs
    lake.write_job(checks=[{"drift": "all", "against": "training", "psi": 0.05}])
    ran = lake.run(date="2026-11-20")
    assert ran.verdict.gates[-1].sentence == f"4 columns as in the run training of {NIGHT}, within checks[0]."
    shifted(lake, 2000)
    with pytest.raises(GateFailed, match=f"2 of 4 columns drifted from the run training of {NIGHT}: "):
        lake.run(date="2026-11-21")
    # A run that scored only a part is none.
    lake.write_job(profile="all")
    lake.run(run_id="training", limit=1000, fresh=True)
    lake.write_job(checks=[{"drift": "all", "against": "training"}])
    with pytest.raises(GateFailed, match="no run 'training' is published, or was validated"):
        lake.run(date="2026-11-22")


def test_a_last_night_that_was_not_described_is_nothing_to_compare_with(lake: Lake) -> None:
    lake.ready().run(date="2026-11-18")
    lake.write_job(checks=[{"drift": "x"}])
    gate = lake.run().verdict.gates[-1]
    assert gate.passed
    assert "the columns of 2026-11-18, the last published night were not described" in gate.sentence


def test_a_damaged_profile_of_the_last_night_is_an_error_that_names_it(lake: Lake) -> None:
    lake.ready(checks=[{"drift": "x"}]).run(date="2026-11-18")
    (file,) = lake.revision(1, "2026-11-18").glob("profile-*")
    file.write_bytes(b"x")
    with pytest.raises(JobError, match=r"2026-11-18/r1/profile-\d+: not the file that was published; restore it"):
        lake.run()


def test_two_runs_are_compared_and_the_columns_that_are_furthest_apart_come_first(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.ready(profile="all").run(date="2026-11-18")
    shifted(lake, 3000)
    lake.run(publish=False)
    request = lake.request()
    found = diff(request, "2026-11-18", NIGHT, rows=0)
    assert [(each.name, each.before, each.now) for each in found.figures] == [
        ("rows", 8000, 8000),
        ("quarantined", 0, 0),
    ]
    assert [each.column for each in found.columns[:2]] in (["x", "score"], ["score", "x"])
    one = next(each for each in found.columns if each.column == "x")
    assert one.psi is not None
    assert one.psi > 1 > one.chance["psi"]
    assert (one.before, one.now) == (3999.5, 6999.5)
    app(["diff", str(lake.job_path), "2026-11-18", NIGHT, "--lines", "2"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "2 more columns: --lines 4" in said
    assert "7000" in said
    app(["diff", str(lake.job_path), "2026-11-18", NIGHT, "--json"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    conforms(printed, "diff")
    assert printed["columns"][0]["psi"] == found.columns[0].psi


def test_a_run_whose_columns_are_described_by_some_of_its_rows_says_so(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.ready(profile="all").run(date="2026-11-18")
    lake.write_job(profile={"columns": "all", "share": 0.25})
    lake.run()
    request = lake.request()
    found = diff(request, "2026-11-18", NIGHT, rows=0)
    assert found.drawn.keys() == {NIGHT}
    assert 1800 < found.drawn[NIGHT] < 2200, "a quarter of 8,000, give or take five standard deviations"
    app(["diff", str(lake.job_path), "2026-11-18", NIGHT], standalone_mode=False)
    said = f"the columns of {NIGHT} are described by {found.drawn[NIGHT]:,} rows, drawn at random (profile.share)"
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_run_that_was_not_described_or_is_not_there_cannot_be_compared(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.ready().run()
    app(["diff", str(lake.job_path), NIGHT, NIGHT], standalone_mode=False)
    assert (
        f"the columns of {NIGHT} were not described, or by another version: write `profile` into the job"
        in capsys.readouterr().out
    )
    with pytest.raises(JobError, match=r"no run 'nope' in .* passed its gates"):
        app(["diff", str(lake.job_path), NIGHT, "nope"], standalone_mode=False)


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"profile": "outputs"}, ["score"]),
        ({"profile": ["id"], "carry": []}, ["id"]),
        ({"profile": "all", "carry": []}, ["score", "x"]),
        ({"profile": "outputs", "input__where": "id < 3"}, ["score"]),
        (
            {
                "profile": "all",
                "model": None,
                "models": [
                    {"name": each, "uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}}
                    for each in ("a", "b")
                ],
            },
            ["a_score", "b_score", "id", "name", "x"],
        ),
    ],
    ids=lambda given: " ".join(given),
)
def test_what_is_described_is_what_the_job_asks_for(lake: Lake, changes: dict[str, Any], columns: list[str]) -> None:
    """Columns are read for their profile alone, too, and no reader sees them."""
    ran = lake.ready(**changes).run()
    assert sorted(ran.verdict.metrics.profile) == columns
    manifest = json.loads(max(lake.revision().glob("manifest-*")).read_text())
    assert sorted(manifest["metrics"]["profile"]) == columns


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"profile": ["idd"]}, "profile: 'idd' is neither an output nor a column of the input; did you mean 'id'?"),
        ({"checks": [{"drift": ["scroe"]}]}, r"checks\[0\]\.drift: 'scroe' is neither .* did you mean 'score'\?"),
        ({"profile": "some"}, "profile: must be all, outputs or a list of columns, not 'some'"),
        ({"profile": 5}, "profile: must be all, outputs or a list of columns, not 5"),
        ({"checks": [{"drift": 5}]}, r"checks\[0\]\.drift: must be a column, a list of columns, or all, not 5"),
        ({"checks": [{"drift": []}]}, r"checks\[0\]\.drift: must be a column, a list of columns, or all, not \[\]"),
        ({"checks": [{"drift": "x", "psi": -1}]}, r"checks\[0\]\.psi: must be at least 0"),
    ],
)
def test_a_column_that_is_not_there_is_named_before_anything_is_scored(
    lake: Lake, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobError, match=said):
        lake.ready(**changes).run()
    assert not lake.out.exists()
