"""How labels are compared with outputs: one evaluator per kind of label."""

from __future__ import annotations

from collections.abc import Mapping

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.metrics.binary import BinaryState
from nightjar.inference.metrics.classes import ClassState
from nightjar.inference.metrics.evaluator import Evaluator
from nightjar.inference.metrics.ranking import RankingState
from nightjar.inference.metrics.regression import RegressionState

_KINDS: tuple[type[Evaluator], ...] = (BinaryState, RegressionState, ClassState, RankingState)

TASKS: Mapping[str, type[Evaluator]] = {kind.TASK: kind for kind in _KINDS}
"""`evaluation.task` of a job → its evaluator. A new kind is a new file, one name above, and its words in
`job.label_sections`."""


def evaluator_of(job: Job, key: str = "label") -> Evaluator | None:
    """An empty state for the job's label; None if the job has no label. The label is compared with the output that
    the job names, else with the first one that fits. key: that of the label in the job file, for messages.

    Raises:
        JobError: No output fits.
    """
    if job.label is None:
        return None
    kind, outputs = TASKS[job.evaluation.task], job.output_types()
    named = job.evaluation.prediction
    if named is not None and not kind.takes_score(outputs[named]):
        raise JobError(
            f"evaluation.prediction: {named!r} is {outputs[named]}, and evaluation.task: {kind.TASK} compares labels "
            f"with {kind.SCORES}; name another output, or another task"
        )
    for name, type_ in outputs.items():
        if name == named or (named is None and kind.takes_score(type_)):
            return kind.of_section(job.label, name, job.evaluation)
    raise JobError(
        f"{key}: {job.label!r} needs a score to be compared with, but no output of the model is {kind.SCORES}; "
        f"declare one in model.outputs, such as `{kind.EXAMPLE}`, or drop {key}"
    )
