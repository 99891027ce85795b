"""Scores shards from start to receipt, in one process. It needs no Ray; the engine runs it in its actors.

Reading is one shard ahead of scoring, preparing one micro-batch ahead (with a GPU or more than one core), and writing
one shard behind, so that storage, CPU and model work at the same time. The files of a shard share micro-batches. An
error that can be caught becomes a `Failed` event, and the worker goes on to the next shard.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.errors import Fenced
from nightjar.inference.input.sources.rows import selected, taken
from nightjar.inference.jsonform import to_bytes
from nightjar.inference.ledger.ledger import Ledger
from nightjar.inference.metrics.profile import drawn, profiled
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.output import parts as sink
from nightjar.inference.output.quarantine import write_quarantine
from nightjar.inference.output.rowindex import NOWHERE, REUSED_KEY, ReusedRows, keys_to_bytes
from nightjar.inference.predictors import Scorer, StreamingScorer
from nightjar.inference.records import Crumb, Event, Failed, Part, Receipt, RowFailure, Shard, Started, replay_command
from nightjar.inference.scoring.assignment import Assignment, OpenedModels, WorkerSpec, loaded_models, open_scorers
from nightjar.inference.scoring.attempts import IDLE, JoinedPieces, Running, Worker
from nightjar.inference.scoring.known_rows import KnownRows, earlier_rows
from nightjar.inference.scoring.microbatches import score_models
from nightjar.inference.scoring.prepared_batches import Batch, PreparingThread
from nightjar.inference.scoring.scored_rows import ScoredRows, keys_of
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.scoring.watchdog import answering
from nightjar.inference.storage.protocol import Storage, join
from nightjar.inference.usage import NO_USAGE, Spent, Usage
from nightjar.inference.witness import audit as witness

SWITCH_S = 0.0005
"""Seconds for which another thread keeps Python while the one that calls the model waits for it: a tenth of Python's
default, because a model on a GPU waits so long each time that it comes back from the device."""


class Assembly:
    """What one attempt at a shard has scored.

    scored: as of `score_models`. table: the shard's output, in input order. failed: rows in the quarantine, each once.
    lost: those of them that are not written; the others only some of several models could not score.
    """

    def __init__(self, spec: WorkerSpec, shard: Shard, joined: JoinedPieces, scored: ScoredRows) -> None:
        self.spec, self.shard, self.scored = spec, shard, scored
        self.rows_in, self.left_out = joined.table.num_rows, joined.left_out
        schema = sink.output_schema(spec.job, spec.schema)
        carried = spec.job.carried(spec.schema.names)
        self._profiled = profiled(spec.job, spec.schema)
        # Columns that are not written, but counted.
        labels = [spec.job.label] if spec.job.label else []
        beside = dict.fromkeys([*(name for name in self._profiled if name not in schema.names), *labels])
        kept, rows, edges = joined.table, joined.rows, joined.starts
        if scored.kept is not None:
            kept, rows = selected(kept, scored.kept), rows[scored.kept]
            edges = np.searchsorted(scored.kept, joined.starts)
        uris = [piece.uri for piece in joined.pieces]
        lineage = sink.lineage(uris, np.diff(edges), rows)
        columns: list[Any] = [*(kept[name] for name in carried), *scored.outputs.columns, *lineage]
        self.table, self._beside = pa.Table.from_arrays(columns, schema=schema), kept.select(list(beside))
        if len(uris) > 1:
            self.table, self._beside = self.table.combine_chunks(), self._beside.combine_chunks()
        drawn_of = (
            (low, drawn(uri, rows[low:high], spec.job.profile.share))
            for uri, low, high in zip(uris, edges, edges[1:], strict=False)
        )
        self._drawn = [low + found for low, found in drawn_of if found is not None]
        self.keys = keys_of(spec.job, scored)
        # By model and row, whether the outputs are of an earlier night.
        self._taken = np.array([each.part != NOWHERE for each in self.keys]) if self.keys else np.zeros((1, 0), bool)
        self.reused = int(self._taken.all(0).sum())
        self.partly_reused = int(self._taken.any(0).sum()) - self.reused
        self.failed = len({failure.row for failure in scored.failures})
        self.lost: int = self.rows_in - kept.num_rows
        self._bad: list[tuple[str, int, RowFailure, str]] = []
        if scored.failures:
            self._add_failures(joined, scored.failures)

    def name(self, kind: str) -> str:
        return sink.part_name(kind, self.shard.id, self.spec.epoch)

    def _add_failures(self, joined: JoinedPieces, failures: Sequence[RowFailure]) -> None:
        for failure in failures:
            uri, row, _ = joined.place(failure.row)
            again = replay_command(self.spec.job_path, self.spec.run, self.shard, uri, row, failure.model)
            self._bad.append((uri, row, failure, again))
        rows, lines = np.unique([failure.row for failure in failures], return_inverse=True)
        bad = selected(joined.table, rows)
        self._bad_inputs = bad if rows.size == len(failures) else taken(bad, lines)

    def footer(self) -> dict[bytes, bytes]:
        """What the part's footer says of rows that were taken from an earlier night."""
        reuse = self.spec.reuse
        taken = self._taken.sum(1).tolist()
        if reuse is None or reuse.index is None or not any(taken):
            return {}
        earlier = [reuse.index.of(reuse.identities[model.name]) for model in self.spec.job.models]
        prefixes = tuple(each.prefix if each else "" for each in earlier)
        return {REUSED_KEY: to_bytes(ReusedRows(reuse.source, tuple(taken), prefixes, reuse.index.parts))}

    def metrics(self) -> Metrics:
        """The states of the rows that are written."""
        # Over the whole shard at once, so that the metrics do not depend on micro-batches.
        metrics, label = Metrics.for_job(self.spec.job, self._profiled), self.spec.job.label
        metrics.update(self.table, self._beside[label] if label else None)
        if metrics.profile is not None:
            metrics.profile.update(*(self._described(each) for each in (self.table, self._beside)))
        return metrics

    def _described(self, table: pa.Table) -> pa.Table:
        table = table.select([name for name in table.column_names if name in self._profiled])
        return selected(table, np.concatenate(self._drawn)) if self._drawn else table

    def write_quarantine(self, storage: Storage) -> Part | None:
        if not self._bad:
            return None
        return write_quarantine(
            storage,
            self.spec.revision,
            self.name("quarantine"),
            self.shard.id,
            self._bad,
            self._bad_inputs,
            several=self.spec.job.several,
        )


def _died(attempt: Attempt, joined: JoinedPieces) -> dict[str, dict[int, RowFailure]]:
    """The rows at which a process died, which do not go to the model again, by the model's name."""
    found: dict[str, dict[int, RowFailure]] = {}
    for rows in attempt.skip:
        found.setdefault(rows.model, {}).update(dict.fromkeys(joined.within(rows.uri, rows.row), rows.as_failure()))
    return found


def with_time(result: Event, spent: Spent) -> Event:
    """The result of a shard with what it took."""
    if isinstance(result, Failed):
        return replace(result, spent_s=round(spent.total, 3))
    return replace(result, spent=spent) if isinstance(result, Receipt) else result


class ShardWorker(Worker):
    """Scores shards with models that are loaded once. models: in the job's order."""

    def __init__(self, spec: WorkerSpec, *scorers: Scorer, turn_to: Callable[[Started], None] = lambda _: None) -> None:
        """scorers: of all models, in place of those that the process would load. turn_to: as of `Worker`."""
        need = spec.job.resources
        super().__init__(spec, need.cores, turn_to)
        if spec.own_process:
            sys.setswitchinterval(SWITCH_S)
        self._opened = OpenedModels(scorers) if scorers else open_scorers(spec)
        self.spec = spec = self._opened.reading(spec)
        self._earlier = earlier_rows(spec)
        thread = PreparingThread() if need.prepares_ahead else None
        if thread is not None:
            self.watchdog.behind = thread.frame
        self.models = loaded_models(spec, self._opened.loaded, thread=thread, watch=self.watch)
        self._segment = spec.segment
        self.writer = ThreadPoolExecutor(1, "nightjar-write")
        self._behind: tuple[Running, Future[Event]] | None = None

    @property
    def scorers(self) -> tuple[Scorer, ...]:
        """Of all models, in the job's order."""
        return self._opened.loaded

    @property
    def device(self) -> str:
        """Where the models are: 'cpu', 'cuda:0' …, each once."""
        return ", ".join(dict.fromkeys(scorer.device for scorer in self.scorers))

    def process(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        """As `Worker.process`. Each result says what the time since the previous one was spent on."""
        self.watch.turn_to("rest")
        try:
            with answering(self.scorers, self.watchdog):
                for event in super().process(assignments):
                    yield with_time(event, self.spent()) if isinstance(event, Receipt | Failed) else event
        finally:
            self.watch.turn_to(IDLE)

    def spent(self) -> Spent:
        """The time since this was last asked, by what the scoring thread did."""
        return Spent(**{what: round(seconds, 3) for what, seconds in self.watch.claim().items() if what != IDLE})

    def _next(self, assignments: Iterator[Assignment]) -> Assignment | None:
        with self.watch.during(IDLE):
            return next(assignments, None)

    def events(self, assignments: Iterable[Assignment]) -> Iterator[Event]:
        ahead = iter(assignments)
        following = yield from self._begin(self._next(ahead))
        while following is not None:
            running = following
            upcoming = self._next(ahead)
            # Nothing else is read or written while a suspect is scored, because it may kill the process.
            following = None if running.alone else (yield from self._begin(upcoming))
            result = yield from self.score_shard(running)
            yield from self.written()
            if result is not None:
                self._behind = running, result
            if running.alone:
                yield from self.written()
                following = yield from self._begin(upcoming)
        yield from self.written()

    def written(self) -> Iterator[Event]:
        """Wait for the write that runs behind the scoring, if there is one."""
        if self._behind is None:
            return
        running, writing = self._behind
        self.at = running.at_rows()
        self.watchdog.calling()  # the model's last step has had its own time
        with self.watch.during("write"):
            event = writing.result()
        self._behind = None
        yield event

    def before_the_end(self) -> Iterator[Event]:
        if self._behind is not None and (self.at is None or self._behind[0].started.shard != self.at.shard):
            with suppress(TimeoutError):  # then the shard is charged, as one that was started and has no receipt
                yield self._behind[1].result(self.spec.job.retry.stall_s)

    def _begin(self, assignment: Assignment | None) -> Generator[Event, None, Running | None]:
        """Report that a shard is started, then read it: a file may kill the process that reads it."""
        if assignment is None:
            return None
        running = self.begin(assignment)
        yield running.started
        running = replace(running, reads=self.read(running))
        return replace(running, known=self.reader.submit(self._known_ahead, running)) if self._earlier else running

    def _known_ahead(self, running: Running) -> dict[str, KnownRows]:
        """What is known of a shard's rows, found while the models compute, in a reading thread."""
        joined = JoinedPieces(running.assignment.shard.pieces, [each.result() for each in running.reads])
        return self.known_rows(joined, _died(running.assignment.attempt, joined))

    def score_shard(self, running: Running) -> Generator[Event, None, Future[Event] | None]:
        """Score one shard, with crumbs if it is suspected. Returns its write, which may still be running."""
        shard = running.assignment.shard
        self.turn_to(running.started)
        deadline = time.monotonic() + self.spec.job.retry.shard_s
        try:
            joined = yield from self.join_pieces(running, deadline)
            scored = yield from self.score_joined(running, joined, {}, deadline)
            self.at = running.at_rows(shard.pieces[-1].uri)
            if running.alone:
                yield running.at_rows(shard.pieces[0].uri, shard.pieces[0].first_row)
            assembly = Assembly(self.spec, shard, joined, scored)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            self.claimed()  # the next shard's receipt must not have it
            yield self.failed(running, error)
            return None
        return self.writer.submit(self.write, running, assembly, self.ceilings(), self.claimed())

    def score_joined(
        self,
        running: Running,
        joined: JoinedPieces,
        shipped: Mapping[str, Sequence[Batch]],
        deadline: float,
    ) -> Generator[Crumb, None, ScoredRows]:
        """Score rows that were read, with crumbs if the shard is suspected. shipped: each model's prepared batches."""
        attempt = running.assignment.attempt
        died, alone = _died(attempt, joined), attempt.singly
        with self.watch.during("read"):
            known = running.known.result() if running.known else self.known_rows(joined, died)
        steps = score_models(
            joined.table,
            self.models,
            skip=joined.failures,
            died=died,
            singly={alone.model: joined.within(alone.uri, alone.row, alone.rows)} if alone else {},
            budget=self.spec.budget,
            at=joined.at,
            complete=self.spec.job.output.rows == "all",
            ahead=not running.alone,
            shipped=shipped,
            known=known,
        )
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                scored: ScoredRows = stop.value
                return scored
            self.at = running.at_rows(*joined.place(step.first, step.rows), step.model)
            if attempt.crumbs:
                yield self.at
                self.check_time(self.at, deadline)  # a sign of life would take back which rows these are
            else:
                yield from self.in_time(self.at, deadline)
            self.watchdog.calling()

    def known_rows(self, joined: JoinedPieces, died: Mapping[str, Collection[int]] = {}) -> dict[str, KnownRows]:
        """What is known of a shard's rows before each model scores them; empty if the job does not reuse rows.

        died: by the model's name, rows at which the process died.
        """
        if self._earlier is None:
            return {}
        return {
            model.name: self._earlier.known(
                model.name,
                joined.table.select(list(model.columns)),
                {*joined.failures, *died.get(model.name, ())},
                pa.schema(list(model.types.items())),
            )
            for model in self.models
        }

    def write(self, running: Running, output: Assembly, ceilings: tuple[int, ...], usage: Usage) -> Event:
        """Write a shard, in the writing thread. Returns its receipt, or why it failed.

        ceilings, usage: as `self.ceilings()` and `self.claimed()` when it was scored: meanwhile the next one is.
        """
        storage = running.storage
        try:
            table, metrics = output.table, output.metrics()
            self._check_epoch(storage)
            self._opened.check()
            witness.refuse(strict=self.spec.job.identity.strict)
            quarantine = output.write_quarantine(storage)
            name = output.name(sink.DATA)
            data = sink.write_data(
                storage,
                self.spec.revision,
                name,
                table,
                running.started.shard,
                metrics,
                states_beside=self.spec.job.states_beside,
                keys=keys_to_bytes(output.keys) if output.keys else None,
                more=output.footer(),
            )
            self._check_epoch(storage, data, quarantine)
        except Exception as error:  # noqa: BLE001 (whatever it is, it costs this shard and is reported)
            return self.failed(running, error)
        return Receipt(
            shard=running.started.shard,
            attempt=running.started.attempt,
            epoch=self.spec.epoch,
            worker=self.name,
            rows_in=output.rows_in,
            rows_left_out=output.left_out,
            rows_out=table.num_rows,
            rows_quarantined=output.lost,
            data=data,
            quarantine=quarantine,
            seconds=round(time.monotonic() - running.began, 3),
            started_at=round(running.at, 3),
            retries=running.retries + storage.retries,
            batches_cut=output.scored.batches_cut,
            rows_partial=output.failed - output.lost,
            rows_reused=output.reused,
            rows_partly_reused=output.partly_reused,
            reused_from=self.spec.reuse.source if self.spec.reuse and output.reused + output.partly_reused else "",
            keyed=bool(output.keys),
            ceilings=ceilings,
            usage=usage,
        )

    def begin_anew(self) -> None:
        """Forget what was counted and noticed before the first shard, which preflight has reported."""
        self.claimed()
        self.watch.claim()
        witness.news()

    def claimed(self) -> Usage:
        """What language models took since the last call."""
        return NO_USAGE.plus(*(each.requests.claimed() for each in self.scorers if isinstance(each, StreamingScorer)))

    def ceilings(self) -> tuple[int, ...]:
        """As in `Receipt`."""
        forced = tuple(model.size.forced for model in self.models)
        return forced if any(forced) else ()

    def _check_epoch(self, storage: Storage, *written: Part | None) -> None:
        """Check, before and after a part is written, that the writer was not replaced, because a worker may stand still
        in between for as long as its successor needs.

        Raises:
            Fenced: It was replaced. What was written is deleted.
        """
        newest = Ledger(storage, self.spec.revision).newest(self._segment)
        if newest is None:
            return
        if newest.epoch > self.spec.epoch:
            beside, keyed = self.spec.job.states_beside, self._earlier is not None
            parts = (part.name for part in written if part is not None)
            names = (sink.files_of(part, states_beside=beside, keyed=keyed) for part in parts)
            storage.delete(join(self.spec.revision, name) for name in chain.from_iterable(names))
            raise Fenced(f"epoch {self.spec.epoch} was replaced by epoch {newest.epoch}")
        # So that each look lists only what came since the last.
        self._segment = newest.number
