"""What is measured on the rows of one part, as states that merge exactly.

Each part carries its state in its Parquet footer; the audit merges them in shard order. Every accumulator
is a count, a minimum, a maximum or an integer sum, so any grouping of the same rows gives the same state:
a resumed run's metrics equal an uninterrupted run's to the last bit.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.errors import JobError, SchemaMismatch
from nightjar.inference.job import Job

_VERSION = 1
_INSIDE = 4096  # uniform bins of [0, 1]
_FRACTION_BITS = 8  # outside, 256 bins for each power of two …
_BELOW = (16 + 64) << _FRACTION_BITS  # … of magnitudes 2^-16 to 2^64 below 0 …
_ABOVE = 64 << _FRACTION_BITS  # … and 1 to 2^64 above 1; beyond these, the outermost bin
_BINS = _BELOW + _INSIDE + _ABOVE

_CLIP = 1e-7
_LOSS_UNIT = 2.0**36  # losses are summed as multiples of 2^-36: exact, so grouping cannot change the sum
_BLOCK = 1 << 17  # rows at a time: temporaries stay in cache, and an int64 holds a block's loss

_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(slots=True)
class ColumnState:
    """One column: rows, nulls, NaN and ±inf (in a list column: of its items), the least and the greatest.

    kind: number, date, timestamp, timestamp_utc, time, duration, list (of floats) or other; "" when nothing
    but nulls was seen, mixed when files disagree. low, high: finite values only; None unless the kind is a
    number or a time; times as nanoseconds, exact in any unit.
    """

    kind: str = ""
    rows: int = 0
    nulls: int = 0
    nonfinite: int = 0
    low: int | float | None = None
    high: int | float | None = None

    def update(self, column: pa.ChunkedArray) -> None:
        column = _plain(column)
        kind = _kind(column.type)
        state = ColumnState(kind, len(column), column.null_count)
        if kind == "number":
            state.nonfinite, state.low, state.high = _numbers(column)
        elif kind == "list":
            state.nonfinite, _, _ = _numbers(_items(column))
        elif kind not in ("", "other"):
            state.low, state.high = _times(column)
        self.merge(state)

    def merge(self, other: ColumnState) -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        self.nonfinite += other.nonfinite
        if self.kind and other.kind and self.kind != other.kind:
            self.kind, self.low, self.high = "mixed", None, None
            return
        self.kind = self.kind or other.kind
        self.low = min((v for v in (self.low, other.low) if v is not None), default=None)
        self.high = max((v for v in (self.high, other.high) if v is not None), default=None)

    def results(self) -> dict[str, Any]:
        """JSON-able; `min` and `max` of times as ISO 8601 text."""
        counts = {"rows": self.rows, "nulls": self.nulls, "nonfinite": self.nonfinite}
        low, high = _shown(self.low, self.kind), _shown(self.high, self.kind)
        return {**counts, "min": low, "max": high, "kind": self.kind}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without dictionary or extension: the values themselves."""
    if isinstance(column.type, pa.BaseExtensionType):
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=storage)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _kind(type_: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_null(type_):
        return ""
    if is_.is_integer(type_) or is_.is_floating(type_) or is_.is_decimal(type_) or is_.is_boolean(type_):
        return "number"
    if is_.is_timestamp(type_):
        return "timestamp_utc" if type_.tz else "timestamp"
    for test, kind in ((is_.is_date, "date"), (is_.is_time, "time"), (is_.is_duration, "duration")):
        if test(type_):
            return kind
    while is_.is_list(type_) or is_.is_large_list(type_) or is_.is_fixed_size_list(type_):
        type_ = type_.value_type
        if is_.is_floating(type_):
            return "list"
    return "other"


def _items(column: pa.ChunkedArray) -> pa.ChunkedArray:
    while not pa.types.is_floating(column.type):
        column = pc.list_flatten(column)
    return column


def _numbers(column: pa.ChunkedArray) -> tuple[int, Any, Any]:
    """How many are not finite, and the least and greatest of the others."""
    type_ = column.type
    if pa.types.is_decimal(type_):
        column = column.cast(pa.float64())
    elif pa.types.is_float16(type_):
        column = column.cast(pa.float32())
    nonfinite = 0
    if pa.types.is_floating(column.type):
        finite = pc.is_finite(column)
        nonfinite = int(pc.sum(pc.invert(finite)).as_py() or 0)
        if nonfinite:
            column = column.filter(finite)
    low, high = pc.min_max(column).as_py().values()
    if low is None:
        return nonfinite, None, None
    if not pa.types.is_floating(column.type):
        return nonfinite, int(low), int(high)
    # A float32 0.1 is 0.1 to whoever wrote `max: 0.1`, not 0.10000000149: the shortest text that reads back
    # as the same float32. Adding 0.0 makes -0.0 plain 0.0.
    native = np.float16 if pa.types.is_float16(type_) else column.type.to_pandas_dtype()
    return nonfinite, float(str(native(low))) + 0.0, float(str(native(high))) + 0.0


def _times(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    type_ = column.type
    if pa.types.is_date(type_):
        factor = _UNIT_NS["ms"] if pa.types.is_date64(type_) else 86_400 * _UNIT_NS["s"]
    else:
        factor = _UNIT_NS[type_.unit]
    whole = column.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    low, high = pc.min_max(whole).as_py().values()
    return (None, None) if low is None else (low * factor, high * factor)


def _shown(value: Any, kind: str) -> Any:
    return value if value is None or kind == "number" else _iso(value, kind)


def _iso(value: int, kind: str) -> str:
    seconds, rest = divmod(value, 10**9)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    if kind == "duration":
        return f"PT{seconds}{fraction}S" if value >= 0 else f"-{_iso(-value, kind)}"
    date, time = str(np.datetime64(seconds, "s")).split("T")
    if kind == "date":
        return date
    if kind == "time":
        return time + fraction
    return f"{date}T{time}{fraction}" + ("+00:00" if kind == "timestamp_utc" else "")


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
        column = _plain(labels if isinstance(labels, pa.ChunkedArray) else pa.chunked_array([labels]))
        known = column.is_valid().to_numpy() if column.null_count else None
        if pa.types.is_null(column.type):
            return np.zeros(len(column), bool), known
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        is_ = pa.types
        if not (is_.is_boolean(column.type) or is_.is_integer(column.type) or is_.is_floating(column.type)):
            raise SchemaMismatch(f"label column {self.label!r} is {column.type}; it must be bool, or 0 and 1")
        if known is not None:
            column = pc.fill_null(column, pa.scalar(0).cast(column.type))
        values = column.to_numpy()
        positive: np.ndarray = values == 1
        if not (fine := positive | (values == 0)).all():
            value = values[~fine][0].item()
            raise SchemaMismatch(f"label column {self.label!r} holds {value!r}; it must be 0, 1 or null")
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


class Metrics:
    """All accumulators of one job: a `ColumnState` per checked column, a `BinaryState` if it has a label."""

    def __init__(self, columns: dict[str, ColumnState], evaluation: BinaryState | None) -> None:
        self.columns = columns
        self.evaluation = evaluation

    @classmethod
    def for_job(cls, job: Job) -> Metrics:
        """Empty states. Scores are the first declared output of a scalar floating type.

        Raises:
            JobError: the job has a label, but no output is a float.
        """
        columns = {check.column: ColumnState() for check in job.checks}
        if job.label is None:
            return cls(columns, None)
        for name, type_ in job.model.output_types().items():
            if pa.types.is_floating(type_):
                return cls(columns, BinaryState(job.label, name))
        raise JobError(
            f"label: {job.label!r} needs a score to be compared with, but no output of the model is a float; "
            "declare one in model.outputs, such as `score: float32`, or drop label"
        )

    def update(self, table: pa.Table, label: pa.ChunkedArray | pa.Array | None) -> None:
        """Count kept rows: `table` has their outputs and carried columns, `label` their labels.

        Raises:
            SchemaMismatch: a label is not 0, 1 or null.
        """
        for name, state in self.columns.items():
            state.update(table[name])
        if self.evaluation is not None:
            if label is None:
                raise ValueError(f"the job's label {self.evaluation.label!r} was not given")
            self.evaluation.update(table[self.evaluation.score], label)

    def merge(self, other: Metrics) -> None:
        """Add another's rows to these. Both are of one job."""
        mine, theirs = self.evaluation, other.evaluation
        if self.columns.keys() != other.columns.keys() or (mine is None) != (theirs is None):
            raise ValueError("metrics of different jobs cannot be merged")
        for name, state in self.columns.items():
            state.merge(other.columns[name])
        if mine is not None and theirs is not None:
            mine.merge(theirs)

    def to_bytes(self) -> bytes:
        """ASCII, because some Parquet readers refuse a footer whose values are not UTF-8."""
        columns = {name: astuple(state) for name, state in self.columns.items()}
        record: dict[str, Any] = {"v": _VERSION, "columns": columns}
        if (state := self.evaluation) is not None:
            filled = np.flatnonzero(state.counts)
            counts = [_pack(np.diff(filled, prepend=0)), _pack(state.counts[filled])]
            sums = [state.label, state.score, state.unlabelled, state.unscored, state.outside, state.loss]
            record["evaluation"] = [*sums, counts]
        return json.dumps(record, separators=(",", ":")).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Metrics:
        """The inverse of `to_bytes`.

        Raises:
            ValueError: not a state that this version wrote.
        """
        try:
            record = json.loads(data)
            if record["v"] != _VERSION:
                raise ValueError(f"metrics of version {record['v']}, not {_VERSION}")
            columns = {name: ColumnState(*values) for name, values in record["columns"].items()}
            if "evaluation" not in record:
                return cls(columns, None)
            *sums, (gaps, counts) = record["evaluation"]
            state = BinaryState(*sums)
            state.counts[np.cumsum(_unpack(gaps))] = _unpack(counts)
            return cls(columns, state)
        except (KeyError, TypeError, IndexError, AttributeError, zlib.error) as error:
            raise ValueError(f"not a metrics state: {error}") from error

    def results(self) -> dict[str, Any]:
        """JSON-able: `columns` by name, and `evaluation` (None without a label)."""
        return {
            "columns": {name: state.results() for name, state in self.columns.items()},
            "evaluation": None if self.evaluation is None else self.evaluation.results(),
        }


def _pack(values: np.ndarray) -> str:
    """Non-negative integers, in as few bytes each as the largest needs, deflated."""
    width = np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<")
    packed = base64.b64encode(zlib.compress(values.astype(width).tobytes()))
    return f"{width.itemsize}:{packed.decode('ascii')}"


def _unpack(text: str) -> np.ndarray:
    width, _, packed = text.partition(":")
    raw = zlib.decompress(base64.b64decode(packed, validate=True))
    return np.frombuffer(raw, f"<u{width}").astype(np.int64)
