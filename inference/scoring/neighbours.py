"""Scores rows in another order and beside other rows, to show whether a row's output depends on more than the row.

Rows are scored again in batches of the same size. The shape of a batch decides how a model's arithmetic rounds, the
other rows in it do not: a model whose rows are independent returns the same numbers, also in half precision, and the
same label at a tie. Only a row that is scored alone is compared with an allowance for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.arrow_types import is_list, is_number, is_text
from nightjar.inference.input.sources.rows import taken
from nightjar.inference.messages import clip
from nightjar.inference.metrics.columns import plain
from nightjar.inference.records import RowFailure
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import Ahead
from nightjar.inference.scoring.scored_rows import ScoredRows


def differences(
    before: pa.ChunkedArray, after: pa.ChunkedArray, tolerance: float, noise: float = 0.0
) -> tuple[np.ndarray, float]:
    """Which rows differ (a bool array of shape (rows,)), and the greatest relative difference of two finite numbers.

    Two numbers agree if |a - b| ≤ tolerance × (1 + |a|). Null agrees with null, and NaN with NaN. Values other than
    floats must be equal; those in lists, tensors and structs are compared in the same way.

    noise: above 0, floats also agree if |a - b| ≤ noise × the largest |a| of the column, and integers, texts, structs
    and lists of several lengths if most of them do: rounding makes another label of one at a tie.
    """
    a, b = before.combine_chunks(), after.combine_chunks()
    if len(a) != len(b):
        raise AssertionError(f"{len(a)} values and {len(b)} values are compared")
    return _differences(a, b, tolerance, noise)


def _differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    a, b = _plain(a), _plain(b)
    if a.type == b.type:
        if pa.types.is_floating(a.type):
            return _float_differences(a, b, tolerance, noise)
        if pa.types.is_fixed_size_list(a.type):
            return _list_differences(a, b, tolerance, noise)
        if is_list(a.type) or pa.types.is_struct(a.type):
            inside = _list_differences if is_list(a.type) else _struct_differences
            differs, greatest = inside(a, b, tolerance, noise)
            return _unless_few(differs, noise), greatest
    try:
        unequal = pc.fill_null(pc.not_equal(a, b), False)
    except pa.ArrowNotImplementedError:
        pairs = zip(a.to_pylist(), b.to_pylist(), strict=True)
        return _unless_few(np.array([repr(x) != repr(y) for x, y in pairs], dtype=bool), noise), 0.0
    differs = np.asarray(pc.or_(unequal, pc.not_equal(pc.is_null(a), pc.is_null(b))))
    return _unless_few(differs, noise), 0.0


def _unless_few(differs: np.ndarray, noise: float) -> np.ndarray:
    """Which rows differ; with noise none, unless most do."""
    return differs & (not noise or differs.sum() * 2 > len(differs))


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _struct_differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    differs = np.asarray(pc.is_null(a)) != np.asarray(pc.is_null(b))
    greatest = 0.0
    for one, other in zip(a.flatten(), b.flatten(), strict=True):
        within, most = _differences(one, other, tolerance, noise)
        differs, greatest = differs | within, max(greatest, most)
    return differs, greatest


def _float_differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    nulls = np.asarray(pc.is_null(a)), np.asarray(pc.is_null(b))
    # A null comes as NaN, so that no distance is measured from it.
    x, y = (values.cast(pa.float64()).to_numpy(zero_copy_only=False) for values in (a, b))
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
        distance = apart / (1 + np.abs(x))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.isfinite(distance)
    near = distance <= tolerance
    if noise:
        near |= apart <= noise * np.abs(x[np.isfinite(x)]).max(initial=0.0)
    differs = (~same & ~(finite & near)) | (nulls[0] != nulls[1])
    greatest = float(distance[finite].max(initial=0.0))
    return differs, greatest


def _list_differences(a: pa.Array, b: pa.Array, tolerance: float, noise: float) -> tuple[np.ndarray, float]:
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(values), -1)) for values in (a, b)]
    differs = lengths[0] != lengths[1]
    alike = pa.array(~differs)
    kept = np.flatnonzero(~differs)
    x, y = (pc.list_flatten(values.filter(alike)) for values in (a, b))
    values, greatest = _differences(x, y, tolerance, noise)
    rows = np.repeat(kept, np.maximum(lengths[0][kept], 0))
    differs[rows[values]] = True
    return differs, greatest


Rows = npt.NDArray[np.int64]

NOISE = 0.05
"""How far rounding may move a number, relative to the largest of its output. In bfloat16 a number has 3 digits, and
8-bit weights have steps of 1 % of the largest value in a batch."""

_KEY = "write model.rows: dependent, with a batch_size"


@dataclass(frozen=True, slots=True)
class Sample:
    """One micro-batch of rows that can be scored. places: the file of each row, and its index there."""

    table: pa.Table
    places: Sequence[tuple[str, int]]


class Unfit(Exception):
    """What is wrong with a model, as a sentence. traceback: of the user's code, if it raised."""

    def __init__(self, said: str = "", traceback: str = "") -> None:
        super().__init__(said)
        self.traceback = traceback


def dependences(
    sample: Sample, outputs: pa.Table, score: Callable[[pa.Table], pa.Table], tolerance: float, noise: float
) -> Iterator[None]:
    """Yield before each call of the model.

    outputs: of the sample as one batch. score: scores a table as one batch. tolerance, noise: as in `differences`.

    Raises:
        Unfit: The output of a row depends on more than the row.
    """
    rows = sample.table.num_rows
    # The longest rows stay, because a batch of texts or sounds is padded to the longest.
    longest = np.argsort(-_lengths(sample.table), kind="stable")[: (rows + 1) // 2]
    mixed = np.random.default_rng(rows).permutation(np.resize(longest, rows))
    yield
    others = "among other rows"
    found = _difference(sample, outputs, mixed, score(taken(sample.table, mixed)), tolerance, noise)
    if found:
        yield
        same = np.arange(rows)
        if twice := _difference(sample, outputs, same, score(sample.table), tolerance, noise):
            where, name, before, after = twice
            raise Unfit(
                f"{where} gets another {name!r} when the same rows are scored again: {before}, then {after}. The model "
                "draws random numbers, or keeps something of earlier batches. Put it into evaluation mode, or set its "
                f"seed for each batch; if this is meant, {_KEY}"
            )
    elif rows > 1:
        alone = []
        others, extreme = "alone", _extreme(outputs.column(0))
        for row in extreme:
            yield
            alone.append(score(sample.table.slice(row, 1)))
        found = _difference(sample, outputs, extreme, pa.concat_tables(alone), tolerance, NOISE)
    if found:
        where, name, before, after = found
        raise Unfit(
            f"the output of a row depends on the rows that are scored with it: {where} gets {name!r} {before} in the "
            f"first batch, and {after} {others}. Statistics of a batch (a mean, a rank, codes of categories, BatchNorm "
            f"in training mode) belong to the training; if rows depend on each other on purpose, {_KEY}; if this is "
            "rounding, raise rescore.tolerance"
        )


def _lengths(table: pa.Table) -> Rows:
    """The length of each row's texts and lists."""
    total = np.zeros(table.num_rows, np.int64)
    for column in map(plain, table.columns):
        if is_list(column.type):
            total += pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        elif is_text(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return total


def _extreme(output: pa.ChunkedArray) -> Rows:
    """Three rows to score alone: of numbers those with the greatest and the least, else the first and the last."""
    order = np.arange(len(output))
    if is_number(output.type):  # Arrow does not sort float16
        order = np.argsort(-pc.cast(output, pa.float64(), safe=False).to_numpy(), kind="stable")
    found: Rows = order[[0, min(1, len(order) - 1), -1]]
    return found


def _difference(
    sample: Sample, outputs: pa.Table, rows: Rows, after: pa.Table, tolerance: float, noise: float
) -> tuple[str, str, str, str] | None:
    """The first of these rows whose output is another one: which row, the output's name, its value before and after."""
    for name in outputs.column_names:
        before = outputs[name].take(pa.array(rows))
        differs, _ = differences(before, after[name], tolerance, noise)
        if differs.any():
            at = int(differs.argmax())
            uri, row = sample.places[rows[at]]
            one, other = (clip(repr(each[at].as_py())) for each in (before, after[name]))
            return f"row {row} of {uri}", name, one, other
    return None


def other_orders(rows: int, sizes: Iterable[BatchSize]) -> list[Rows]:
    """Orders in which each row of a table is once at least, and has other neighbours in a batch of the same size.

    Where all rows are one batch, there are two orders, each of half of the rows twice. The rows of a last, shorter
    batch only change their places.
    """
    shuffle = np.random.default_rng(rows).permutation
    most = [size.most for size in sizes]
    if 1 < rows <= max(most):
        return [shuffle(np.resize(half, rows)) for half in (np.arange(0, rows, 2), np.arange(1, rows, 2))]
    whole = rows - max(rows % each for each in most)
    return [np.concatenate([shuffle(whole), np.arange(rows - 1, whole - 1, -1)])]


Skipped = Mapping[int, RowFailure]
Moved = Callable[[Skipped], Skipped]


def scored_in(
    orders: Sequence[Rows], table: pa.Table, score: Callable[[pa.Table, Moved], Generator[Ahead, None, ScoredRows]]
) -> Generator[Ahead, None, ScoredRows]:
    """Score a table in these orders. The result is in the table's own order, with the first output of each row.

    score: scores a table; the function that it gets gives the rows to skip their indices there.
    """
    rows, outputs = [], []
    lost: list[Rows] = []
    failures: dict[tuple[int, str], RowFailure] = {}
    for order in orders:

        def moved(skip: Skipped, order: Rows = order) -> Skipped:
            return {int(at): skip[int(order[at])] for at in np.flatnonzero(np.isin(order, list(skip)))}

        scored = yield from score(taken(table, order), moved)
        kept = np.arange(len(order)) if scored.kept is None else scored.kept
        rows.append(order[kept])
        lost.append(np.delete(order, kept))
        outputs.append(scored.outputs)
        for failure in scored.failures:
            row = int(order[failure.row])
            failures[row, failure.model] = replace(failure, row=row)
    found, first = np.unique(np.concatenate(rows), return_index=True)
    good = ~np.isin(found, np.concatenate(lost))
    kept = found[good]
    return ScoredRows(
        taken(pa.concat_tables(outputs), first[good]),
        None if len(kept) == table.num_rows else kept,
        tuple(sorted(failures.values(), key=lambda failure: failure.row)),
    )
