"""Readers of `latest/` that read in a loop, while nights are published and taken back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pandas as pd
import pytest
from test_latest_view import read_view

from lazily import lazily
from nightjar.inference.output import visibility
from outputs import NIGHT, Placed, rows_of
from publishing import roll_back

pl = lazily("polars")


@pytest.fixture
def output(tmp_path: Path) -> Placed:
    return Placed(str(tmp_path / "out"))


@dataclass(eq=False)
class Reader(threading.Thread):
    """Reads `latest` again and again, and keeps what was no whole night."""

    read: Callable[[], list[tuple[str, int]]]
    looks: int = 0
    seen: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()

    @property
    def enough(self) -> bool:
        """Whether it has seen readers being led to another night, or something wrong."""
        return bool(self.wrong) or len(self.seen) > 1

    def run(self) -> None:
        """Until `done`, or something is wrong."""
        while not self.done.is_set() and not self.wrong:
            try:
                rows = sorted(self.read())
            except Exception as error:  # noqa: BLE001 (of whatever kind: a reader must not meet it)
                self.wrong.append(f"{type(error).__name__}: {error}")
                return
            nights = {night for night, _ in rows}
            if len(nights) != 1 or rows != rows_of(*nights):
                self.wrong.append(f"{len(rows)} rows of {nights}")
            self.seen |= nights
            self.looks += 1


def readers(latest: Path) -> dict[str, Callable[[], list[tuple[str, int]]]]:
    """By the view, the list, the links, and the folder that the link leads to."""

    def by_list() -> list[tuple[str, int]]:
        listed = json.loads((latest / "files.json").read_text())["files"]
        return [tuple(row) for row in pl.read_parquet([file["uri"] for file in listed]).rows()]

    def by_links() -> list[tuple[str, int]]:
        links = (latest / "_symlink_format_manifest" / "manifest").read_text().splitlines()
        frame = pd.concat(pd.read_parquet(link) for link in links)
        return list(frame.itertuples(index=False, name=None))

    def by_folder() -> list[tuple[str, int]]:
        frame = pd.read_parquet((latest / "data").resolve(strict=True))
        return list(frame.itertuples(index=False, name=None))

    return {"DuckDB": lambda: read_view(latest), "polars": by_list, "pandas": by_links, "folder": by_folder}


def commands(output: Placed) -> Iterator[str]:
    """Nights published, scored again, rolled back and taken away, one after the other, without end."""
    output.publish("2026-11-17")
    for number in cycle(range(2, 10)):
        for night in ("2026-11-18", NIGHT):
            output.publish(night, number)
            yield night
        roll_back(output.storage, output.uri, None)
        yield NIGHT
        visibility.unpublish(output.storage, output.uri, "2026-11-18")
        yield "2026-11-18"


def check_readers(output: Placed, seconds: float) -> None:
    """Readers in a loop beside commands in a loop: each of them sees whole nights, and more than one."""
    going = commands(output)
    output.refresh(next(going))
    running = {name: Reader(read) for name, read in readers(Path(output.uri, "latest")).items()}
    for reader in running.values():
        reader.start()
    began = time.monotonic()
    while (past := time.monotonic() - began) < seconds or not all(reader.enough for reader in running.values()):
        assert past < seconds + 60, {name: reader.looks for name, reader in running.items()}
        assert output.refresh(next(going)) == ""
    for reader in running.values():
        reader.done.set()
        reader.join(60)
    assert [f"{name}: {wrong}" for name, reader in running.items() for wrong in reader.wrong] == []


def test_readers_in_a_loop_never_see_a_partial_night(output: Placed) -> None:
    """While nights are published, scored again, rolled back and taken away."""
    check_readers(output, 2)


@pytest.mark.long
def test_readers_in_a_long_loop_never_see_a_partial_night(output: Placed) -> None:
    check_readers(output, 120)
