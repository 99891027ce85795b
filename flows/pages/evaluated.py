"""The evaluation of a night by its labels, as text: of labels in its input, and of labels that came later."""

from __future__ import annotations

from itertools import islice

from nightjar.flows.pages.wording import fact_lines
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Bounded, Figures, RankedGroups, SliceFigures, short_name
from nightjar.inference.validation.evaluations import LateEvaluation

_MISTAKES = 5
"""The most pairs of classes that a line names."""


def evaluation_lines(metrics: Figures) -> list[tuple[str, str]]:
    """The evaluation as (name, value), empty without a label: the first metric, the others, and what they are of."""
    found = metrics.evaluation
    if found is None:
        return []
    lines = list[tuple[str, str]]()
    if found.lead:
        (lead, figure), *others = found.metrics.items()
        lines.append((lead, f"{_shown(figure)} over {found.rows:,} rows"))
        if others:
            lines.append(("metrics", ", ".join(f"{name} {_shown(each)}" for name, each in others)))
        if found.positives is not None:
            lines.append(("labels", f"{found.positives / found.rows:.1%} of the rows have label 1"))
        for why in dict.fromkeys(found.missing.values()):
            names = [name for name, reason in found.missing.items() if reason == why]
            lines.append(("missing", f"{', '.join(names)}: {why}"))
    if found.classes is not None and (pairs := found.classes.confusion):
        wrong = (f"{short_name(each.label)} → {short_name(each.output)} {each.rows:,}" for each in pairs)
        lines.append(("mistakes", f"label → output: {', '.join(islice(wrong, _MISTAKES))}"))
    if found.groups is not None and found.lead:
        lines.append(("groups", _groups(found.groups)))
    return [*lines, *((f"by {column}", _sliced(sliced, found.lead)) for column, sliced in metrics.slices.items())]


def _shown(found: Bounded) -> str:
    """A figure: four digits after the point, or six in all of a large one; and its largest error if it shows."""
    value = f"{found.value:.4f}" if abs(found.value) < 10 else f"{found.value:.6g}"
    return f"{value} ± {found.bound:.4f}" if found.bound >= 5e-5 else value


def _groups(of: RankedGroups) -> str:
    among = f"; {counted(of.groups + of.irrelevant, 'group')} of more were looked at"
    without = f"; {counted(of.irrelevant, 'other')} without a relevant row" if of.irrelevant else ""
    means = f"means over the first {of.k} rows of {counted(of.groups, 'group')} of {of.group!r}"
    return f"{means}{without}{among if of.sampled else ''}"


def own_lines(metrics: Figures) -> list[tuple[str, str]]:
    """A line, as (name, value), for each of the user's own accumulators."""
    return [
        (name, found.reason or ", ".join(f"{each} {_own(value)}" for each, value in found.values.items()))
        for name, found in metrics.accumulators.items()
    ]


def _own(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _sliced(found: SliceFigures, name: str) -> str:
    """The slices of a column in one line: of this metric the least and the greatest figure."""
    if found.cut:
        return "too many values, or too long ones, for slices"
    said = counted(len(found.slices), "slice")
    figures = [(each, figure) for each in found.slices if (figure := each.evaluation.metrics.get(name))]
    if not figures:
        return f"{said}, none with a figure"
    ordered = sorted(figures, key=lambda each: each[1].value)
    ends = (("least", ordered[0]), ("greatest", ordered[-1]))
    told = (
        f"{end} {name} {figure.value:.4g} ({each.called}, {counted(each.evaluation.rows, 'row')}{_sampled(figure)})"
        for end, (each, figure) in ends
    )
    return f"{said}; {', '.join(told)}"


def _sampled(found: Bounded) -> str:
    return f", a sample of {counted(found.sampled, 'group')}" if found.sampled else ""


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
