"""What a night is compared with besides the last one: a window of nights, taken together, and a training set."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.job.checks import BASELINE
from nightjar.inference.metrics.profile import Profile, merged
from nightjar.inference.validation.evidence import baselines
from nightjar.inference.validation.gates import GateResult
from support import NIGHT, Lake, Ran, run_steps

LAST = dt.date(2026, 11, 18)


def write(path: Path, x: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "id": pa.array(range(len(x)), pa.int64()),
            "x": pa.array(x, pa.float32()),
            "name": [f"row {each}" for each in range(len(x))],
        }
    )
    pq.write_table(table, path)


def night(lake: Lake, date: str, x: np.ndarray) -> Ran:
    write(lake.folder / "data" / "part.parquet", x)
    return lake.run(date=date)


def nights(lake: Lake, *given: np.ndarray) -> None:
    """One night after the other, the last of them on `LAST`."""
    for back, x in enumerate(reversed(given)):
        night(lake, (LAST - dt.timedelta(days=back)).isoformat(), x)


def trained(lake: Lake, *inputs: str | Path, **options: Any) -> Ran:
    return run_steps(lake.request(run_id=BASELINE, publish=False, inputs=tuple(map(str, inputs)), **options))


def drift_of(ran: Ran) -> GateResult:
    return ran.verdict.gates[-1]


def test_the_last_nights_are_taken_together(lake: Lake) -> None:
    """Of seven only those before tonight that are published; each of them counts with all its rows."""
    lake.write_model()
    lake.write_job(checks=[], profile="all")
    values = [np.arange(number * 100.0, number * 100 + 50 * number) for number in (1, 2, 3, 4)]
    nights(lake, *values)
    lake.write_job(
        checks=[{"drift": "x", "against": {"last": 3}}, {"drift": "x", "against": {"last": 7}}], profile="all"
    )
    found = baselines(lake.request().storage, lake.request().job, NIGHT)
    assert {name: each.called for name, each in found.items()} == {
        "last:3": "the 3 published nights from 2026-11-16 to 2026-11-18",
        "last:7": "the 4 published nights from 2026-11-15 to 2026-11-18",
    }
    for name, given in {"last:3": values[1:], "last:7": values}.items():
        direct = Profile.empty(["x"])
        for x in given:
            direct.update(pa.table({"x": pa.array(x, pa.float32())}))
        profile = found[name].profile
        assert profile is not None
        for found_of in (profile, direct):  # sums are rounded by their order
            moments = found_of.columns["x"].numbers.moments
            moments.mean, moments.deviations = float(f"{moments.mean:.9g}"), float(f"{moments.deviations:.9g}")
        assert Profile({"x": profile.columns["x"]}) == direct
        assert set(profile.columns) == {"id", "name", "score", "x"}


def test_a_window_sees_what_the_last_night_alone_hides(lake: Lake) -> None:
    """Last night was odd already, and somebody let it pass: tonight is as odd."""
    usual, odd = np.arange(3000.0), np.arange(3000.0) + 2000
    lake.write_model()
    lake.write_job(checks=[], profile="all")
    nights(lake, usual, usual, usual, usual, odd)
    lake.write_job(checks=[{"drift": "x"}])
    assert night(lake, NIGHT, odd).publication.number
    lake.write_job(checks=[{"drift": "x", "against": {"last": 5}}])
    with pytest.raises(GateFailed, match=r"'x' has drifted from the 5 published nights from 2026-11-15 to 2026-11-19"):
        night(lake, "2026-11-20", odd)


def test_nights_that_were_not_described_are_left_out_of_a_window_and_said(lake: Lake) -> None:
    lake.write_model()
    lake.write_job(checks=[{"drift": "x", "against": {"last": 3}}])
    assert drift_of(night(lake, "2026-11-15", np.arange(50.0))).sentence == (
        "checks[0].drift has nothing to compare with: no earlier night is published, and passes."
    )
    lake.write_job()
    night(lake, "2026-11-16", np.arange(900.0))
    lake.write_job(checks=[{"drift": "x", "against": {"last": 1}}])
    assert (
        "the columns of 2026-11-16 were not described, and passes"
        in drift_of(night(lake, "2026-11-17", np.arange(50.0))).sentence
    )
    lake.write_job(checks=[{"drift": "x", "against": {"last": 3}}])
    assert (
        "as in the 3 published nights from 2026-11-15 to 2026-11-17, of which 2 were described,"
        in drift_of(night(lake, "2026-11-18", np.arange(50.0))).sentence
    )


def test_of_a_date_with_several_runs_one_counts_in_a_window(lake: Lake) -> None:
    lake.write_model()
    lake.write_job(checks=[], profile=["x"])
    nights(lake, np.arange(10.0), np.arange(20.0))
    write(lake.folder / "data" / "part.parquet", np.arange(700.0))
    lake.run(date="2026-11-18", run_id="trial")
    lake.write_job(checks=[{"drift": "x", "against": {"last": 7}}])
    profile = baselines(lake.request().storage, lake.request().job, NIGHT)["last:7"].profile
    assert profile is not None
    assert profile.columns["x"].rows == 30


def test_nights_with_different_columns_are_merged_column_by_column() -> None:
    one, other = Profile.empty(["a"]), Profile.empty(["a", "b"])
    one.update(pa.table({"a": [1.0]}))
    other.update(pa.table({"a": [2.0], "b": [3.0]}))
    found = merged([one, other])
    assert {name: column.rows for name, column in found.columns.items()} == {"a": 2, "b": 1}


def test_a_training_set_is_what_nights_are_compared_with(lake: Lake) -> None:
    """It is scored and described, published to nobody, and judged by no check of the job."""
    lake.write_model()
    lake.write_job(
        checks=[
            {"drift": ["score", "x"], "against": "baseline"},
            {"column": "score", "max": 5000},
            {"rows": {"max": 1500}},
            {"unique": "name"},
        ]
    )
    with pytest.raises(
        GateFailed, match=r"no run 'baseline' is .* Make it of the training set: `nightjar baseline JOB"
    ):
        night(lake, NIGHT, np.arange(1000.0))
    for half in range(2):
        write(lake.folder.parent / "train" / f"{half}.parquet", np.arange(2500.0))
    ran = trained(lake, lake.folder.parent / "train")
    assert [gate.name for gate in ran.verdict.gates] == ["complete", "quarantine"]
    assert ran.scored.progress.rows == 5000
    assert ran.publication.number == 0
    assert not lake.snapshot().runs
    with pytest.raises(GateFailed, match=r"'x' has drifted from the run baseline of 2026-11-19"):
        night(lake, NIGHT, np.arange(1000.0))
    assert night(lake, NIGHT, np.arange(0, 2500.0, 2)).publication.number == 1


def test_a_new_training_set_replaces_the_old_one(lake: Lake) -> None:
    lake.write_model()
    lake.write_job(checks=[{"drift": "x", "against": "baseline"}])
    train = lake.folder.parent / "train"
    write(train / "old.parquet", np.arange(1000.0))
    write(train / "new.parquet", np.arange(1000.0) + 5000)
    trained(lake, train / "old.parquet")
    trained(lake, train / "new.parquet", date="2026-11-19")
    assert night(lake, "2026-11-20", np.arange(1000.0) + 5000).publication.number == 1
    both = trained(lake, train / "old.parquet", train / "new.parquet")
    assert both.scored.progress.rows == 2000


def test_data_beside_the_job_is_no_code_of_a_baseline(lake: Lake) -> None:
    """Neither the training set nor the input of nights."""
    lake.write_model()
    lake.write_job(profile="all")
    write(lake.folder / "data" / "part.parquet", np.arange(100.0))
    write(lake.folder / "train" / "part.parquet", np.arange(100.0))
    request = lake.request(run_id=BASELINE, publish=False, inputs=(str(lake.folder / "train"),))
    assert {file.name for file in request.scoring.code.files} == {"model.py"}


def test_paths_of_a_training_set_are_as_the_person_types_them(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write_model()
    lake.write_job(profile="all", input__wait={"for": "2h"})
    write(lake.folder.parent / "some where" / "part.parquet", np.arange(100.0))
    monkeypatch.chdir(lake.folder.parent)
    request = lake.request(run_id=BASELINE, publish=False, inputs=("some where/*.parquet",))
    assert request.job.input.wait is None
    assert request.again == ["--input", str(lake.folder.parent / "some where/*.parquet"), "--engine", "local"]
    assert run_steps(request).scored.progress.rows == 100


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, {"inputs": ("train/",)}, r"^profile: a baseline is what columns look like, and the job describes none"),
        ({"profile": "all", "output__uri": "out/{date}/"}, {"inputs": ("a",)}, r"^output\.uri: has a {date}, so each"),
        ({"profile": "all"}, {"inputs": ("ftp://a/b",)}, r"^--input: 'ftp://a/b' is no place"),
        ({"profile": "all"}, {}, r"^--run-id baseline: is the name of what `nightjar baseline JOB --input URI` makes"),
        ({"judged": False}, {"inputs": ("a",)}, r"unknown key 'judged'"),
        ({"checks": [{"drift": "x", "against": {"last": 0}}]}, {}, r"checks\[0\]\.against\.last: must be at least 1"),
        (
            {"checks": [{"drift": "x", "against": {"lst": 2}}]},
            {},
            r"unknown key 'checks\[0\]\.against\.lst'; did you mean",
        ),
        ({"checks": [{"drift": "x", "against": 7}]}, {}, r"checks\[0\]\.against: must be last, baseline, the id of a"),
        ({"checks": [{"drift": "x"}], "output__uri": "out/{date}/"}, {}, r"checks\[0\]\.against: output\.uri has a"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    lake: Lake, changes: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    lake.ready(**changes)
    with pytest.raises(JobError, match=said):
        lake.request(run_id=BASELINE, publish=False, **options)
