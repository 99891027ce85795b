"""Counts batches that raise: those with rows that fail alone, and those that no row explains.

Bisection ends at the rows that fail alone. A batch that raises although each of its rows can be scored is *broken*. One
broken batch may be an accident. With a predictor that breaks every batch, bisection would score row by row all night.

A batch that has not one value for each row, though its parts have, is no accident: what the predictor returns for a row
depends on the other rows of the batch. It may have done the same in batches that have the right number, so the first
such batch ends the attempt.
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
    """A batch that raised. failed: the number of rows that had failed before it was cut. length: as in `Cuts.cut`."""

    first: int
    last: int
    failed: int
    why: str
    length: str

    @property
    def rows(self) -> str:
        return f"rows {self.first} to {self.last}"


class Cuts:
    """The batches that one attempt had to cut for another reason than memory.

    batches: micro-batches that raised and were scored in parts. broken: batches and parts that raised although no row
    failed alone. whole: batches of several rows that were scored at once. The attempt ends when there are more broken
    batches than `allowed`, and more than `share` × `whole`; and at the first one that had not one value for each row.
    """

    def __init__(self, allowed: int = ALLOWED, share: float = SHARE) -> None:
        self.batches = self.broken = self.whole = 0
        self._allowed, self._share = allowed, share
        self._around: list[_Cut] = []

    def cut(self, first: int, last: int, failed: int, why: str, length: str) -> None:
        """Rows first to last raised, and are tried in two parts next. failed: the number of rows that failed so far.

        length: the number of values and that of rows as a sentence, if they differ; else empty.
        """
        self.batches += not self._around
        self._around.append(_Cut(first, last, failed, why, length))

    def unlike_rows(self) -> str:
        """The largest batch around the rows that are tried now which had not one value for each row; else empty."""
        return next((f"{each.length} ({each.rows})" for each in self._around if each.length), "")

    def done(self, last: int, failed: int, *, whole: bool) -> None:
        """Rows up to `last` have outputs or have failed. whole: several rows were scored at once.

        Raises:
            BatchesBroken: Too many batches raise although no row fails alone, or one had another number of values.
        """
        self.whole += whole
        while self._around and self._around[-1].last == last:
            batch = self._around[-1]
            if batch.failed == failed:
                if batch.length:
                    raise BatchesBroken(
                        f"{self.unlike_rows()}, and the right number for {batch.rows} in smaller batches, so that no "
                        "row is to blame. Mend how the code handles a batch: it must return one value for each row, "
                        "however many rows there are"
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
