"""The user's own step before the model, from rows to the batch that the predictor takes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from nightjar.inference.job.model import Job
from nightjar.inference.predictors import batches, user
from nightjar.inference.predictors.alignment import aligned
from nightjar.inference.predictors.ownbatch import own_batch
from nightjar.inference.predictors.private import Copier


class Preprocessor:
    """Arrow → batch → the user's preprocess → features. The user's code may write into its batch, which is a copy."""

    def __init__(self, job: Job) -> None:
        """Raises JobError: The user's code cannot be found or made. Names the key."""
        self._form = batches.batch_format(job.model.options)
        self._features = job.model.features
        self._preprocess = user.load_preprocess(job)
        self._copy = Copier()

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
        given = self._copy(table)
        batch = batches.to_batch(given.table, self._form, given.memory)
        if self._preprocess is None:
            return batch
        batch = self._preprocess(batch)
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch])
        batches.check_rows(batch, table.num_rows)
        batch = batch if self._features is None else batches.select(batch, self._features)
        return own_batch(aligned(batch, "preprocess"))
