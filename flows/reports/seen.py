"""What readers see, and what changed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.output.publications import Origin
from nightjar.inference.output.visibility import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationListed:
    """One publication: when and by what it was made, and what it changed for readers.

    latest: the run of the highest date. runs: the revision that readers see of each run.
    """

    publication: int
    at: str
    made_by: Origin
    note: str
    latest: str | None
    runs: Mapping[str, int]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(PublicationListed):
    """The publication after a rollback. With dry_run it is the earlier one that would be shown again."""

    dry_run: bool
