"""What is known of a night before it is run: its plan, an estimate, and what a check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightjar.inference.records import Usage


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """What a language model would be asked and answer in a run, if all rows were as the measured ones.

    rows_measured: that many rows were asked for it. measured: what these took. cost: by `model.cost`, in `currency`;
    null if the job has no prices.
    """

    rows_measured: int
    measured: Usage
    prompt_tokens: int
    output_tokens: int
    cost: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One shard scored here, and how long the run would take. start_s: to start Ray and Prefect, as it usually takes.

    load_s, score_s: to load the model, and to read and score the shard. estimate_s: with so many actors. rows: of the
    shard; of language models those that were asked. tokens: of language models.
    """

    shard: str
    rows: int
    load_s: float
    score_s: float
    rows_per_s: int
    start_s: float
    estimate_s: float
    actors: int
    tokens: TokenEstimate | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column. type: Arrow's name of it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What would be scored. unread: why files could not be read, empty if all could. rows_per_shard: fewest and most.

    rows: those that are known before the files are read; of uncounted_files they are not. where: of these rows only
    those are scored that match it. files_left_out: files that cannot match, by what their paths say, or
    their table.
    committed: shards that have a result; to_score: those that have none. columns: of the input. again: what makes
    shards old that had a result. measured: with `--measure` alone. snapshot: of the table that is the input.
    reads: the columns of the input. notes: types that hang on a few values.
    """

    job: str
    run_id: str
    files: int
    unreadable_files: int
    unread: str
    rows: int
    uncounted_files: int
    shards: int
    committed: int
    to_score: int
    rows_per_shard: tuple[int, int]
    columns: int
    again: tuple[str, ...]
    measured: Estimate | None = None
    where: str = ""
    files_left_out: int = 0
    snapshot: str = ""
    reads: tuple[Column, ...] = ()
    notes: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    """What scores the shards, a line each, with the reason for each file of the code."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the model made of a few rows. places: of the input, so many. failed: rows that could not be scored.

    nonfinite: NaN and infinite values by output. file: that of the rows shown. names, values: of these rows, as text.
    """

    rows: int
    places: int
    failed: int
    nonfinite: Mapping[str, int]
    file: str | None
    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `nightjar check` found. state: `ready`. identity: what a shard's identity is made of, a line each.

    rows: those that are known before the files are read; of uncounted_files they are not. where: of these rows only
    those are scored for which this condition holds; empty if the job has none. snapshot: of the table that is the
    input. preprocess: where it would run, and why, and so would staged models; empty if the job has none of these.
    columns: those that readers will get. reads: those of the input.
    """

    job: str
    run_id: str
    date: str
    state: str
    files: int
    unreadable_files: int
    rows: int
    uncounted_files: int
    device: str
    output: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    sample: Sample
    notes: tuple[str, ...]
    snapshot: str = ""
    preprocess: str = ""
    where: str = ""
    reads: tuple[Column, ...] = ()
