"""Decides when batches that raise end an attempt, although their rows can be scored in smaller ones."""

from __future__ import annotations

from nightjar.inference.errors import BatchesBroken

ALLOWED = 16
"""The number of broken batches that every table may have; finding them takes only seconds."""

SHARE = 0.5
"""Broken batches allowed per batch scored whole, so that an attempt goes on if each batch fails once, but not its
halves."""


class Cuts:
    """The batches of one table that had to be cut for another reason than memory.

    batches: micro-batches that raised and were scored in parts. broken: batches and parts that raised although no row
    failed alone. whole: batches of several rows that were scored at once. The attempt ends when there are more broken
    batches than `allowed`, and more than `share` × `whole`.

    It also ends at the first batch whose values cannot be assigned to its rows although those of its parts can: what
    the predictor returns for a row depends on the other rows, so earlier batches may have been wrong without a sign.
    """

    def __init__(self, allowed: int = ALLOWED, share: float = SHARE) -> None:
        self.batches = self.broken = self.whole = 0
        self._allowed, self._share = allowed, share

    def broke(self, rows: str, why: str, unaligned: str) -> None:
        """A batch raised, though each of its rows was scored alone or in a part.

        rows: as "rows 0 to 9". unaligned: why its values, or those of a batch around it, cannot be assigned to rows.

        Raises:
            BatchesBroken: Too many batches did, or this one is unaligned.
        """
        if unaligned:
            raise BatchesBroken(
                f"{unaligned}, and smaller batches of {rows} are right, so that no row is to blame. Mend how the code "
                "handles a batch: it must return one value for each row, in the order of the rows or with the batch's "
                "own index, however many rows there are"
            )
        self.broken += 1
        if self.broken <= max(self._allowed, self._share * self.whole):
            return
        if self.whole:
            raise BatchesBroken(
                f"the predictor fails for batches though it can score each of their rows: {rows} together raise {why}. "
                "Mend how it handles a batch, or give it smaller ones: model.batch_size"
            )
        raise BatchesBroken(
            f"the predictor fails for batches of more than one row: {rows} together raise {why}; each row alone is "
            "scored. Mend how it handles a batch, or set model.batch_size: 1"
        )
