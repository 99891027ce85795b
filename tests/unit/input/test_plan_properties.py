"""A run continued over many nights: the lake changes, packed shards are split, sizes and actors change, in any order.

What `test_plan.py` shows of one step holds after every one, for the plan as it lies in the ledger: this is what a
run that is continued goes on from, and what its next step reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_plan import check_cover, job, lake, line, unreadable

from drivers import SCRATCH
from nightjar.inference.identity.identity import Identity
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.ledger import Ledger, replay
from nightjar.inference.ledger.lines import Line, Split
from nightjar.inference.output import revisions as revs
from nightjar.inference.records import UNREADABLE, Receipt, Shard
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.resume import plan_in
from nightjar.inference.storage.lake import LakeStorage

IDENTITY = Identity({}, [], [], {}, {}, {}, models={"": "model"}, code_digest="")
FINGERPRINT = IDENTITY.fingerprint
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """Something happens to the lake. Which of the arguments count depends on what it is; `which` is taken modulo."""

    what: str
    name: str
    groups: tuple[int, ...]
    which: int


@dataclass(frozen=True)
class Night:
    """What changed since the last one, how large shards are to be, and which are then split and committed."""

    changes: list[Change]
    shard_rows: int | None
    actors: int
    split: list[int]
    commit: list[int]


WHICH = st.integers(0, 99)
NAMES = st.sampled_from([f"f{index}" for index in range(6)])
GROUPS = st.lists(st.integers(0, 15), max_size=3).map(tuple)
FIRST = st.dictionaries(NAMES, GROUPS, min_size=3)
"""The lake of the first night: enough small files for some to be packed together."""
WHAT = st.sampled_from(["write", "write", "spoil", "spoil alike", "remove", "put back", "remove all", "restore"])
NIGHTS = st.builds(
    Night,
    changes=st.lists(st.builds(Change, WHAT, NAMES, GROUPS, WHICH), max_size=4),
    shard_rows=st.sampled_from([None, 1, 10, 30, 60, 100]),
    actors=st.integers(1, 4),
    split=st.lists(WHICH, max_size=2),
    commit=st.lists(WHICH, max_size=2),
)


@dataclass
class Run:
    """A run's revision, and the lake it scores.

    files: as they are. found: as each night found them. past: every content that a file ever had.
    """

    revision: str
    files: Files = field(default_factory=dict)
    found: list[Files] = field(default_factory=list)
    past: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    plan: Plan = field(default_factory=lambda: Plan.of(()))

    def change(self, change: Change) -> None:
        """A file is written, spoilt, removed or put back as it was once; or the whole lake is."""
        match change.what:
            case "write":
                self._put(change.name, line(change.name, list(change.groups), version=str(len(self.past))))
            case "spoil":
                self._put(change.name, unreadable(change.name))
            case "spoil alike" if before := self.files.get(change.name):
                same = {key: before[key] for key in ("size", "version")}
                self._put(change.name, {**unreadable(change.name), **same})
            case "remove":
                self.files.pop(change.name, None)
            case "put back" if self.past:
                self._put(*self.past[change.which % len(self.past)])
            case "remove all":
                self.files = {}
            case "restore" if self.found:
                self.files = dict(self.found[change.which % len(self.found)])

    def _put(self, name: str, content: dict[str, Any]) -> None:
        self.files[name] = content
        self.past.append((name, content))

    def come_again(self, shard_rows: int | None, actors: int) -> None:
        """Plan as a score step does, under an epoch of its own."""
        discovery, asked = lake(list(self.files.values())), job(shard_rows, actors)
        request = RunRequest(
            job=asked,
            job_path="/lake/job.yaml",
            run_id="2026-11-19",
            date="2026-11-19",
            storage=LakeStorage(),
            flow_run="",
        )
        writer = open_epoch(LakeStorage(), self.revision, this_holder("score"), lease_s=3600)
        self.plan = plan_in(request, writer, self.revision, discovery, IDENTITY, None)
        writer.stop(release=True)
        self.found.append(dict(self.files))

    def split(self, which: int) -> None:
        """As a score step does when a packed shard failed: a shard for each of its files, and nothing else changes."""
        packed: list[Shard] = [shard for shard in self._missing() if len(shard.pieces) > 1]
        if not packed:
            return
        shard, before = packed[which % len(packed)], set(self.plan.ids())
        self.plan, split = self.plan.with_splits([shard.id], FINGERPRINT)
        parts = split[shard.id]
        assert tuple(piece for part in parts for piece in part.pieces) == shard.pieces
        assert set(self.plan.ids()) == before - {shard.id} | {part.id for part in parts}
        self._append(Split(shard.id, "no", len(parts)))

    def commit(self, which: int) -> None:
        """A shard is scored."""
        if missing := self._missing():
            shard = missing[which % len(missing)].id
            self._append(Receipt(shard, 1, 1, "w", None, None, 0.1, 0.0, rows_in=10, rows_out=10))
            self.committed.add(shard)

    def _missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards() if shard.id not in self.committed]

    def _append(self, line: Line) -> None:
        writer = open_epoch(LakeStorage(), self.revision, this_holder("score"), lease_s=3600)
        writer.append([line])
        writer.stop(release=True)

    def check_read(self) -> None:
        """The next step reads the plan that this one scores."""
        read = revs.read_plan(LakeStorage(), self.revision, replay(Ledger(LakeStorage(), self.revision)))
        assert read is not None
        assert read.table.equals(self.plan.table)

    def check_kept(self, before: Plan) -> None:
        """Since last night, what stands as it stood keeps its shards and so its results; nothing else does."""
        last, now = self.found[-2], self.found[-1]
        same = {each["uri"] for name, each in now.items() if last.get(name) == each}
        stands = {shard.id for shard in before.shards() if {piece.uri for piece in shard.pieces} <= same}
        again = {shard.id for shard in before.shards() if shard.rows == UNREADABLE}
        assert stands - again <= set(self.plan.ids())
        assert not (set(before.ids()) - stands) & set(self.plan.ids())


@contextmanager
def a_run() -> Iterator[Run]:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Run(folder)


THREE = dict.fromkeys(("f0", "f1", "f2"), (5,))
GONE_FOR_A_NIGHT = [
    Night([], 60, 1, [0], []),
    Night([Change("remove all", "", (), 0)], 60, 1, [], []),
    Night([Change("restore", "", (), 0)], 60, 1, [], []),
]


def check_nights(first: dict[str, tuple[int, ...]], nights: list[Night]) -> None:
    """Each row is in one shard after each continuation, and after its splits and commits."""
    with a_run() as run:
        for name, groups in first.items():
            run.change(Change("write", name, groups, 0))
        for night in nights:
            for change in night.changes:
                run.change(change)
            before = run.plan
            run.come_again(night.shard_rows, night.actors)
            check_cover(run.plan, list(run.files.values()))
            if run.found[:-1]:
                run.check_kept(before)
            run.check_read()
            for which in night.split:
                run.split(which)
            for which in night.commit:
                run.commit(which)
            check_cover(run.plan, list(run.files.values()))
            run.check_read()


SEVERAL = given(FIRST, st.lists(NIGHTS, min_size=2, max_size=8))


@settings(max_examples=50, print_blob=True)
@SEVERAL
@example(THREE, GONE_FOR_A_NIGHT)
def test_night_after_night_each_row_is_in_one_shard_and_what_stands_keeps_its_results(
    first: dict[str, tuple[int, ...]], nights: list[Night]
) -> None:
    """Looked at after each continuation, and after its splits and commits."""
    check_nights(first, nights)


@pytest.mark.long
@settings(max_examples=600, print_blob=True)
@SEVERAL
def test_in_hundreds_of_nights_after_nights_each_row_is_in_one_shard(
    first: dict[str, tuple[int, ...]], nights: list[Night]
) -> None:
    """The same as above, with more to happen."""
    check_nights(first, nights)


@pytest.mark.parametrize("split", [False, True])
def test_what_lies_on_a_new_mount_keeps_its_results_and_is_known_by_its_new_inode(split: bool) -> None:
    """The names of its shards stay; the version that is looked at before and after a read is the new one."""
    with a_run() as run:
        run.files = {name: line(name, [5], version="17+20+2+1.100644.0.0") for name in THREE}
        run.come_again(60, 1)
        if split:
            run.split(0)
        run.commit(0)
        scored = run.plan.ids()
        for version in ("17+20+3+1.100644.0.0", "17+20+4+1.100644.0.0"):
            run.files = {name: line(name, [5], version=version) for name in THREE}
            run.come_again(60, 1)
            assert run.plan.ids() == scored
            run.check_read()
            assert {piece.version for shard in run.plan.shards() for piece in shard.pieces} == {version}
        run.files["f1"] = line("f1", [5], version="17+21+3+1.100644.0.0")
        run.come_again(60, 1)
        changed = {
            shard.id for shard in run.plan.shards() if any(piece.uri.endswith("f1.parquet") for piece in shard.pieces)
        }
        assert changed
        assert not changed & set(scored), "written over, its size and time of writing kept"
        assert len(set(run.plan.ids()) & set(scored)) == (2 if split else 0)


def test_a_shard_that_was_split_stays_so_when_its_files_were_gone_for_a_night() -> None:
    """A folder that was not mounted, or was moved away and back: what the score step scores is what is looked for."""
    with a_run() as run:
        run.files = there = {name: line(name, [5]) for name in THREE}
        run.come_again(60, 1)
        run.split(0)
        split = run.plan
        assert len(split) == 3
        for files in ({}, there):
            run.files = files
            run.come_again(60, 1)
            run.check_read()
        assert run.plan.ids() == split.ids()
