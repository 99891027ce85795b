"""The evaluation of a night by its labels, as text: of labels in its input, and of labels that came later."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from nightjar.flows.pages.wording import fact_lines
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Figures, short_name

if TYPE_CHECKING:
    from nightjar.inference.metrics.figures import Evaluation, SliceFigures
    from nightjar.inference.validation.evaluations import LateEvaluation

_MISTAKES = 5
"""The most pairs of classes that a line names."""


def _calibrated(found: Evaluation) -> str:
    return f", calibration error (ECE) {found.ece.value:.4f}" if found.ece else ""


def evaluation_lines(metrics: Figures) -> list[tuple[str, str]]:
    """The evaluation as (name, value), empty without a label."""
    found = metrics.evaluation
    if found is None:
        return []
    lines = [*_numbers(found), *_classes(found), *_ranked(found)]
    if found.auc_roc is not None:
        lines.append(("AUC-ROC", f"{found.auc_roc:.4f} ± {found.auc_bound:.4f} over {found.rows:,} rows"))
    if (precision := found.average_precision) is not None:
        share = f"{found.positives / found.rows:.1%} of the rows have label 1"
        lines.append(("AUC-PR", f"{precision.value:.4f} ± {precision.bound:.4f}; {share}"))
    if found.log_loss is not None:
        brier = f", Brier score {found.brier.value:.4f}" if found.brier else ""
        lines.append(("log loss", f"{found.log_loss:.4f}{brier}{_calibrated(found)}"))
    if (at := found.predictions) is not None:
        shares = (("accuracy", at.accuracy), ("precision", at.precision), ("recall", at.recall), ("F1", at.f1))
        said = ", ".join(f"{name} {share:.4f}" for name, share in shares if share is not None)
        lines.append((f"at {at.threshold:g}", said))
    lead = next(iter(found.figures()), "")
    return [*lines, *((f"by {column}", _sliced(sliced, lead)) for column, sliced in metrics.slices.items())]


def metric_lines(metrics: Figures) -> list[tuple[str, str]]:
    """All that is told of a night's metrics, as (name, value): the evaluation, then accumulators of the user's own."""
    return [*evaluation_lines(metrics), *own_lines(metrics)]


def own_lines(metrics: Figures) -> list[tuple[str, str]]:
    """A line for each accumulator."""
    return [
        (name, found.reason or ", ".join(f"{each} {_own(value)}" for each, value in found.values.items()))
        for name, found in metrics.accumulators.items()
    ]


def _own(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _numbers(found: Evaluation) -> list[tuple[str, str]]:
    if (of := found.numbers) is None or of.rmse is None:
        return []
    lines = [("RMSE", f"{of.rmse:.6g}, MAE {of.mae:.6g}, bias {of.bias:+.6g} over {found.rows:,} rows")]
    return [*lines, ("R2", f"{of.r2:.4f}")] if of.r2 is not None else lines


def _classes(found: Evaluation) -> list[tuple[str, str]]:
    if (of := found.classes) is None or of.accuracy is None:
        return []
    lines = [("accuracy", f"{of.accuracy:.4f} over {found.rows:,} rows" + (f"; {of.reason}" if of.reason else ""))]
    if of.macro and of.weighted:
        said = f"{of.macro.f1:.4f} (macro), {of.weighted.f1:.4f} (weighted), {len(of.per_class):,} classes"
        lines.append(("F1", said))
    if of.confusion:
        wrong = (f"{short_name(each.label)} → {short_name(each.output)} {each.rows:,}" for each in of.confusion)
        lines.append(("mistakes", f"label → output: {', '.join(islice(wrong, _MISTAKES))}"))
    return lines


def _ranked(found: Evaluation) -> list[tuple[str, str]]:
    if (of := found.ranking) is None or of.ndcg is None:
        return []
    kept = counted(of.groups + of.irrelevant, "group")
    among = f"; {kept} of about {of.of_about:,} were looked at" if of.of_about else ""
    without = f"; {counted(of.irrelevant, 'other')} without a relevant row" if of.irrelevant else ""
    means = f"mean over {counted(of.groups, 'group')} of {of.group!r}{without}{among}"
    others = (("MAP", of.map), ("precision", of.precision))
    said = ", ".join(f"{name} {value:.4f}" for name, value in others if value is not None)
    return [(f"NDCG@{of.k}", f"{of.ndcg:.4f}, {means}"), (f"MRR@{of.k}", f"{of.mrr:.4f}, {said}")]


def _sliced(found: SliceFigures, name: str) -> str:
    """The slices of a column in one line: of this metric the least and the greatest figure."""
    if found.cut:
        return "too many values, or too long ones, for slices"
    said = counted(len(found.slices), "slice")
    figures = [(each, figure) for each in found.slices if (figure := each.evaluation.figures().get(name))]
    if not figures:
        return f"{said}, none with a figure"
    ordered = sorted(figures, key=lambda each: each[1].value)
    ends = (("least", ordered[0]), ("greatest", ordered[-1]))
    told = (
        f"{end} {name} {figure.value:.4g} ({each.called}, {counted(each.evaluation.rows, 'row')})"
        for end, (each, figure) in ends
    )
    return f"{said}; {', '.join(told)}"


def late_lines(made: LateEvaluation, newest: int) -> list[tuple[str, str]]:
    """An evaluation as (name, value): how many rows have a label, the metrics, and the checks that do not hold. newest:
    the newest revision of the run; if this one is of another revision, it says so.
    """
    joined = made.joined
    of = f", of r{made.revision}, which readers see" if made.revision != newest else ""
    said = f"{joined.labelled:,} of {counted(joined.rows, 'row')} ({joined.share:.1%}) have one"
    return [
        ("labels", f"{said} (evaluation {made.number} of {made.at}{of})"),
        *evaluation_lines(made.instead_of(Figures({}))),
        *(("warning", f"{gate.name}: {gate.sentence}") for gate in made.gates if not gate.passed),
    ]


def late_text(made: LateEvaluation, kept: str) -> str:
    """The closing lines of `evaluate`. kept: the URI of the file that has it."""
    joined, passed = made.joined, sum(gate.passed for gate in made.gates)
    lines = [
        ("rows", f"{joined.rows:,}: {joined.labelled:,} with a label ({joined.share:.1%}), "
         f"{joined.rows - joined.labelled:,} without"),
        ("labels", f"{joined.labels:,} at {made.labels}, {joined.unmatched_labels:,} without a row of this night"),
        *([("gates", f"{passed} of {len(made.gates)} passed")] if made.gates else []),
        *late_lines(made, made.revision)[1:],
        *(("note", note) for note in _notes(made)),
        ("kept", kept),
    ]  # fmt: skip
    head = f"{made.job} {made.run_id} r{made.revision}: evaluation {made.number}; what is published stays as it is"
    return "\n".join([head, *fact_lines(lines)])


def _notes(made: LateEvaluation) -> list[str]:
    joined, key = made.joined, " and ".join(made.key)
    found = {
        f"{counted(joined.null_labels, 'label')} without a value": joined.null_labels,
        f"{counted(joined.repeated_labels, 'label')} said again what another one says; each key counts once": (
            joined.repeated_labels
        ),
        f"{counted(joined.keyless, 'row')} without a {key}, which no label can find": joined.keyless,
        f"{counted(joined.repeated_rows, 'row')} with the {key} of an earlier row; each has the label of its key": (
            joined.repeated_rows
        ),
    }
    return [note for note, rows in found.items() if rows]
