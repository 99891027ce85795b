"""The gates of a job, with what happens where one does not pass; those that have no module of their own; and those that
could only fail, by the types of their columns.

If a new kind of check asks for a gate, add one line to `_GATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import (
    AnswersCheck,
    CallCheck,
    ColumnCheck,
    DriftCheck,
    FilesCheck,
    MetricCheck,
    RowsCheck,
    UniqueCheck,
)
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.messages import counted, listed
from nightjar.inference.metrics import columns, profile
from nightjar.inference.metrics.slices import check_slices, evaluator_of
from nightjar.inference.validation.gates import Evidence, Gate, GateResult, Rule
from nightjar.inference.validation.gates.amount import InputGate, files_gates, rows_gates
from nightjar.inference.validation.gates.column import ColumnGate, column_gates
from nightjar.inference.validation.gates.drift import drift_gates
from nightjar.inference.validation.gates.metric import Computed, MetricGate, SliceGate, metric_gates


@dataclass(frozen=True, slots=True)
class Complete(Gate):
    """The night has a row. A night whose shards do not all have a result is not judged. where: `input.where` of the
    job. may_be_empty: whether the job allows a night without rows.
    """

    where: str = ""
    may_be_empty: bool = False

    def judge(self, evidence: Evidence) -> GateResult:
        shards = evidence.shards
        observed = f"{shards:,} of {shards:,} shards"
        done = "The only shard is done." if shards == 1 else f"All {shards:,} shards are done."
        if evidence.rows_in or self.may_be_empty:
            return GateResult("complete", True, observed, "all", done)
        why = f"no row that was read matches input.where ({self.where})" if self.where else "the input has no row"
        sentence = (
            f"{done} But {why}, so that readers would see a night without rows. Mend it, or allow such a night with "
            "the check `rows: {min: 0}`."
        )
        return GateResult("complete", False, f"{observed}, 0 rows", "all, 1 row or more", sentence)


@dataclass(frozen=True, slots=True)
class Quarantine(Gate):
    """At most the share `share` of the run's rows is quarantined."""

    share: float

    def judge(self, evidence: Evidence) -> GateResult:
        lost, allowed = evidence.rows_in_quarantine, budget_rows(self.share, evidence.rows_in)
        observed, limit = f"{lost:,} of {evidence.rows_in:,} rows", f"{allowed:,} rows ({self.share:g} of the run)"
        if lost <= allowed:
            sentence = f"{counted(lost, 'row')} in quarantine; {allowed:,} are allowed."
            return GateResult("quarantine", True, observed, limit, sentence)
        sentence = (
            f"{counted(lost, 'row')} in quarantine, more than the {allowed:,} that retry.max_quarantined = "
            f"{self.share:g} allows. Replay one with the command that the quarantine prints, mend the input or the "
            "model, or raise retry.max_quarantined."
        )
        return GateResult("quarantine", False, observed, limit, sentence)


@dataclass(frozen=True, slots=True)
class Rescore(Gate):
    """Rows that were scored a second time gave the same outputs. share: of them, may differ."""

    tolerance: float
    share: float = 0.0

    def judge(self, evidence: Evidence) -> GateResult:
        found = evidence.rescored
        within = f"(tolerance {self.tolerance:g})"
        if found is None:
            limit = f"{self.share:.2%}" if self.share else "0"
            return GateResult("rescore", True, "no rows", f"{limit} {within}", "There was no row.")
        compared = f"{counted(found.rows, 'row')} of {counted(found.shards, 'shard')}"
        left_out = f" ({found.changed:,} left out: their input has changed since)" if found.changed else ""
        most = budget_rows(self.share, found.rows)
        observed, limit = f"{found.differing:,} of {compared} differ{left_out}", f"{most:,} {within}"
        if not found.differing:
            sentence = f"Scored again, {compared} came out the same, within {found.greatest:.2g}{left_out}."
            return GateResult("rescore", True, observed, limit, sentence)
        differ = f"Scored again, {found.differing:,} of {compared} came out different"
        if found.differing <= most:
            return GateResult("rescore", True, observed, limit, f"{differ}, and {most:,} may{left_out}.")
        sentence = (
            f"{differ}{f', more than {most:,}' if most else ''}; {found.first}. A device may be computing wrongly, or "
            "the model answers differently each time, or beside other rows (model.rows). Score everything again with "
            "--fresh, on other machines if you suspect one worker; if the model is that inexact, raise "
            "rescore.tolerance or, where whole answers differ, rescore.differing."
        )
        return GateResult("rescore", False, observed, limit, sentence)


@dataclass(frozen=True)
class Cut(Gate):
    """At most the share `share` of the answers had the most tokens that they may have, so that they were cut.

    What the workers counted is judged: all answers, those of quarantined rows, too.
    """

    key: str
    share: float

    def judge(self, evidence: Evidence) -> GateResult:
        cut, asked = evidence.usage.cut, evidence.usage.prompts
        allowed = budget_rows(self.share, asked)
        observed, limit = f"{cut:,} of {asked:,} answers", f"{allowed:,} answers ({self.share:g})"
        said = f"{observed} {'was' if cut == 1 else 'were'} cut at the most tokens that an answer may have"
        if cut <= allowed:
            return GateResult("answers.cut", True, observed, limit, f"{said}; {self.key} = {self.share:g} holds.")
        sentence = (
            f"{said}, more than the {allowed:,} that {self.key} = {self.share:g} allows. Raise max_tokens in "
            f"model.sampling, which asks for all answers again, or raise {self.key}."
        )
        return GateResult("answers.cut", False, observed, limit, sentence)


@dataclass(frozen=True)
class Called(Gate):
    """The function `spec` says yes. A function that fails, or returns something else, does not."""

    key: str
    spec: str

    def judge(self, evidence: Evidence) -> GateResult:
        name = self.spec.rpartition(":")[2]
        answer = evidence.called.get(self.key, f"{self.key}: {self.spec} was not asked. Run again")
        if isinstance(answer, str):
            return GateResult(name, False, "no verdict", "yes", f"{answer}.")
        observed = answer.observed or ("yes" if answer.passed else "no")
        verdict = f"{self.spec} says {'yes' if answer.passed else 'no'} ({self.key})"
        sentence = f"{verdict}: {answer.sentence}" if answer.sentence else f"{verdict}."
        return GateResult(name, answer.passed, observed, answer.limit or "yes", sentence)


@dataclass(frozen=True)
class Unique(Gate):
    """No two rows have the same values in all of these columns. A null is a value, too."""

    key: str
    columns: tuple[str, ...]

    def judge(self, evidence: Evidence) -> GateResult:
        name, what = f"{'+'.join(self.columns)}.unique", listed(map(repr, self.columns), "and")
        found = evidence.repeated.get(self.key)
        if found is None:
            sentence = f"{what} were not compared, so {self.key} cannot be judged. Run again."
            return GateResult(name, False, "not measured", "0 rows", sentence)
        observed = f"{counted(found.rows, 'row')} repeated"
        if not found.where:
            return GateResult(name, True, observed, "0 rows", f"No two rows have the same {what}; {self.key} holds.")
        have = "row has" if found.rows == 1 else "rows have"
        sentence = (
            f"{found.rows:,} {have} the {what} of another row, which {self.key} forbids. Look whether the input has a "
            "file twice, or name all the columns that make a row."
        )
        return GateResult(name, False, observed, "0 rows", sentence, found.where)


_GATES: dict[type, Callable[[Any, str, Job], Iterable[Gate]]] = {
    ColumnCheck: column_gates,
    MetricCheck: metric_gates,
    DriftCheck: drift_gates,
    RowsCheck: rows_gates,
    FilesCheck: files_gates,
    AnswersCheck: lambda check, key, _: [Cut(f"{key}.answers.cut", check.answers.cut)],
    CallCheck: lambda check, key, _: [Called(f"{key}.call", check.call)],
    UniqueCheck: lambda check, key, _: [Unique(f"{key}.unique", check.unique)],
}
"""Kind of check → a function that makes the gates of such a check from the check, its key and the job."""


def gates_of(job: Job) -> tuple[Rule, ...]:
    """Every gate of the job, in the order in which they are shown, with what happens where it does not pass."""
    checks = job.checks if job.judged else ()
    may_be_empty = any(isinstance(check, RowsCheck) and check.rows.min == 0 for check in job.checks)
    always: list[Gate] = [Complete(job.input.where or "", may_be_empty), Quarantine(job.retry.max_quarantined)]
    if job.rescore.share:
        always.append(Rescore(job.rescore.tolerance, job.rescore.differing))
    asked = (
        Rule(gate, check.on_fail)
        for index, check in enumerate(checks)
        for gate in _GATES[type(check)](check, f"checks[{index}]", job)
    )
    counting = (Rule(Computed(name), "warn") for name in job.accumulators)
    return (*map(Rule, always), *counting, *asked)


def input_gates(job: Job) -> tuple[Rule, ...]:
    """The gates that can be judged as soon as the input is found."""
    return tuple(rule for rule in gates_of(job) if isinstance(rule.gate, InputGate))


def late_gates_of(job: Job, label: str) -> tuple[Rule, ...]:
    """The gates on metrics, to be judged by labels that came after the night. label: their column."""
    known = job.model_copy(update={"label": label})
    return tuple(rule for rule in gates_of(known) if isinstance(rule.gate, MetricGate | SliceGate))


def column_gates_of(job: Job) -> tuple[ColumnGate, ...]:
    """The gates on the figures of a column."""
    return tuple(rule.gate for rule in gates_of(job) if isinstance(rule.gate, ColumnGate))


def sample_gates(job: Job) -> tuple[Rule, ...]:
    """The gates that say something of a few rows: on columns, and on how answers ended."""
    return tuple(rule for rule in gates_of(job) if isinstance(rule.gate, ColumnGate | Cut))


def check_label_and_gates(job: Job, schema: pa.Schema) -> None:
    """Check that the label has a score to compare it with, that rows can be divided by the columns that the job names,
    and that each check can judge its column's values.

    schema: the input's columns, with every column that the job names.

    Raises:
        JobError: One of them does not. Names the key, the column and its type.
    """
    outputs = job.output_types()
    types = {**dict(zip(schema.names, schema.types, strict=True)), **outputs}
    labels = {"label": job.label, "late_labels.label": job.late_labels.label if job.late_labels else None}
    for key, label in labels.items():
        if (evaluator := evaluator_of(job.model_copy(update={"label": label}), key)) is not None:
            evaluator.check_columns(types)
    check_slices(job, types)
    for gate in column_gates_of(job):
        kind = types[gate.column]
        if not gate.can_judge(columns.kind_of(kind)):
            raise JobError(
                f"{gate.key}: asks for numbers, but {gate.column!r} is {kind}; remove it, or check another column"
            )
    for key, check in job.checks_of(DriftCheck).items():
        _check_drift(check, key, types)


def _check_drift(check: DriftCheck, key: str, types: Mapping[str, pa.DataType]) -> None:
    """Check that each column that a check on drift names has the figures that it limits. `all` leaves out others."""
    for name in check.columns if "psi" in check.limits else ():
        if profile.kind_of(types[name]) == "other":
            raise JobError(
                f"{key}.drift: compares numbers, text and bools, but {name!r} is {types[name]}; limit only nulls, as "
                "nulls: 0.1, or check another column"
            )
