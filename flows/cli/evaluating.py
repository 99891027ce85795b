"""The command for labels that come after a night: evaluate."""

from __future__ import annotations

from typing import Annotated

import typer

from nightjar.flows.cli.options import (
    JobArgument,
    JsonOption,
    OptionalRunArgument,
    RunIdOption,
    as_json_too,
    emit,
    named_run,
    note_aside,
    tell,
)


def evaluate(
    job: JobArgument,
    run_name: OptionalRunArgument = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--labels",
            help="File, folder, pattern or table with labels; may be repeated. Default: late_labels.input.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help="A column that a label and its row have in common; may be repeated. Default: late_labels.key."
        ),
    ] = None,
    label: Annotated[
        str, typer.Option("--label", help="The column with the label. Default: late_labels.label.", show_default=False)
    ] = "",
    date: Annotated[str | None, typer.Option("--date", help="Logical date. Default: the latest night.")] = None,
    run_id: RunIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Join labels that came later to a night; keep its metrics.

    By default to the latest published night. What is published stays as it is: the metrics lie beside it, and `status`,
    `runs`, `diff` and the report show the newest. A check on a metric that does not hold is a warning.
    """
    from nightjar.flows.evaluation import evaluate as evaluated
    from nightjar.flows.pages.evaluated import late_text
    from nightjar.inference.run.request import make_request
    from nightjar.inference.validation.evaluations import evaluation_uri

    with as_json_too(as_json):
        run = named_run(run_name, run_id)
        request = make_request(job, date=date, run_id=run, scores=False)
        made, notes = evaluated(request, run, dated=date is not None, labels=labels or (), key=key or (), label=label)
        for note in notes:
            note_aside(note)
    if as_json:
        emit(made)
    else:
        tell(late_text(made, evaluation_uri(request.output, made)))
