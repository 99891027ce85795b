"""The scorer around a loaded model: from Arrow to the model, and from what it returns to the declared outputs, which
have the right names, the right types, and one value a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import IndexInvalid, JobError, LengthInvalid, OutputInvalid
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.messages import counted
from nightjar.inference.predictors import batches, user
from nightjar.inference.predictors.arrays import columns, exceptions, is_frame, is_series, joined, without
from nightjar.inference.predictors.batches import BATCH_FORMAT, own_batch, own_table
from nightjar.inference.predictors.conversion import to_arrow


class Preprocessor:
    """Arrow → batch → the user's preprocess → features. The user's code may write into its batch, which is a copy."""

    def __init__(self, job: ModelJob) -> None:
        """Raises JobError: The user's code cannot be found or made. Names the key."""
        self._form = job.model.options.get(BATCH_FORMAT.name, "numpy")
        self._features = job.model.features
        self._preprocess = user.load_preprocess(job)

    @property
    def own(self) -> bool:
        """Whether there is code of the user's; else a batch is only converted."""
        return self._preprocess is not None

    def preprocess(self, table: pa.Table) -> Any:
        """The batch for the predictor, with the rows of the table. The user's code has no memory of the table, and
        holds none of the batch: it may be kept while the next batch is made.

        Raises:
            Unaligned: The user's code returned another number of rows, or an index that is not the batch's.
            OutputInvalid: It returned no batch, or left out a feature.
        """
        batch = batches.to_batch(own_table(table), self._form)
        if self._preprocess is None:
            return batch
        batch = self._preprocess(batch)
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch])
        batches.check_rows(batch, table.num_rows)
        batch = batch if self._features is None else batches.select(batch, self._features)
        return own_batch(aligned(batch, "preprocess"))


class Panicked(Exception):
    """A library that is written in Rust, as polars and tokenizers are, panicked; its own words."""


@contextmanager
def panics_are_errors() -> Iterator[None]:
    """Raise Panicked where a library panics: for Python that is no `Exception`, and would not be taken for an error of
    the rows.
    """
    try:
        yield
    except BaseException as error:
        # Each library has a class of its own, which has nothing but its name in common with the others'.
        if (type(error).__module__, type(error).__name__) == ("pyo3_runtime", "PanicException"):
            raise Panicked(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The model's input for so many rows."""

    rows: int
    content: Any


class Scorer:
    """A loaded model: Arrow → batch → preprocess → features → predictor → the declared outputs."""

    device: str
    """Where the model really is: 'cpu', 'cuda:0' …"""
    types: Mapping[str, pa.DataType]
    """The declared outputs."""

    def __init__(self, job: ModelJob, preprocessor: Preprocessor, predictor: Any, reads_arrow: bool) -> None:
        self.device = predictor.device
        self._features = job.model.features
        self.types = job.model.output_types()
        self._preprocessor = preprocessor
        self._predictor = predictor
        self._reads_arrow = reads_arrow

    def __call__(self, table: pa.Table) -> dict[str, pa.Array]:
        """Both steps: score the columns named by `model_columns`. The user's code gets copies of them, never the table.

        Returns exactly the declared outputs, each with `table.num_rows` values of its declared type. Errors of the
        user's own code pass through unchanged.

        Raises:
            OutputInvalid: An output is missing, has the wrong length, or does not fit its type; or the model cannot
                take what the preprocess returned for these rows.
            RowsRaised: Some of several rows have an exception as their output.
        """
        return self.score(self.prepare(table))

    @panics_are_errors()
    def prepare(self, table: pa.Table) -> Any:
        """The first step, on the CPU: make the model's input from the columns named by `model_columns`."""
        if not self._preprocessor.own and self._features is not None:
            table = table.select(list(self._features))
        if not self._preprocessor.own and self._reads_arrow:
            return _Prepared(table.num_rows, self._input(table))
        return _Prepared(table.num_rows, self._input(self._preprocessor.preprocess(table)))

    @panics_are_errors()
    def accept(self, batch: Any, rows: int) -> Any:
        """The first step for rows that `preprocess` has returned. The batch stays as it is, and may be given again."""
        return _Prepared(rows, self._input(batch if self._reads_arrow else own_batch(batch)))

    def _input(self, batch: Any) -> Any:
        """The model's input.

        The types of the job's columns hold for every row, so what does not fit them is an error of the job. The types
        of what a preprocess returns may depend on the rows: with a null among them, whole numbers are floats in numpy.
        """
        try:
            return self._predictor.prepare(batch)
        except JobError as error:
            if not self._preprocessor.own:
                raise
            raise OutputInvalid(f"the model cannot take what preprocess returned: {error}") from error

    @panics_are_errors()
    def score(self, prepared: Any) -> dict[str, pa.Array]:
        """The second step: call the model with what `prepare` returned. Another thread may prepare meanwhile."""
        if not prepared.rows:  # not every model takes a batch without rows
            return {name: pa.array([], declared) for name, declared in self.types.items()}
        return normalise(self._predictor.predict(prepared.content), self.types, prepared.rows)


class RowsRaised(Exception):
    """Some rows have an exception as an output.

    outputs: those of the other rows, in their order. raised: the exceptions, by the row's index in the batch.
    """

    def __init__(self, outputs: dict[str, pa.Array], raised: Mapping[int, BaseException]) -> None:
        row, first = next(iter(raised.items()))
        super().__init__(
            f"an exception is the output of {counted(len(raised), 'row')}; row {row} of the batch: {first!r}"
        )
        self.outputs = outputs
        self.raised = raised


def normalise(raw: Any, types: Mapping[str, pa.DataType], rows: int) -> dict[str, pa.Array]:
    """Take the declared outputs from `raw`: a batch, a bare array, or a generator of either.

    Raises:
        Unaligned: An output does not have `rows` values, or has an index that is not the batch's.
        OutputInvalid: An output is missing, or does not fit its type.
        RowsRaised: Some values are exceptions. If the batch is one row, its exception is raised itself.
    """
    raised: dict[int, BaseException] = {}
    if isinstance(raw, GeneratorType):
        pieces, before = [], 0
        for piece in raw:
            found, of_piece = _outputs(piece, types, None, before)
            # A generator may use the same memory again for its next piece, so each piece is converted at once.
            pieces.append({name: pa.concat_arrays([values]) for name, values in found.items()})
            raised |= {before + row: error for row, error in of_piece.items()}
            before += len(next(iter(found.values()))) + len(of_piece)
        if not pieces:
            raise OutputInvalid(f"output {next(iter(types))!r} is missing: the predictor yielded nothing")
        outputs = {
            name: joined(pa.chunked_array([piece[name] for piece in pieces], type=declared))
            for name, declared in types.items()
        }
    else:
        outputs, raised = _outputs(raw, types, rows)
    for name, values in outputs.items():
        _check_length(name, len(values) + len(raised), rows)
    if raised:
        raise RowsRaised(outputs, raised) if rows > 1 else raised[0]
    return outputs


def _outputs(
    raw: Any, types: Mapping[str, pa.DataType], rows: int | None, before: int = 0
) -> tuple[dict[str, pa.Array], dict[int, BaseException]]:
    """The outputs of the rows that have no exception, and the exceptions by row. rows: how many are expected.

    before: the number of the batch's rows in earlier pieces of a generator.
    """
    if hasattr(raw, "__arrow_c_stream__") and hasattr(raw, "columns") and not is_frame(raw):  # of polars or DuckDB, too
        raw = pa.table(raw)
    held = columns(raw)
    if held is None:
        held = {_only(raw, types): raw}
    names = list(raw) if is_frame(raw) else getattr(raw, "column_names", list(held))
    for name in types:
        if names.count(name) > 1:
            raise OutputInvalid(f"output {name!r} has {names.count(name)} columns of this name; return one")
        if name not in held:
            returned = ", ".join(map(str, held)) or "nothing"
            raise OutputInvalid(f"output {name!r} is missing; the predictor returned {returned}")
    held = aligned({name: held[name] for name in types}, "the predictor", rows, before)
    raised: dict[int, BaseException] = {}
    for name in types:
        raised = dict(exceptions(held[name])) | raised
    if raised:
        rows = rows or max(len(held[name]) for name in types)
        for name in types:
            _check_length(name, len(held[name]), rows)
        held = {name: without(held[name], raised) for name in types}
        rows -= len(raised)
    raised = {row: raised[row] for row in sorted(raised)}
    return {name: to_arrow(name, held[name], declared, rows) for name, declared in types.items()}, raised


def _check_length(name: str, values: int, rows: int) -> None:
    if values != rows:
        how = ", None or NaN for a row without a result, and an exception for a row that cannot be scored"
        raise LengthInvalid(f"output {name!r}", values, rows, how)


def _only(raw: Any, types: Mapping[str, pa.DataType]) -> str:
    """The output that a bare result is: the job must declare exactly one."""
    name, *others = types
    if raw is None:
        raise OutputInvalid(f"output {name!r} is missing: the predictor returned None")
    if others:
        raise OutputInvalid(
            f"the predictor returned a bare {type(raw).__name__}, but model.outputs declares "
            f"{', '.join(map(repr, types))}: return a dict with one array for each"
        )
    return name


def aligned(batch: Any, who: str, rows: int | None = None, first: int = 0) -> Any:
    """A DataFrame, or a mapping of columns, in the order of the rows. Columns without an index are in it already.

    who: returned it, for the message. rows: how many; columns of another length stay as they are, for the check of
    lengths. first: the number of the batch's rows in earlier pieces of a generator; the labels of the rows of this
    piece begin there, or at 0.

    Raises:
        IndexInvalid: An index is not a permutation of the labels. Or it has a name: then the labels are the values of a
            column, and may equal the labels of other rows by accident. Or columns without an index stand beside a
            permuted one, and may be in its order.
    """
    if not isinstance(batch, Mapping):
        return _aligned(batch, f"the DataFrame, which {who} returned,", rows, first)
    columns = {
        name: _aligned(values, f"{name!r}, which {who} returned,", rows, first) for name, values in batch.items()
    }
    moved = [name for name in columns if columns[name] is not batch[name]]
    if moved and (bare := [name for name in columns if not _has_index(columns[name])]):
        raise IndexInvalid(
            f"{moved[0]!r}, which {who} returned, has the labels of the batch in another order, and {bare[0]!r} has no "
            "index, so that its order is not known",
            "return both as Series, or both as arrays in the order of the rows",
        )
    return columns if moved else batch


def _has_index(values: Any) -> bool:
    return is_frame(values) or (is_series(values) and hasattr(values, "index"))


def _aligned(values: Any, what: str, rows: int | None, first: int) -> Any:
    if not _has_index(values) or not len(values) or rows not in {None, len(values)}:
        return values
    index = values.index
    labels = np.asarray(index)
    order = np.argsort(labels, kind="stable") if labels.dtype.kind in "iu" and list(index.names) == [None] else None
    if order is None or not any(np.array_equal(labels[order], np.arange(len(labels)) + start) for start in (0, first)):
        named = f" {index.name!r}" if index.name is not None else ""
        some = ", ".join(map(repr, labels[:3].tolist())) + (", …" if len(labels) > 3 else "")
        raise IndexInvalid(
            f"{what} has the index{named} [{some}], which does not say which row of the batch a value belongs to",
            f"keep the labels of the batch, 0 to {len(labels) - 1}, in any order; or return the values in the order of "
            "the rows, without this index: .reset_index(drop=True), or .to_numpy()",
        )
    return values if (order[1:] > order[:-1]).all() else values.iloc[order].reset_index(drop=True)
