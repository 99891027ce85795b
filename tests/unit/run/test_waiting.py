"""Input that is late is waited for, with a look now and then; what never comes fails a gate that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults import FaultyStorage, fail
from nightjar.inference.errors import GateFailed
from nightjar.inference.run.waiting import Awaited, await_input, awaited
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from support import Lake


@dataclass
class Night:
    """A clock that only sleeping moves, and what happens at which second of it."""

    lake: Lake
    events: dict[float, Callable[[], object]] = field(default_factory=dict)
    now: float = 0.0
    looks: int = 0
    told: list[Awaited] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.looks += 1
        self.now += seconds
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()

    def wait(self, storage: Storage | None = None, *, patient: bool = True) -> bool:
        job = self.lake.request().job
        return await_input(
            storage or LakeStorage(), job, self.told.append, patient=patient, clock=lambda: self.now, sleep=self.sleep
        )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.write_model()
    (tmp_path / "data").mkdir()
    return lake


def waiting(lake: Lake, uri: str = "data/", **wait: Any) -> Night:
    lake.write_job(input={"uri": uri, "wait": {"for": "10min", **wait}})
    return Night(lake)


def test_without_a_wait_nothing_is_looked_at(lake: Lake) -> None:
    lake.write_job()
    assert Night(lake).wait(FaultyStorage(LakeStorage(), [fail("*", nth=None)])) is False


def test_any_file_ends_the_wait(lake: Lake) -> None:
    night = waiting(lake)
    night.events = {100: lambda: lake.write_file("part-00.parquet", 0, 10)}
    assert night.wait()
    assert 100 <= night.now <= 130
    assert [each.sentence for each in night.told] == [
        f"waiting for a file in {lake.folder}/data/ (0 files there), at most 10min"
    ]


def test_the_input_that_is_there_is_not_waited_for(lake: Lake) -> None:
    lake.write_file("part-00.parquet", 0, 10)
    night = waiting(lake)
    assert night.wait() is False
    assert (night.looks, night.told) == (0, [])


def test_a_number_of_files_is_counted_as_they_come_and_said(lake: Lake) -> None:
    lake.write_file("part-00.parquet", 0, 10)
    (lake.folder / "data" / "_part-01.parquet").write_text("hidden")
    night = waiting(lake, until=3)
    night.events = {
        50.0 * index: lambda index=index: lake.write_file(f"part-0{index}.parquet", 0, 10) for index in (1, 2)
    }
    assert night.wait()
    assert [each.there for each in night.told] == ["1 file there", "2 files there"]
    assert night.told[0].what == f"3 files in {lake.folder}/data/"


@pytest.mark.parametrize(
    ("uri", "marker"),
    [
        ("data/", "data/_SUCCESS"),
        ("data", "data/_SUCCESS"),
        ("data/part-*.parquet", "data/_SUCCESS"),
        ("data/part-00.parquet", "data/_SUCCESS"),
    ],
)
def test_a_marker_is_looked_up_by_its_name_below_the_input_or_beside_the_one_file(
    lake: Lake, uri: str, marker: str
) -> None:
    lake.write_file("part-00.parquet", 0, 10)
    night = waiting(lake, uri, until="_SUCCESS")
    night.events = {9: lambda: (lake.folder / marker).touch()}
    assert night.wait()
    assert 9 <= night.now < 20


def test_what_never_comes_fails_a_gate_that_names_it_and_what_there_is(lake: Lake) -> None:
    lake.write_file("part-00.parquet", 0, 10)
    night = waiting(lake, until="_SUCCESS")
    with pytest.raises(GateFailed) as failed:
        night.wait()
    assert night.now == 600
    folder = f"{lake.folder}/data"
    assert str(failed.value) == (
        f"Waited 10min for _SUCCESS in {folder}: not there (1 file there), and nothing was scored. Repeat the command "
        "when it is, or raise input.wait.for."
    )
    (gate,) = failed.value.gates
    assert (gate.name, gate.passed, gate.observed) == ("input.wait", False, "1 file there")
    assert gate.limit == f"_SUCCESS in {folder} within 10min"


def test_a_long_wait_says_every_ten_minutes_that_it_goes_on_and_looks_seldom(lake: Lake) -> None:
    night = waiting(lake, **{"for": "1h"})
    with pytest.raises(GateFailed):
        night.wait()
    assert [round(each.waited_s / 60) for each in night.told] == [0, 10, 20, 30, 40, 50]
    assert night.told[-1].sentence.endswith("at most 1h, for 50 min so far")
    assert night.looks < 130


def test_storage_that_is_away_for_a_while_does_not_end_the_wait(lake: Lake) -> None:
    night = waiting(lake)
    lake.write_file("part-00.parquet", 0, 10)
    away = FaultyStorage(LakeStorage(), [fail("list", nth=nth) for nth in (1, 2, 3)])
    assert night.wait(away)
    assert night.looks == 3
    assert "failed on purpose" in night.told[0].there


def test_who_holds_a_cluster_looks_once(lake: Lake) -> None:
    night = waiting(lake)
    with pytest.raises(GateFailed, match="Looked once for a file in"):
        night.wait(patient=False)
    assert night.looks == 0


def test_a_marker_alone_is_no_input(lake: Lake) -> None:
    """That there is nothing to score is for discovery to say."""
    night = waiting(lake, until="_SUCCESS")
    (lake.folder / "data" / "_SUCCESS").touch()
    assert awaited(LakeStorage(), lake.request().job) is None
    assert night.wait() is False
