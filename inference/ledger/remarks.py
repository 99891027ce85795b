"""What a person should know about how a night was scored. It is folded from the ledger, and shown with the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nightjar.inference.identity.packages import States, added, changes
from nightjar.inference.ledger.lines import Line, Packages, Planned, Preflight
from nightjar.inference.ledger.progress import least
from nightjar.inference.records import Seen
from nightjar.inference.witness.seen import Collection, sentences

FEW_CUTS = 3
"""The most cut batches in a run that are not reported."""


@dataclass(slots=True)
class Remarks:
    """What the ledger says about the results of one identity, also about results that were taken over."""

    again: tuple[str, ...] = ()
    """Why shards with a result were scored again, a sentence each."""

    preflight: tuple[str, ...] = ()
    """The last preflight's notes, a sentence each."""

    outside: Collection = field(default_factory=Collection)
    """What predictors used that the identity does not cover."""

    loaded: States = field(default_factory=dict)
    """Package → its versions with which preflights loaded the model, in the order in which they were seen."""

    snapshots: tuple[str, ...] = ()
    """Of the table that is the input, the first plan's snapshot and the last one's; empty for files."""

    def fold(self, line: Line) -> None:
        """Add one line of the ledger."""
        match line:
            case Planned():
                self.again += tuple(why for why in line.again if why not in self.again)
                if line.snapshot:
                    self.snapshots = tuple(dict.fromkeys((*self.snapshots[:1], line.snapshot)))
            case Seen():
                self.outside.add(line)
            case Preflight():
                self.preflight = line.notes
            case Packages():
                self.loaded = added(self.loaded, line.loaded)
            case _:
                pass

    def lacking(self, source: Remarks) -> list[Line]:
        """The lines that add to this ledger what `source` knows about results that are taken over."""
        lines: list[Line] = [*self.noticed(source.outside.all())]
        for depth in range(max(map(len, source.loaded.values()), default=0)):
            layer = {package: states[depth] for package, states in source.loaded.items() if len(states) > depth}
            lines += self.news(layer)
        if source.preflight and not self.preflight:
            lines.append(Preflight(source.preflight))
        return lines

    def news(self, loaded: Mapping[str, str]) -> list[Line]:
        """The line for packages of which one is not known yet."""
        return [Packages(loaded)] if added(self.loaded, loaded) != self.loaded else []

    def noticed(self, seen: Iterable[Seen]) -> list[Seen]:
        """Return those of the seen things that are new: each is a line of the ledger."""
        kept = Collection(self.outside.all())
        return [news for each in seen if (news := kept.add(each)) is not None]

    def notes(self, batches_cut: int, ceilings: Sequence[int] = ()) -> tuple[str, ...]:
        """The sentences to show, without `again`, which is shown before them. batches_cut, ceilings: of the run."""
        return (
            *_of_table(self.snapshots),
            *self.preflight,
            *cut_batches(batches_cut),
            *small_batches(ceilings),
            *_others(changes(self.loaded)),
            *sentences(self.outside.all()),
        )


def _of_table(snapshots: tuple[str, ...]) -> list[str]:
    if not snapshots:
        return []
    first, now = snapshots[0], snapshots[-1]
    was = f"; the run began with snapshot {first}, and kept what is the same" if first != now else ""
    return [f"the input is snapshot {now} of its table{was}"]


def _others(found: list[str]) -> list[str]:
    if not found:
        return []
    return [
        f"packages changed since this run was begun, and what is scored stays: {', '.join(found)}; `identity.packages` "
        "makes them count"
    ]


def cut_batches(batches: int) -> list[str]:
    """The sentence about a run in which this many batches were cut; none if they were few."""
    if batches <= FEW_CUTS:
        return []
    return [
        f"{batches:,} batches failed and were scored in parts, which takes longer; see the errors in the quarantine, "
        "and if it is empty, check whether the predictor can take batches of this size"
    ]


def small_batches(ceilings: Sequence[int]) -> list[str]:
    """The sentence about a run in which memory did not suffice for larger micro-batches. ceilings: as in `Progress`."""
    rows = least(ceilings)
    if not rows:
        return []
    return [
        f"memory did not suffice for micro-batches of more than {rows:,} rows, so that smaller ones were scored; more "
        "memory for each actor allows larger ones"
    ]
