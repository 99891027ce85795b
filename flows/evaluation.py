"""Labels that came later: the night is evaluated, and its report made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nightjar.flows.pages.report import writing
from nightjar.inference.history.evaluation import evaluate_late
from nightjar.inference.run.request import RunRequest
from nightjar.inference.validation.evaluations import LateEvaluation


def evaluate(
    request: RunRequest,
    run_id: str | None,
    *,
    dated: bool,
    labels: Sequence[str] = (),
    key: Sequence[str] = (),
    label: str = "",
) -> tuple[LateEvaluation, tuple[str, ...]]:
    """As `evaluate_late`; dated: whether the night is that of the request's date. Also makes the night's report again.

    Returns the evaluation, and what a person should know of the report, a sentence each.
    """
    date = request.date if dated else None
    made = evaluate_late(request, run_id, date, labels=labels, key=key, label=label)
    notes: list[str] = []
    writing.leave(replace(request, run_id=made.run_id, date=made.date), notes.append)
    return made, tuple(notes)
