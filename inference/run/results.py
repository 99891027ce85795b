"""What the steps of a run hand each other: small frozen records. What matters is in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.progress import Progress
from nightjar.inference.output.publications import Published
from nightjar.inference.validation.gates import GateResult


@dataclass(frozen=True)
class Planned:
    """What would be scored. state: what the ledger has of it. again: what makes shards old that had a result."""

    plan: Plan
    state: State | None
    again: tuple[str, ...]


@dataclass(frozen=True)
class Scored:
    """What the score step leaves to the next one.

    published, number: as what this very revision was published before, if it was: nothing was left to score.
    again: what made shards old that had a result.
    """

    revision: int
    epoch: int
    fingerprint: str
    progress: Progress
    published: Published | None = None
    number: int = 0
    device: str = ""
    startup_s: float = 0.0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    again: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether this very revision was published before."""
        return self.published is not None


@dataclass(frozen=True)
class Verdict:
    """What the validate step found. `manifest` and `shards` name the files written when every gate passed."""

    revision: int
    epoch: int
    gates: tuple[GateResult, ...]
    metrics: dict[str, Any]
    manifest: str
    checksum: str
    shards: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Publication:
    """The end of a run. `number` is the snapshot's; 0 when the job was told not to publish.

    unfinished: readers see it, but sweeping and `_SUCCESS` failed for this; running it again does them.
    behind: why `latest/` and `dates/` do not show it yet.
    tables_behind: what the tables of the job do not show yet and why, a sentence each.
    """

    revision: int
    number: int
    manifest: str
    swept: int = 0
    seconds: float = 0.0
    unfinished: str = ""
    behind: str = ""
    tables_behind: tuple[str, ...] = ()
