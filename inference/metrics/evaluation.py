"""Labels against scores, as a state that merges exactly: AUC-ROC and log loss."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import LabelInvalid
from nightjar.inference.metrics.columns import plain

_INSIDE = 4096  # uniform bins of [0, 1]
_FRACTION_BITS = 8  # outside, 256 bins for each power of two …
_BELOW = (16 + 64) << _FRACTION_BITS  # … of magnitudes 2^-16 to 2^64 below 0 …
_ABOVE = 64 << _FRACTION_BITS  # … and 1 to 2^64 above 1; beyond these, the outermost bin
_BINS = _BELOW + _INSIDE + _ABOVE

_CLIP = 1e-7
_LOSS_UNIT = 2.0**36  # losses are summed as multiples of 2^-36: exact, so grouping cannot change the sum
_BLOCK = 1 << 17  # rows at a time: temporaries stay in cache, and an int64 holds a block's loss


@dataclass(slots=True)
class BinaryState:
    """Labels 0 and 1 against scores: binned AUC-ROC and log loss.

    The bins are fixed for all time, so that merging never depends on the data. A row whose label is null
    counts as `unlabelled` only; of the others, one whose score is null or NaN as `unscored`. counts: int64,
    negatives and positives alternating, per bin. loss: in units of 2^-36, over the scores in [0, 1].
    """

    label: str
    score: str
    unlabelled: int = 0
    unscored: int = 0
    outside: int = 0
    loss: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(2 * _BINS, np.int64))

    def update(self, scores: pa.ChunkedArray, labels: pa.ChunkedArray | pa.Array) -> None:
        if len(scores) != len(labels):
            raise ValueError(f"{len(labels)} labels for {len(scores)} scores")
        positive, known = self._flags(labels)
        values = _floats(scores)
        for first in range(0, len(values), _BLOCK):
            block = slice(first, first + _BLOCK)
            self._add(values[block], positive[block], None if known is None else known[block])

    def merge(self, other: BinaryState) -> None:
        self.unlabelled += other.unlabelled
        self.unscored += other.unscored
        self.outside += other.outside
        self.loss += other.loss
        self.counts += other.counts

    def as_record(self) -> list[Any]:
        """JSON-able, whole: only the bins that hold anything, by the gaps between them."""
        filled = np.flatnonzero(self.counts)
        counts = [_pack(np.diff(filled, prepend=0)), _pack(self.counts[filled])]
        return [self.label, self.score, self.unlabelled, self.unscored, self.outside, self.loss, counts]

    @classmethod
    def of_record(cls, record: list[Any]) -> BinaryState:
        """The inverse of `as_record`."""
        *sums, (gaps, counts) = record
        state = cls(*sums)
        state.counts[np.cumsum(_unpack(gaps))] = _unpack(counts)
        return state

    def results(self) -> dict[str, Any]:
        """JSON-able. `rows` are those evaluated, of which `positives` have label 1; null has a reason."""
        rows, positives = int(self.counts.sum()), int(self.counts[1::2].sum())
        return {
            "label": self.label,
            "score": self.score,
            "rows": rows,
            "excluded_null_labels": self.unlabelled,
            "excluded_scores": self.unscored,
            "positives": positives,
            **self._auc(positives, rows - positives),
            **self._log_loss(rows),
        }

    def _auc(self, positives: int, negatives: int) -> dict[str, Any]:
        """Area under the ROC curve by the trapezoid rule: U / (P·N), a tie counting half.

        U is Mann and Whitney's statistic (Ann. Math. Stat. 18, 1947, doi:10.1214/aoms/1177730491); its
        equality with the trapezoid area is Hanley and McNeil's (Radiology 143, 1982,
        doi:10.1148/radiology.143.1.7063747). Scores of one bin count as tied; each such pair is wrong by
        half at most, hence the bound Σ pos·neg / (2·P·N). Integers throughout, rounded once.
        """
        if not positives or not negatives:
            reason = f"no row has label {0 if positives else 1}"
            return {"auc_roc": None, "auc_bound": None, "auc_reason": reason}
        wins = tied = below = 0  # `wins` counts halves
        pairs = self.counts.reshape(-1, 2)
        for negative, positive in pairs[pairs.any(axis=1)].tolist():
            wins += positive * (2 * below + negative)
            tied += positive * negative
            below += negative
        total = 2 * positives * negatives
        return {"auc_roc": wins / total, "auc_bound": tied / total}

    def _log_loss(self, rows: int) -> dict[str, Any]:
        """Mean of −[y ln p + (1 − y) ln(1 − p)], p clipped to [1e-7, 1 − 1e-7]."""
        if not rows:
            return {"log_loss": None, "log_loss_reason": "no row has both a label and a score"}
        if self.outside:
            return {"log_loss": None, "log_loss_reason": f"{self.outside} scores lie outside [0, 1]"}
        return {"log_loss": self.loss / _LOSS_UNIT / rows}

    def _flags(self, labels: pa.ChunkedArray | pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
        """Which labels are 1, and which are known (None: all)."""
        column = plain(labels if isinstance(labels, pa.ChunkedArray) else pa.chunked_array([labels]))
        known = column.is_valid().to_numpy() if column.null_count else None
        if pa.types.is_null(column.type):
            return np.zeros(len(column), bool), known
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        is_ = pa.types
        if not (is_.is_boolean(column.type) or is_.is_integer(column.type) or is_.is_floating(column.type)):
            raise LabelInvalid(f"label column {self.label!r} is {column.type}; it must be bool, or 0 and 1")
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
        self.counts += np.bincount(_bins(values) * 2 + positive, minlength=2 * _BINS)
        inside = (values >= 0) & (values <= 1)
        if not inside.all():
            self.outside += len(values) - int(inside.sum())
            values, positive = values[inside], positive[inside]
        p = np.clip(values.astype(np.float64), _CLIP, 1 - _CLIP)
        np.subtract(1.0, p, out=p, where=~positive)
        self.loss += int(np.rint(np.log(p) * -_LOSS_UNIT).astype(np.int64).sum())


def _floats(scores: pa.ChunkedArray) -> np.ndarray:
    """As numpy, null as NaN."""
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
        # The leading bits of a float's magnitude, read as an integer, are in the order of the floats.
        key = np.abs(values.astype(np.float64)).view(np.int64) >> (52 - _FRACTION_BITS)
        above = np.clip(key - (1023 << _FRACTION_BITS), 0, _ABOVE - 1) + _BELOW + _INSIDE
        below = _BELOW - 1 - np.clip(key - ((1023 - 16) << _FRACTION_BITS), 0, _BELOW - 1)
        index = np.where(values > 1, above, np.where(values < 0, below, index))
    return index


def _pack(values: np.ndarray) -> str:
    """Non-negative integers, in as few bytes each as the largest needs, deflated."""
    width = np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<")
    packed = base64.b64encode(zlib.compress(values.astype(width).tobytes()))
    return f"{width.itemsize}:{packed.decode('ascii')}"


def _unpack(text: str) -> np.ndarray:
    width, _, packed = text.partition(":")
    raw = zlib.decompress(base64.b64decode(packed, validate=True))
    return np.frombuffer(raw, f"<u{width}").astype(np.int64)
