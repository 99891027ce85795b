"""What a night is compared with besides the last one: a training set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import GateFailed, JobError
from nightjar.inference.job.checks import BASELINE
from support import NIGHT, Lake, Ran, run_steps


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


def trained(lake: Lake, *inputs: str | Path, **options: Any) -> Ran:
    return run_steps(lake.request(run_id=BASELINE, publish=False, inputs=tuple(map(str, inputs)), **options))


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
        ({"checks": [{"drift": "x", "against": 7}]}, {}, r"checks\[0\]\.against: must be last, baseline, or the"),
        ({"checks": [{"drift": "x"}], "output__uri": "out/{date}/"}, {}, r"checks\[0\]\.against: output\.uri has a"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    lake: Lake, changes: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    lake.ready(**changes)
    with pytest.raises(JobError, match=said):
        lake.request(run_id=BASELINE, publish=False, **options)
