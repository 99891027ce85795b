"""`make mutants`: the share of small faults, put into the code one at a time, that the unit tests find.

mutmut makes the faults, called mutants, and notes which tests reach which function. It mutates functions and methods
without a decorator, class methods and static ones among them: no properties, no context managers, no constants. It
works on a copy below `build/mutants/`, where the packages lie under the names they are imported by.

The command fails when fewer than `GOAL` of the mutants are killed, and when one survives that `mutants.toml` does not
explain.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
EXPLAINED = Path(__file__).with_name("mutants.toml")

GOAL = 0.9
"""The share of the mutants that must be killed. A survivor that is explained is a survivor all the same."""

KILLED = {1: "failed", 3: "failed", -24: "too long", 24: "too long", 152: "too long", -9: "too long"}
"""mutmut's exit codes of a mutant that is killed: a test or pytest itself failed, or the tests took too long."""

PATIENCE = {"timeout_multiplier": "2", "timeout_constant": "10"}
"""The tests of a mutant may take twice as long as without it, and pytest twenty seconds to start."""

ELSEWHERE = (
    "tests/unit/scoring/test_models.py::"
    "test_the_report_says_which_model_could_not_score_a_row_and_its_command_scores_it_again"
)
"""A test that scores in a process with another working directory, where mutmut does not find its settings."""

HANGS_S = 30
"""Seconds after which one test is taken for one that waits in vain. Without a mutant none takes ten.

A thread of pytest-timeout ends the process then: the alarm of the process is what the watchdog's tests look at.
"""

PYTEST = (
    *("--deselect", ELSEWHERE, "--timeout", str(HANGS_S)),
    *("--timeout-method", "thread", "-o", "timeout_func_only=true"),
    *("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "tests.tools.mutants"),
)
"""Without a plugin that costs a pytest of one small test more than the test does, and with the one in this file."""


@dataclass(frozen=True)
class Room:
    """modules: globs below `inference/`. tests: the files whose tests reach them in this process. slow: further
    files, whose tests take seconds each: they are run only on the mutants that the others leave alive.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()

    def files(self) -> list[str]:
        """The modules, below `inference/`."""
        inference = ROOT / "inference"
        return sorted(str(path.relative_to(inference)) for glob in self.modules for path in inference.glob(glob))


def unit(*names: str) -> tuple[str, ...]:
    """These files of the unit tier."""
    found = {path.stem: str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    return tuple(found[f"test_{name}"] for name in names)


ROOMS = {
    "ledger": Room(
        ("ledger/[!r]*.py",),
        unit("progress", "endings", "holders", "questions", "ledger"),
    ),
    "remarks": Room(("ledger/remarks.py",), unit("remarks")),
    "plan": Room(("input/plan.py",), unit("plan")),
    "publish": Room(
        ("output/publications.py", "output/owner.py"),
        unit("publications", "owner", "evidence"),
    ),
    "audit": Room(
        (
            *("metrics/keyhash.py", "validation/audit.py", "validation/evidence.py"),
            *(
                "validation/manifest.py",
                "validation/violating_rows.py",
                "validation/rescore.py",
            ),
            "validation/unique.py",
        ),
        unit(
            *(
                "audit",
                "evidence",
                "violating_rows",
                "partial_rows",
                "rescore",
                "manifest",
                "repeated_keys",
                "keyhash",
            ),
            *("slices", "unique_gates", "collecting", "ranking"),
        ),
    ),
    "gates": Room(
        ("validation/gates/*.py",),
        unit(
            *(
                "gates",
                "contradictions",
                "drift_gates",
                "unique_gates",
                "call_gates",
                "evidence",
                "violating_rows",
                "slices",
            ),
            *("accumulators", "ranking"),
        ),
    ),
    "scoring": Room(
        (
            *("scoring/as*.py", "scoring/attempts.py", "scoring/memory.py"),
            *("scoring/microbatches.py", "scoring/preflight.py"),
            *("scoring/suspects.py", "scoring/watchdog.py", "scoring/worker.py"),
        ),
        unit(
            *("microbatches", "suspects", "bisection", "fenced_worker", "worker_memory", "preflight", "assignment"),
            *("out_of_memory", "accumulating", "accumulators", "error_places", "assembly"),
        ),
        slow=unit("worker", "watchdog", "watchdog_threads", "spoilt_worker", "models", "stages"),
    ),
    "stages": Room(
        ("scoring/staged.py", "scoring/prepared_batches.py", "predictors/batches.py"),
        unit(
            *("stages", "staged_models", "accepting_worker", "preparing_ahead", "models"),
            *("prepared_batches", "batch_copies", "joined_pieces", "batches"),
        ),
    ),
}
"""What the promises rest on. A room names few files of tests: each mutant's pytest has to collect them."""


@dataclass(frozen=True)
class Mutant:
    """One fault: the function it is in, as `ledger.holders.Holder.name`, and the changed lines before and after."""

    function: str
    was: str
    now: str


@dataclass(frozen=True)
class Explanation:
    """Why no unit test kills these mutants.

    It names them by what they do to which line: the numbers of lines and of mutants change with every edit. An empty
    `was` or `now` stands for any.
    """

    function: str
    why: str
    was: str = ""
    now: tuple[str, ...] = ()

    def explains(self, mutant: Mutant) -> bool:
        """Whether the mutant is one of these."""
        return (
            fnmatchcase(mutant.function, self.function)
            and self.was in ("", mutant.was)
            and (not self.now or mutant.now in self.now)
        )


def explanations() -> list[Explanation]:
    """Those on file."""
    entries = tomllib.loads(EXPLAINED.read_text()).get("survivor", [])
    return [Explanation(**{**each, "now": tuple(each.get("now", ()))}) for each in entries]


def is_explained(mutant: Mutant, known: Iterable[Explanation]) -> bool:
    """Whether one of these explains the mutant."""
    return any(each.explains(mutant) for each in known)


def outdated(known: Iterable[Explanation]) -> list[Explanation]:
    """Those whose function or line is not in the code any more."""
    inference = ROOT / "inference"
    modules = {
        ".".join(path.relative_to(inference).with_suffix("").parts): path.read_text()
        for path in inference.rglob("*.py")
    }

    def is_there(each: Explanation) -> bool:
        name = each.function.rpartition(".")[2]
        # Whole lines: of several, mutmut's diff has the words of each, and a space between them.
        was = r"\s+".join(map(re.escape, each.was.split()))
        return any(
            (fnmatchcase(module, each.function.rpartition(".")[0]) or each.function.startswith(f"{module}."))
            and (name == "*" or f"def {name}(" in text or f"class {name}" in text)
            and re.search(rf"^\s*{was}\s*$", text, re.MULTILINE) is not None
            for module, text in modules.items()
        )

    return [each for each in known if not is_there(each)]


def prepare(place: Path, room: Room, tests: Iterable[str]) -> None:
    """Bring a copy of packages and tests up to date, with what mutmut is to do there."""
    for source, target in (
        ("inference", "src/nightjar/inference"),
        ("flows", "src/nightjar/flows"),
        ("tests", "tests"),
        ("docs", "docs"),
    ):
        _copy(ROOT / source, place / target)
    shutil.copy2(ROOT / "pyproject.toml", place)
    config = configparser.ConfigParser()
    config["mutmut"] = {
        "source_paths": "src",
        "only_mutate": _lines(f"src/nightjar/inference/{module}" for module in room.files()),
        "also_copy": "docs",
        "pytest_add_cli_args_test_selection": _lines(tests),
        "pytest_add_cli_args": _lines(PYTEST),
        "process_isolation": "forkserver",
        **PATIENCE,
    }
    with (place / "setup.cfg").open("w") as file:
        config.write(file)


def _copy(source: Path, target: Path) -> None:
    """Copy what is new or has changed: mutmut takes a file that is newer for one that has changed."""
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir() or "__pycache__" in path.parts or (copy.exists() and copy.read_bytes() == path.read_bytes()):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def _lines(values: Iterable[str]) -> str:
    return "\n" + "\n".join(values)


def forget_survivors(place: Path, room: Room, known: Iterable[Explanation]) -> None:
    """Let mutmut try again what survived, against the tests as they are now. What is explained survives as before."""
    (place / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for module, codes in judged(place, room):
        path = _meta(place, module)
        again = {
            name: None
            for name, code in codes.items()
            if code not in KILLED and not (code is not None and is_explained(described(place, module, name), known))
        }
        path.write_text(json.dumps({**json.loads(path.read_text()), "exit_code_by_key": {**codes, **again}}))


def mutate(place: Path, processes: int) -> None:
    """Make the mutants and run the tests of each.

    Raises:
        subprocess.CalledProcessError: the tests fail without a mutant, too, or mutmut does.
    """
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(processes)]
    subprocess.run(command, cwd=place, env={**os.environ, "NIGHTJAR_SKIP_FLIGHTS": "1"}, check=True)


def judged(place: Path, room: Room) -> Iterator[tuple[str, dict[str, int | None]]]:
    """Each module of the room that has mutants, as `ledger/holders.py`, and by mutmut's name of each the exit code of
    its tests.
    """
    for module in room.files():
        path = _meta(place, module)
        if path.exists() and (codes := json.loads(path.read_text())["exit_code_by_key"]):
            yield module, codes


def _meta(place: Path, module: str) -> Path:
    """What mutmut keeps of a module's mutants."""
    return place / "mutants" / "src" / "nightjar" / "inference" / f"{module}.meta"


def described(place: Path, module: str, name: str) -> Mutant:
    """What one mutant changes, by mutmut's own diff."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    with contextlib.chdir(place):
        diff = get_diff_for_mutant(name, path=f"src/nightjar/inference/{module}").splitlines()
    was, now = (
        " ".join(line[1:].strip() for line in diff if line.startswith(sign) and not line.startswith(sign * 3))
        for sign in ("-", "+")
    )
    function = name.partition("__mutmut_")[0].rpartition(".")[2]
    function = function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
    return Mutant(f"{module.removesuffix('.py').replace('/', '.')}.{function}", was, now)


def figure(counts: Counter[str]) -> str:
    """How many were killed, of how many."""
    killed, total = counts["failed"] + counts["too long"], counts.total()
    return f"{killed:5} of {total:5} killed, {killed / max(total, 1):6.1%} ({counts['too long']} took too long)"


def try_room(name: str, *, again: bool, processes: int) -> tuple[Counter[str], list[Mutant]]:
    """Mutate one room and print its figures; returns them, and the survivors."""
    place, room = BUILD / name, ROOMS[name]
    if not again:
        shutil.rmtree(place, ignore_errors=True)
    for tests in filter(None, (room.tests, room.slow)):
        # Of the code as it was then, so before its copy changes.
        forget_survivors(place, room, explanations() if again else ())
        prepare(place, room, tests)
        mutate(place, processes)
    total: Counter[str] = Counter()
    survivors: list[Mutant] = []
    print(f"{name}:")
    for module, codes in judged(place, room):
        counts = Counter(KILLED.get(code, "alive") if code is not None else "alive" for code in codes.values())
        print(f"  {module:36} {figure(counts)}")
        total += counts
        survivors += [described(place, module, key) for key, code in codes.items() if code not in KILLED]
    return total, survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="room", help=f"of {', '.join(ROOMS)}; without one: all")
    parser.add_argument(
        "--again", action="store_true", help="try only what survived last time unexplained, and what has changed"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(unknown)}; there are {', '.join(ROOMS)}")
    tried = [try_room(name, again=asked.again, processes=asked.processes) for name in asked.rooms or ROOMS]
    total = sum((counts for counts, _ in tried), Counter[str]())
    survivors = [mutant for _, alive in tried for mutant in alive]
    known = explanations()
    unexplained = [mutant for mutant in survivors if not is_explained(mutant, known)]
    for mutant in unexplained:
        print(f"survives, not explained: {mutant.function}\n  - {mutant.was}\n  + {mutant.now}")
    print(f"all{'':35} {figure(total)}")
    print(f"{len(survivors)} survive, {len(survivors) - len(unexplained)} of them explained in {EXPLAINED.name}")
    return int(bool(unexplained) or total["failed"] + total["too long"] < GOAL * total.total())


# ---- what the pytest in the copy loads of this file ---------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Properties try few examples, the same each time, and a failing one is not made smaller."""
    import torch  # noqa: F401 (the process of each mutant begins as a copy of one that has it, and saves seconds)
    from hypothesis import Phase, settings

    few: dict[str, Any] = {"max_examples": 25, "derandomize": True, "database": None}
    settings.register_profile("mutants", settings.default, phases=[Phase.explicit, Phase.generate], **few)
    settings.load_profile("mutants")
    # Of what other processes reach nothing is noted, and they would miss mutmut's settings in a folder of their own.
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        del os.environ["MUTANT_UNDER_TEST"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fastest tests come first: they kill most mutants."""
    stats = Path("mutmut-stats.json")
    took = json.loads(stats.read_text())["duration_by_test"] if stats.exists() else {}
    items.sort(key=lambda item: took.get(item.nodeid, 0.0))


if __name__ == "__main__":
    sys.exit(main())
