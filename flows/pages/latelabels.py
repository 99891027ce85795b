"""What labels say that came after a night, in words."""

from __future__ import annotations

from nightjar.flows.pages.evaluated import evaluation_lines
from nightjar.inference.messages import counted
from nightjar.inference.metrics.figures import Figures
from nightjar.inference.validation.evaluations import LateEvaluation


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
    return "\n".join([head, *(f"  {word:<10} {text}" for word, text in lines)])


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
