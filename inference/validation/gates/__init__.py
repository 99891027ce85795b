"""The gates: checks that decide whether a run may be published.

A new gate is a class with `judge`. If a new kind of check asks for it, add one line to `_GATES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from nightjar.inference.job.checks import AnswersCheck, ColumnCheck, FilesCheck, RowsCheck
from nightjar.inference.job.model import Job
from nightjar.inference.validation.gates.always import (
    Complete,
    Quarantine,
    Rescore,
)
from nightjar.inference.validation.gates.amount import InputGate, files_gates, rows_gates
from nightjar.inference.validation.gates.answers import Cut, answers_gates
from nightjar.inference.validation.gates.column import ColumnGate, column_gates
from nightjar.inference.validation.gates.verdict import (
    Evidence,
    Found,
    Gate,
    GateResult,
    LastNight,
    NamesRows,
    Offender,
    enforce,
    evaluate,
)

__all__ = [
    "ColumnGate",
    "Cut",
    "Evidence",
    "Found",
    "Gate",
    "GateResult",
    "InputGate",
    "LastNight",
    "NamesRows",
    "Offender",
    "answers_gates_of",
    "column_gates_of",
    "enforce",
    "evaluate",
    "gates_of",
    "input_gates",
    "naming_gates_of",
]


_GATES: dict[type, Callable[[Any, str, Job], Iterable[Gate]]] = {
    ColumnCheck: column_gates,
    RowsCheck: rows_gates,
    FilesCheck: files_gates,
    AnswersCheck: answers_gates,
}
"""Kind of check → a function that makes the gates of such a check from the check, its key and the job."""


def gates_of(job: Job) -> tuple[Gate, ...]:
    """Every gate of the job, in the order in which they are shown."""
    always: list[Gate] = [Complete(), Quarantine(job.retry.max_quarantined)]
    if job.rescore.share:
        always.append(Rescore(job.rescore.tolerance, job.rescore.differing))
    asked = (_GATES[type(check)](check, f"checks[{index}]", job) for index, check in enumerate(job.checks))
    return (*always, *itertools.chain.from_iterable(asked))


def input_gates(job: Job) -> tuple[InputGate, ...]:
    """The gates that can be judged as soon as the input is found."""
    return tuple(gate for gate in gates_of(job) if isinstance(gate, InputGate))


def column_gates_of(job: Job) -> tuple[ColumnGate, ...]:
    """The gates on the figures of a column."""
    return tuple(gate for gate in gates_of(job) if isinstance(gate, ColumnGate))


def answers_gates_of(job: Job) -> tuple[Cut, ...]:
    """The gates on how answers ended."""
    return tuple(gate for gate in gates_of(job) if isinstance(gate, Cut))


def naming_gates_of(job: Job) -> tuple[NamesRows, ...]:
    """The gates that name rows which they refuse."""
    return tuple(gate for gate in gates_of(job) if isinstance(gate, NamesRows))
