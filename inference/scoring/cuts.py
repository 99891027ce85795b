"""Batches that raise: those cut in two for the sake of rows that fail alone, and those that no row explains.

Bisection ends at the rows that fail alone. A batch of which every row can be scored and that raises all the same is
*broken*. One may be an accident; a predictor whose every batch is broken would be scored row by row, a night long.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.errors import BatchesBroken

ALLOWED = 16
"""So many broken batches any attempt may have: what finding them costs is seconds."""

SHARE = 0.5
"""As many for each batch scored whole: an attempt in which each batch fails once, and its halves do not, goes on."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A batch that raised. failed: rows that had failed before it was cut."""

    first: int
    last: int
    failed: int
    why: str


class Cuts:
    """The batches that one attempt had to cut, though memory did suffice.

    batches: micro-batches that raised and were scored in parts. broken: of all that raised, parts too, those of
    which no row failed. whole: those of several rows that were scored at once. More broken ones than both
    `allowed` and `share` of the whole ones end the attempt.
    """

    def __init__(self, allowed: int = ALLOWED, share: float = SHARE) -> None:
        self.batches = self.broken = self.whole = 0
        self._allowed, self._share = allowed, share
        self._around: list[_Cut] = []

    def cut(self, first: int, last: int, failed: int, why: str) -> None:
        """Rows first to last raised, and are tried in two parts next. failed: how many rows have failed so far."""
        self.batches += not self._around
        self._around.append(_Cut(first, last, failed, why))

    def done(self, last: int, failed: int, *, whole: bool) -> None:
        """Rows up to this one have outputs or have failed. whole: they were several, scored at once.

        Raises:
            BatchesBroken: too many batches raise for the sake of no row.
        """
        self.whole += whole
        while self._around and self._around[-1].last == last:
            batch = self._around.pop()
            if batch.failed == failed:
                self.broken += 1
                if self.broken > max(self._allowed, self._share * self.whole):
                    raise BatchesBroken(self._told(batch))

    def _told(self, batch: _Cut) -> str:
        where = f"rows {batch.first} to {batch.last}"
        if self.whole:
            return (
                f"the predictor fails for batches of which it can score every row: {where} together raise {batch.why}. "
                "Mend how it takes a batch, or give it smaller ones: model.batch_size"
            )
        return (
            f"the predictor fails for batches of more than one row: {where} together raise {batch.why}; each row alone "
            "is scored. Mend how it takes a batch, or set model.batch_size: 1"
        )
