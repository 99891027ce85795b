"""Counts batches that raise: those with rows that fail alone, and those that no row explains.

Bisection ends at the rows that fail alone. A batch that raises although each of its rows can be scored is *broken*. One
broken batch may be an accident. With a predictor that breaks every batch, bisection would score row by row all night.

A batch whose values cannot be assigned to its rows (another number of values, another index), though those of its parts
can, is no accident: what the predictor returns for a row depends on the other rows of the batch. Other batches may have
been wrong without a sign of it, so the first such batch ends the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.errors import BatchesBroken

ALLOWED = 16
"""The number of broken batches that every attempt may have; finding them takes only seconds."""

SHARE = 0.5
"""Broken batches allowed per batch scored whole, so that an attempt goes on if each batch fails once, but not its
halves."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A batch that raised. failed: the number of rows that had failed before it was cut. unaligned: as in `cut`."""

    first: int
    last: int
    failed: int
    why: str
    unaligned: str

    @property
    def rows(self) -> str:
        return f"rows {self.first} to {self.last}"


class Cuts:
    """The batches that one attempt had to cut for another reason than memory.

    batches: micro-batches that raised and were scored in parts. broken: batches and parts that raised although no row
    failed alone. whole: batches of several rows that were scored at once. The attempt ends when there are more broken
    batches than `allowed`, and more than `share` × `whole`; and at the first one whose values had no rows.
    """

    def __init__(self, allowed: int = ALLOWED, share: float = SHARE) -> None:
        self.batches = self.broken = self.whole = 0
        self._allowed, self._share = allowed, share
        self._around: list[_Cut] = []

    def cut(self, first: int, last: int, failed: int, why: str, unaligned: str) -> None:
        """Rows first to last raised, and are tried in two parts next. failed: the number of rows that failed so far.

        unaligned: why its values cannot be assigned to its rows, as a sentence; empty if they can.
        """
        self.batches += not self._around
        self._around.append(_Cut(first, last, failed, why, unaligned))

    def unaligned(self) -> str:
        """Of the largest unaligned batch around the rows that are tried now the sentence; else empty."""
        return next((f"{each.unaligned} ({each.rows})" for each in self._around if each.unaligned), "")

    def done(self, last: int, failed: int, *, whole: bool) -> None:
        """Rows up to `last` have outputs or have failed. whole: several rows were scored at once.

        Raises:
            BatchesBroken: Too many batches raise although no row fails alone, or one is unaligned.
        """
        self.whole += whole
        while self._around and self._around[-1].last == last:
            batch = self._around[-1]
            if batch.failed == failed:
                if batch.unaligned:
                    raise BatchesBroken(
                        f"{self.unaligned()}, and smaller batches of {batch.rows} are right, so that no row is to "
                        "blame. Mend how the code handles a batch: it must return one value for each row, in the "
                        "order of the rows or with the batch's own index, however many rows there are"
                    )
                self.broken += 1
                if self.broken > max(self._allowed, self._share * self.whole):
                    raise BatchesBroken(self._told(batch))
            self._around.pop()

    def _told(self, batch: _Cut) -> str:
        if self.whole:
            return (
                f"the predictor fails for batches though it can score each of their rows: {batch.rows} together raise "
                f"{batch.why}. Mend how it handles a batch, or give it smaller ones: model.batch_size"
            )
        return (
            f"the predictor fails for batches of more than one row: {batch.rows} together raise {batch.why}; each row "
            "alone is scored. Mend how it handles a batch, or set model.batch_size: 1"
        )
