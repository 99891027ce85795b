"""`nightjar run` on the flights example: every flight scored and published, and said so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from commands import DATE, UNUSED, Flights
from forked import Done
from lazily import lazily
from support import FLIGHTS, command

log_loss = lazily("sklearn.metrics", "log_loss")
roc_auc_score = lazily("sklearn.metrics", "roc_auc_score")


ROWS = 336_776


@pytest.fixture(scope="module")
def again(flights: Flights) -> dict[str, object]:
    """What the second run, with --json, says."""
    assert flights.again.returncode == 0, flights.again.stderr
    found: dict[str, object] = json.loads(flights.again.stdout)
    return found


@pytest.fixture(scope="module")
def listed(flights: Flights) -> list[Path]:
    """What `nightjar files` prints."""
    return [Path(line) for line in command("files", flights.job).stdout.splitlines()]


@pytest.fixture(scope="module")
def scored(listed: list[Path]) -> pd.DataFrame:
    """The published rows with the label of the input row each came from."""
    rows = pd.concat([pq.read_table(path, columns=["_file", "_row", "score"]).to_pandas() for path in listed])
    labels = []
    for file in sorted((FLIGHTS / "data").glob("*.parquet")):
        late = pq.read_table(file, columns=["late"]).to_pandas()
        labels.append(late.assign(_file=str(file), _row=np.arange(len(late))))
    return rows.astype({"_file": str}).merge(pd.concat(labels), on=["_file", "_row"], how="outer", validate="1:1")


def test_every_flight_is_in_the_output_once(flights: Flights, scored: pd.DataFrame, again: dict[str, object]) -> None:
    """336,776 rows in = out + quarantined, over at least 16 shards; each input row is there, and no other."""
    assert flights.first.returncode == 0, flights.first.stderr
    assert (again["rows_in"], again["rows_out"], again["rows_quarantined"]) == (ROWS, ROWS, 0)
    assert isinstance(again["shards"], int)
    assert again["shards"] >= 16
    assert len(scored) == ROWS
    assert scored["score"].notna().all()


def test_the_metrics_are_those_of_the_output(scored: pd.DataFrame, again: dict[str, object]) -> None:
    """AUC and log loss, computed without Nightjar from the published files: within the stated bound, and equal."""
    metrics = again["metrics"]
    assert isinstance(metrics, dict)
    found = metrics["evaluation"]
    known = scored.dropna(subset=["late"])
    truth, scores = known["late"].astype(bool), known["score"].astype(np.float64)
    assert (found["rows"], found["positives"]) == (len(known), truth.sum())
    assert found["metrics"]["auroc"]["value"] > 0.60
    assert 0 < found["metrics"]["auroc"]["bound"] < 0.001
    assert abs(roc_auc_score(truth, scores) - found["metrics"]["auroc"]["value"]) <= found["metrics"]["auroc"]["bound"]
    assert found["metrics"]["log_loss"]["value"] == pytest.approx(log_loss(truth, scores), rel=1e-9)


def test_the_summary_says_what_happened_where_it_lies_and_what_next(flights: Flights) -> None:
    """Figures, gates, metrics, paths that exist, and the commands to go on with."""
    said = flights.first.stdout
    assert f"flight-delays {DATE} r1: published as #1" in said
    assert "336,776 in = 336,776 out + 0 quarantined, over 24 shards" in said
    assert "gates      6 of 6 passed" in said
    assert "  auroc      0.6" in said
    paths = [Path(line.split()[1]) for line in said.splitlines() if line.startswith(("  data", "  manifest"))]
    assert [path.exists() for path in paths] == [True, True]
    assert f"nightjar files {flights.job} {DATE}" in said
    assert f"nightjar unpublish {flights.job} {DATE}\n" in said


def test_the_exact_files_are_listed(flights: Flights, listed: list[Path]) -> None:
    """`nightjar files` prints the published parts, one a line, and no more."""
    assert listed
    assert all(path.parent == flights.out / "runs" / DATE / "r1" / "data" for path in listed)
    assert sum(pq.read_metadata(path).num_rows for path in listed) == ROWS


def test_run_again_everything_is_committed_and_nothing_is_scored(again: dict[str, object]) -> None:
    """The second run takes over every shard, loads no model and keeps the publication."""
    assert (again["state"], again["publication"], again["revision"]) == ("published", 1, 1)
    assert again["reused_shards"] == again["shards"] == 24
    nothing = ("startup_s", "first_start", "steady_s", "rows_per_s")
    assert again["engine"] == dict.fromkeys(nothing, 0)
    assert again["device"] == ""


def test_with_json_stdout_is_one_object_and_nothing_else(flights: Flights) -> None:
    """One line, which parses; so does what a mistake leaves there."""
    assert len(flights.again.stdout.splitlines()) == 1
    missing = command("run", flights.job.with_name("nowhere.yaml"), "--json")
    assert missing.returncode == 2
    assert json.loads(missing.stdout)["state"] == "failed"


@pytest.mark.parametrize("which", ["first", "again"])
def test_stderr_is_silent(flights: Flights, which: str) -> None:
    """Ray and Prefect say nothing unless --verbose is given."""
    ended: subprocess.CompletedProcess[str] | Done = getattr(flights, which)
    assert ended.stderr == ""


def test_without_a_terminal_progress_is_plain_lines(flights: Flights) -> None:
    """Whole lines without control characters: the steps, the shards, the rows per second."""
    said = flights.first.stdout
    assert "\x1b" not in said
    assert "\r" not in said
    progress = [line for line in said.splitlines() if line.startswith(f"flight-delays {DATE}: ")]
    assert progress[0].endswith("starting Ray and Prefect")
    # Which step the last shard is shown under depends on when the ledger was looked at.
    assert any("24/24 shards" in line and "rows/s" in line for line in progress)


def test_one_prefect_server_and_only_if_none_is_configured(flights: Flights) -> None:
    """The command starts a server of its own; its workers report to that one."""
    assert flights.scoring.servers == set()
    assert len(flights.repeating.servers) == 1, flights.repeating.servers
    assert "nightjar.flows.prefect_api.ownserver" in flights.repeating.servers.pop()


def test_a_local_run_listens_on_loopback_only(flights: Flights) -> None:
    """Its Ray, its workers and its Prefect server: no other machine can reach any of them."""
    assert flights.scoring.listening() >= {"raylet", "gcs_server"}, "Ray was seen"
    for seen in (flights.scoring, flights.repeating):
        assert {address.removeprefix("::ffff:") for address in seen.listeners} == {"127.0.0.1"}, seen.listeners


def test_a_run_s_own_ray_has_no_actors_but_those_that_score(flights: Flights) -> None:
    """Ray Data has two more, which share a cluster out and tell its dashboard: each takes seconds of CPU to start."""
    assert any(name.startswith("ray::MapWorker(") for name in flights.scoring.actors), "the pool was seen"
    assert not [name for name in flights.scoring.actors if "Stats" in name or "Autoscaling" in name]


def test_a_run_with_nothing_to_score_starts_no_ray(flights: Flights) -> None:
    """What is left to do of it needs no cluster, and no library of the model or of a bucket."""
    assert UNUSED.isdisjoint(flights.again.imported)
    assert flights.repeating.listening(), "its Prefect server was seen"
    assert flights.repeating.listening().isdisjoint({"raylet", "gcs_server"})


def test_a_local_run_leaves_nothing_of_its_ray(flights: Flights) -> None:
    """No folder stays of a run that ended well; that no process does, the run itself was watched for."""
    assert flights.left == []
