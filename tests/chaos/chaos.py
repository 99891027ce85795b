"""Nights under fire: one night after the other, real processes killed at random moments, every publication compared.

    python tests/chaos/chaos.py --seconds 300 --seed 7

The first night is quiet. Of each later one, published rows, quarantine and metrics must equal the first's, and what
readers see must be whole at every moment. A command may fail, with one message; it is then repeated, as whoever is on
call would. Ends with one table; exit 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from actions import DECK, Action, NotNow, Wound
from readers import Readers, Rows, records_of, rows_of, strays

from nightjar.inference.errors import StorageError
from support import Lake
from victim import Victim
from world import World, prefect_api, world

ROWS = 40_000
"""Of a night, in shards of a thousand."""

FIRST = dt.date(2026, 1, 1)
QUIET_S = 180
"""A command hangs when for so long nothing came of it and nothing was done to it."""

NIGHT_S = 900
"""No night takes longer, whatever is done to it."""

PATIENCE = 3
"""So often may a command fail in a row when nothing was done to it."""

UNSEEMLY = re.compile(
    r"Traceback|^\s+File \"|\*\*\* SIG|\[20\d\d-\d\d-\d\d |Exception ignored|Fatal Python", re.MULTILINE
)
"""What nobody should have to read at night."""

MODEL = '''
import time


def score(batch):
    """Twice x and a half. Takes 0.3 s for a thousand rows, and cannot score one row in ten thousand."""
    x = batch["x"]
    time.sleep(len(x) * 0.0003)
    if (x % 9973 == 17).any():
        raise ValueError("this row cannot be scored")
    return {"score": x * 2 + 0.5}
'''


@dataclass
class Tally:
    """What was done, and what came of it."""

    seed: int
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    shards: int = 0
    rows: int = 0
    reused: int = 0
    retried: int = 0
    revived: int = 0
    looks: int = 0
    compared: int = 0
    unequal: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every promise held, and there was something to compare."""
        return self.compared > 0 and not self.unequal and not self.problems

    def table(self) -> str:
        """For people: the figures, then what was wrong."""
        lines = {
            "seed": self.seed,
            "seconds": round(self.seconds),
            "done": _counted(self.done),
            "commands ended": _counted(self.ended),
            "nodes that ended by themselves": self.revived,
            "runs published": self.runs,
            "shards": self.shards,
            "shards retried": self.retried,
            "rows": self.rows,
            "looks of readers": self.looks,
            "nights compared": self.compared,
            "published rows equal": "yes" if self.compared and not self.unequal else "no",
            "problems": len(self.problems),
        }
        return "\n".join([*(f"{name:<31} {value}" for name, value in lines.items()), *self.unequal, *self.problems])


def _counted(counter: Counter[str]) -> str:
    return f"{counter.total()}: " + ", ".join(f"{count} × {what}" for what, count in sorted(counter.items()))


@dataclass
class Chaos:
    """Nights of one job on one world."""

    world: World
    lake: Lake
    output: str
    dice: random.Random
    tally: Tally
    readers: Readers = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _touched: float = 0.0
    _signs: int = 0
    _failed_in_peace: int = 0
    _deck: list[Action] = field(default_factory=list)
    _mending: list[tuple[float, str, Iterator[Wound]]] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Nights until the seconds are over; the first, and the end of the last, are left in peace."""
        self.readers = Readers(self.world.storage, self.output)
        self.readers.start()
        try:
            quiet = self._night(FIRST, until=0.0)
            until = self._began + seconds
            date = FIRST
            while time.monotonic() < until:
                date += dt.timedelta(days=1)
                different = self._night(date, until).differences(quiet)
                self.tally.compared += 1
                self.tally.unequal += [f"{date}: {each}" for each in different]
                if different:
                    self._keep_ledger(date)
        except (AssertionError, StorageError) as error:
            self._trouble(str(error))
        finally:
            self.readers.stop()
            self.tally.seconds = time.monotonic() - self._began
            self.tally.looks = self.readers.looks
            self.tally.problems += self.readers.problems

    def _night(self, date: dt.date, until: float) -> Rows:
        """One night, up to its published rows. Nothing is done to it after `until`."""
        self.readers.tonight = str(date)
        self._say(f"the night {date}")
        self.world.run(self.lake, str(date))
        self._touch()
        deadline = time.monotonic() + NIGHT_S
        blows = self.dice.randint(3, 8)
        next_blow = time.monotonic() + self.dice.uniform(0, 15)
        while not self._published():
            time.sleep(0.05)
            now = time.monotonic()
            assert now < deadline, f"{date} was not published in {NIGHT_S} s"
            self._mend()
            self._supervise()
            if blows and next_blow < now < until:
                blows -= 1
                next_blow = now + self.dice.uniform(0, 8)
                self._strike()
        self._mend(at_once=True)
        self.world.store.wait()
        return self._taken_in(date)

    def _published(self) -> bool:
        """Whether the command has ended with a publication; if it ended otherwise it is repeated."""
        command = self.world.command
        if command is None or not self._is_over(command):
            return False
        self.world.command = None
        code = command.process.returncode
        self.tally.ended[str(code)] += 1
        said, more = _object(command.said)
        done = code == 0 and said.get("state") == "published"
        honest = done or (code in {1, 2, 3} and command.trouble.startswith("nightjar: ") and said.get("message"))
        if more or not honest or UNSEEMLY.search(command.trouble):
            self._trouble(f"{command.output.name} ended with {code}, but not with one message: {_spoken(command)}")
        if done:
            self._say(f"published by {command.output.name}")
            self._add(said)
            return True
        self._say(f"{command.output.name} ended with {code}: {command.trouble.strip()[:600]}")
        self._failed_in_peace += 1
        assert self._failed_in_peace <= PATIENCE, f"failed {PATIENCE} times in a row though nothing was done to it"
        self._mend(at_once=True)
        self.world.repeat()
        self._touch()
        return False

    def _is_over(self, command: Victim) -> bool:
        """Whether it has ended; a command that hangs is ended here."""
        if command.look() is not None:
            return True
        if self.readers.signs != self._signs:
            self._signs = self.readers.signs
            self._touch()
        if time.monotonic() < self._touched + QUIET_S:
            return False
        self._trouble(f"{command.output.name} hung: nothing came of it in {QUIET_S} s")
        self._keep_ledger(self.readers.tonight)
        self.world.kill_command()
        return True

    def _strike(self) -> None:
        """Do the next thing of the deck that can be done now."""
        if not self._deck:
            self._deck = [action for action, count in DECK.items() for _ in range(count)]
            self.dice.shuffle(self._deck)
        for index, action in enumerate(self._deck):
            steps = action(self.world, self.dice)
            try:
                wound = next(steps)
            except NotNow:
                continue
            del self._deck[index]
            self.tally.done[action.__name__] += 1
            self._say(f"{action.__name__} {wound.what}, to be mended in {wound.mended_s:.1f} s")
            self._mending.append((time.monotonic() + wound.mended_s, action.__name__, steps))
            self._failed_in_peace = 0
            self._touch()
            return

    def _mend(self, at_once: bool = False) -> None:
        """What whoever is on call has seen to by now; `at_once`: everything."""
        due = [each for each in self._mending if at_once or each[0] <= time.monotonic()]
        for each in due:
            self._mending.remove(each)
            next(each[2], None)
            self._say(f"mended: {each[1]}")
            self._touch()

    def _supervise(self) -> None:
        for name in self.world.supervise():
            self._say(f"{name} had ended by itself and is started again")
            self.tally.revived += 1
            self._touch()

    def _taken_in(self, date: dt.date) -> Rows:
        """The rows of a published night; what else must be true of it is checked."""
        storage, run_id = self.world.storage, str(date)
        standing: set[str] = set()
        retried: set[str] = set()
        for record in records_of(storage, self.output, run_id):
            if record["t"] == "receipt":
                if record["shard"] in standing:
                    self._trouble(f"{date}: the shard {record['shard']} was committed twice")
                standing.add(record["shard"])
            elif record["t"] in {"failed", "revoked"}:
                standing.discard(record["shard"])
                retried.add(record["shard"])
        self.tally.retried += len(retried)
        if left := strays(storage, self.output, run_id):
            self._trouble(f"{date}: parts that nobody published lie in its folder: {left[:3]}")
        return rows_of(storage, self.output, run_id)

    def _add(self, said: dict[str, Any]) -> None:
        self.tally.runs += 1
        self.tally.shards += said["shards"]
        self.tally.rows += said["rows_in"]

    def _keep_ledger(self, run_id: object) -> None:
        lines = (json.dumps(record) for record in records_of(self.world.storage, self.output, str(run_id)))
        (self.world.folder / f"ledger-{run_id}.jsonl").write_text("\n".join(lines))

    def _trouble(self, what: str) -> None:
        self._say(f"WRONG: {what}")
        self.tally.problems.append(what)

    def _touch(self) -> None:
        self._touched = time.monotonic()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {what}", flush=True)


def _object(text: str) -> tuple[dict[str, Any], str]:
    """The one object a command prints, and what else it printed."""
    more, _, last = text.strip().rpartition("\n")
    try:
        found: dict[str, Any] = json.loads(last)
    except ValueError:
        return {}, text
    return found, more


def _spoken(command: Victim) -> str:
    return f"\n{command.said[:2000]}\n{command.trouble[:3000]}"


def chaos(
    seconds: float, seed: int, api: str, prefect_home: Path, *, rows: int = ROWS, keep: Path | None = None
) -> Tally:
    """So many seconds of nights from this seed. rows: of each. keep: where the logs go if anything was wrong."""
    tally = Tally(seed)
    with world(api, prefect_home) as made:
        lake, output = made.lake(rows, MODEL, name="chaos", model__batch_size=250, retry__backoff_s=0.5)
        Chaos(made, lake, output, random.Random(seed), tally).run(seconds)
        if keep is not None and not tally.good:
            logs = shutil.ignore_patterns("runtime_resources", "sockets", "data")
            shutil.copytree(made.folder, keep, ignore=logs, dirs_exist_ok=True)
            tally.problems.append(f"the logs are in {keep}")
    return tally


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Nights under fire.")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long")
    parser.add_argument("--seed", default="random", help="a number, or `random`")
    parser.add_argument("--keep", type=Path, help="where logs go if anything was wrong; default: a temporary folder")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed == "random" else int(given.seed)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    keep = given.keep or Path(tempfile.gettempdir(), f"nightjar-chaos-{seed}")
    with tempfile.TemporaryDirectory(prefix="nightjar-prefect-") as home, prefect_api(Path(home)) as api:
        tally = chaos(given.seconds, seed, api, Path(home), keep=keep)
    print(tally.table())
    sys.exit(0 if tally.good else 1)


if __name__ == "__main__":
    main()
