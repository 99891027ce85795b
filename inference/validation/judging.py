"""What a check of the user's own is given and may return. Both are public, so fields are added and none is changed."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.metrics.figures import Figures
from nightjar.inference.records import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class NightEvidence(Counts):
    """One night: scored and audited, and about to be published; or published before.

    date: the logical date, as ISO 8601. rows_in: rows of the input that were scored, or tried: `rows_out` that will
    be published, and `rows_quarantined` that will not. metrics: the figures of the columns that other checks name,
    of outputs, of the labels against the scores, and the profile of the columns that the job profiles, as `--json`
    prints them. last: the published night before this one, if there is one; its own `last` is None.
    """

    job: str
    run_id: str
    date: str
    shards: int
    metrics: Figures
    last: NightEvidence | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its words. sentence: why, and what to do next. observed, limit: short texts for the table of
    gates, as "3 flagged" and "none".
    """

    passed: bool
    sentence: str = ""
    observed: str = ""
    limit: str = ""
