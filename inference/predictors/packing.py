"""Which texts go through the model together: those of similar length, as many as memory and the token budget allow.

A batch costs what its longest text costs, times its rows. So the texts of a micro-batch are sorted by length, and
packed into calls with rows × longest ≤ budget, of which padding takes little. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nightjar.inference.predictors.arrays import Array
from nightjar.inference.predictors.outofmemory import is_memory

PADDING = 64
"""Of a call's budget, at most one part in so many is padding: 32 tokens on a CPU, which MiniLM computes in 8 ms. Less
padding would need more calls, each of which costs about as much. On a GPU this was not measured."""

Call = Callable[[Array], None]
"""Gets the indices of rows, the longest first; computes these, and keeps what came out."""


class Packer:
    """Packs rows into calls of the model. Keeps what it learns about memory as long as the process lives.

    tokens: the most rows × longest of a call; None for all rows at once, until memory does not suffice. forced: the
    same if lack of memory reduced it, else 0. alone: rows of at least so many tokens have a call each, because one of
    them did not fit alone.
    """

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self.forced = 0
        self.alone: int | None = None

    def run(self, lengths: Array, call: Call) -> None:
        """Call the model until each row was in one call that succeeded. lengths: tokens of each row.

        A call that runs out of memory is repeated with half of what did not fit.

        Raises:
            Exception: Whatever a call raises; one that means too little memory only for a row that does not fit alone.
        """
        order = np.argsort(-lengths, kind="stable")
        first, before = 0, (self.tokens, self.forced)
        while first < len(order):
            longest = int(lengths[order[first]])
            rows = order[first : first + self._rows(longest, len(order))]
            if self.tokens is not None:
                rows = rows[(longest - lengths[rows]).cumsum() <= self.tokens // PADDING]
            if len(rows) == 1:
                self._single(rows, longest, call, before)
            elif not self._fits(rows, call):
                self.tokens = self.forced = len(rows) * longest // 2
                continue
            first, before = first + len(rows), (self.tokens, self.forced)

    def _rows(self, longest: int, most: int) -> int:
        if self.alone is not None and longest >= self.alone:
            return 1
        return most if self.tokens is None else max(1, self.tokens // longest)

    def _fits(self, rows: Array, call: Call) -> bool:
        """Whether memory sufficed. The exception is gone afterwards: its frames would hold the memory."""
        try:
            call(rows)
        except Exception as error:
            if not is_memory(error):
                raise
            return False
        return True

    def _single(self, rows: Array, longest: int, call: Call, before: tuple[int | None, int]) -> None:
        """Call the model with one row. If it does not fit alone, the budget is what it was before this row's calls."""
        try:
            call(rows)
        except Exception as error:
            if is_memory(error):
                (self.tokens, self.forced), self.alone = before, longest
            raise
