"""The gates of a job, with what happens where one does not pass.

If a new kind of check asks for a gate, add one line to `_GATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
from nightjar.inference.validation.gates import Gate, Rule
from nightjar.inference.validation.gates.always import Complete, Quarantine, Rescore
from nightjar.inference.validation.gates.amount import InputGate, files_gates, rows_gates
from nightjar.inference.validation.gates.answers import Cut, answers_gates
from nightjar.inference.validation.gates.call import call_gates
from nightjar.inference.validation.gates.column import ColumnGate, column_gates
from nightjar.inference.validation.gates.drift import drift_gates
from nightjar.inference.validation.gates.metric import Computed, MetricGate, SliceGate, metric_gates
from nightjar.inference.validation.gates.unique import unique_gates

_GATES: dict[type, Callable[[Any, str, Job], Iterable[Gate]]] = {
    ColumnCheck: column_gates,
    MetricCheck: metric_gates,
    DriftCheck: drift_gates,
    RowsCheck: rows_gates,
    FilesCheck: files_gates,
    AnswersCheck: answers_gates,
    CallCheck: call_gates,
    UniqueCheck: unique_gates,
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
