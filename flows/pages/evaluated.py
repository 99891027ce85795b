"""Texts from the labels of a night: what its outputs are worth, as a whole and by slices."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import short_name

if TYPE_CHECKING:
    from nightjar.inference.metrics.figures import Evaluation, Figures, SliceFigures

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
