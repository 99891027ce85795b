"""Labels 0 and 1 against scores, as a state that merges exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_native_number
from nightjar.inference.errors import LabelInvalid
from nightjar.inference.metrics.classification import Scores
from nightjar.inference.metrics.evaluator import Evaluator, Labels
from nightjar.inference.metrics.figures import Bounded, Evaluation
from nightjar.inference.metrics.numbers import added
from nightjar.inference.metrics.packing import pack, unpack

_INSIDE = 4096  # uniform bins of [0, 1]
_FRACTION_BITS = 8  # outside, 256 bins for each power of two …
_BELOW = (16 + 64) << _FRACTION_BITS  # … of magnitudes 2^-16 to 2^64 below 0 …
_ABOVE = 64 << _FRACTION_BITS  # … and 1 to 2^64 above 1; beyond these, the outermost bin
_BINS = _BELOW + _INSIDE + _ABOVE

_CLIP = 1e-7
_LOSS_UNIT = 2.0**36  # losses are summed as multiples of 2^-36: exact, so grouping cannot change the sum
_UNDEFINED = {
    "precision": "no row is predicted 1",
    "recall": "no row has label 1",
    "f1": "no row has label 1 or is predicted 1",
}
_BLOCK = 1 << 17  # rows at a time: temporaries stay in cache, and an int64 holds a block's loss


@dataclass(slots=True)
class BinaryState(Evaluator):
    """Labels 0 and 1 against scores, counted in bins of the score.

    The bins never change, so that merging does not depend on the data. A row with a null label counts only as
    `unlabelled`; another row with a null or NaN score counts as `unscored`. filled, counts: int64, the bins that hold
    rows, in ascending order, and their rows; the bins of negatives and of positives alternate. loss: the sum over the
    scores in [0, 1], in units of 2^-36. The log loss is the mean of −[y ln p + (1 − y) ln(1 − p)], with p clipped to
    [1e-7, 1 − 1e-7].
    """

    TASK: ClassVar[str] = "binary"
    LABELS: ClassVar[str] = "bool, or 0 and 1"
    SCORES: ClassVar[str] = "a float"
    EXAMPLE: ClassVar[str] = "score: float32"

    label: str
    score: str
    unlabelled: int = 0
    unscored: int = 0
    outside: int = 0
    loss: int = 0
    filled: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def takes_label(type_: pa.DataType) -> bool:
        """Whether labels may be of this type."""
        return is_native_number(type_)

    @staticmethod
    def takes_score(type_: pa.DataType) -> bool:
        """Whether scores may be of this type."""
        return bool(pa.types.is_floating(type_))

    @property
    def rows(self) -> int:
        """The rows that are compared."""
        return int(self.counts.sum())

    def check(self, labels: Labels) -> None:
        self._flags(labels)

    def update(self, rows: pa.Table, labels: Labels) -> None:
        values = _floats(self.outputs(rows, labels))
        positive, known = self._flags(labels)
        for first in range(0, len(values), _BLOCK):
            block = slice(first, first + _BLOCK)
            self._add(values[block], positive[block], None if known is None else known[block])

    def merge(self, other: BinaryState) -> None:
        self.unlabelled += other.unlabelled
        self.unscored += other.unscored
        self.outside += other.outside
        self.loss += other.loss
        self._add_bins(other.filled, other.counts)

    def _add_bins(self, filled: np.ndarray, counts: np.ndarray) -> None:
        self.filled, self.counts = added((self.filled, self.counts), (filled, counts))

    def values(self) -> tuple[Any, ...]:
        """The fields' values for JSON. The bins are kept by the gaps between them."""
        counts = [pack(np.diff(self.filled, prepend=0)), pack(self.counts)]
        return (self.label, self.score, self.unlabelled, self.unscored, self.outside, self.loss, counts)

    @classmethod
    def of_values(cls, values: tuple[Any, ...]) -> BinaryState:
        """The inverse of `values`."""
        label, score, unlabelled, unscored, outside, loss, (gaps, counts) = values
        return cls(label, score, unlabelled, unscored, outside, loss, np.cumsum(unpack(gaps)), unpack(counts))

    def results(self) -> Evaluation:
        """The figures; each missing figure has a reason."""
        auc, loss = self.metric("auroc"), self.metric("log_loss")
        rows, scores = self.rows, self._scores
        inside = rows and not self.outside
        return Evaluation(
            label=self.label,
            score=self.score,
            rows=rows,
            excluded_null_labels=self.unlabelled,
            excluded_scores=self.unscored,
            positives=scores.positives,
            auc_roc=auc.value if isinstance(auc, Bounded) else None,
            auc_bound=auc.bound if isinstance(auc, Bounded) else None,
            auc_reason=auc if isinstance(auc, str) else None,
            log_loss=loss.value if isinstance(loss, Bounded) else None,
            log_loss_reason=loss if isinstance(loss, str) else None,
            average_precision=scores.average_precision() if isinstance(auc, Bounded) else None,
            brier=scores.brier() if inside else None,
            ece=scores.ece() if inside else None,
            predictions=scores.at(0.5) if inside else None,
            calibration=scores.calibration() if inside else (),
        )

    def metric(self, name: str, threshold: float = 0.5) -> Bounded | str:
        """A metric, or why there is none. name: one of `METRIC_NAMES`. threshold: for predictions."""
        scores, rows = self._scores, self.rows
        if not rows:
            return "no row has both a label and a score"
        if name in ("auroc", "average_precision"):
            if not scores.positives or not scores.negatives:
                return f"no row has label {0 if scores.positives else 1}"
            return scores.auroc() if name == "auroc" else scores.average_precision()
        if self.outside:
            return f"{self.outside} scores lie outside [0, 1]"
        if name == "log_loss":
            return Bounded(self.loss / _LOSS_UNIT / rows, 0.5 / _LOSS_UNIT)
        if name == "brier":
            return scores.brier()
        if name == "ece":
            return scores.ece()
        value: float | None = getattr(scores.at(threshold), name)
        return Bounded(value) if value is not None else _UNDEFINED[name]

    @property
    def _scores(self) -> Scores:
        whole = np.zeros(2 * _BINS, np.int64)
        whole[self.filled] = self.counts
        return Scores(whole.reshape(-1, 2), slice(_BELOW, _BELOW + _INSIDE))

    def _flags(self, labels: Labels) -> tuple[np.ndarray, np.ndarray | None]:
        """Two bool arrays of shape (rows,): which labels are 1, and which are known (None if all are)."""
        column = self.typed(labels)
        known = column.is_valid().to_numpy() if column.null_count else None
        if pa.types.is_null(column.type):
            return np.zeros(len(column), bool), known
        if known is not None:
            column = pc.fill_null(column, pa.scalar(0).cast(column.type))
        values = column.to_numpy()
        positive: np.ndarray = values == 1
        if not (fine := positive | (values == 0)).all():
            value = values[~fine][0].item()
            raise LabelInvalid(f"label column {self.label!r} holds {value!r}; it must be 0, 1 or null")
        return positive, known

    def _add(self, values: np.ndarray, positive: np.ndarray, known: np.ndarray | None) -> None:
        if known is not None:
            self.unlabelled += len(known) - int(known.sum())
            values, positive = values[known], positive[known]
        missing = np.isnan(values)
        if missing.any():
            self.unscored += int(missing.sum())
            values, positive = values[~missing], positive[~missing]
        if not len(values):
            return
        bins = _bins(values) * 2 + positive
        first = int(bins.min())
        counts = np.bincount(bins - first)
        filled = np.flatnonzero(counts)
        self._add_bins(filled + first, counts[filled])
        inside = (values >= 0) & (values <= 1)
        if not inside.all():
            self.outside += len(values) - int(inside.sum())
            values, positive = values[inside], positive[inside]
        p = np.clip(values.astype(np.float64), _CLIP, 1 - _CLIP)
        np.subtract(1.0, p, out=p, where=~positive)
        self.loss += int(np.rint(np.log(p) * -_LOSS_UNIT).astype(np.int64).sum())


def _floats(scores: pa.ChunkedArray) -> np.ndarray:
    """The scores as a numpy array, with nulls as NaN."""
    if pa.types.is_float16(scores.type):
        scores = scores.cast(pa.float32())
    values: np.ndarray = scores.to_numpy()
    return values


def _bins(values: np.ndarray) -> np.ndarray:
    """The bin of each score: fixed and monotone. Scaling by a power of two is exact in any float type."""
    low, high = values.min(), values.max()
    bins = (np.clip(values, 0, 1) if low < 0 or high > 1 else values) * values.dtype.type(_INSIDE)
    index: np.ndarray = np.minimum(bins.astype(np.int32), _INSIDE - 1) + _BELOW
    if low < 0 or high > 1:
        # Read as integers, the leading bits of the magnitudes are ordered like the floats.
        key = np.abs(values.astype(np.float64)).view(np.int64) >> (52 - _FRACTION_BITS)
        above = np.clip(key - (1023 << _FRACTION_BITS), 0, _ABOVE - 1) + _BELOW + _INSIDE
        below = _BELOW - 1 - np.clip(key - ((1023 - 16) << _FRACTION_BITS), 0, _BELOW - 1)
        index = np.where(values > 1, above, np.where(values < 0, below, index))
    return index
