"""Begins a run or a check for a command, after everything that can be checked before Ray starts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nightjar.flows.notifying import telling
from nightjar.inference.engine import LOCAL
from nightjar.inference.input.plan import Discovery
from nightjar.inference.process import seldom_collected
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.waiting import awaited
from nightjar.inference.scoring.preflight import PLACES

if TYPE_CHECKING:
    from rich.console import Console

    from nightjar.flows.finished_run import Launched
    from nightjar.flows.reports import CheckReport

_PATIENCE_S = 10.0
"""The longest time in seconds that a run waits for the user's imports after its own; then it starts anyway."""


def launched(request: RunRequest, ray: str | None, console: Console | None = None, verbose: bool = False) -> Launched:
    """Check the request, then launch the run. console: where the run is shown; None for nowhere.

    Raises:
        NightjarError: As in `run`; that of a failed run has a note on what to do next.
    """
    began = time.monotonic()
    with telling(request, "discover"), seldom_collected():
        waits = look_first(request, ray)
    from nightjar.flows.launch import launch

    return launch(request, ray, console, since=began, waits=waits, verbose=verbose)


def look_first(request: RunRequest, ray: str | None) -> bool:
    """Check job, input, labels of the first files, and code. Returns whether the run has to wait for its input.

    A process of its own imports the user's code while this one imports Prefect, which takes as long.

    Raises:
        JobError: One of them must be changed.
        StorageError: The storage refused or failed.
    """
    from nightjar.inference.run.refusals import check_labels, check_request, check_without_input
    from nightjar.inference.run.user_code import Inspection

    waits = awaited(request.storage, request.job) is not None
    if waits:
        check_without_input(request)
    else:
        beginning = check_request(request)
    with Inspection(
        request, silent=True
    ) as inspection:  # the workers import the code again, so what it prints is in the run's logs
        if not waits:
            check_labels(request.storage, request.job, beginning.schema, beginning.pieces(PLACES), all_alike=True)
        from nightjar.flows import launch  # noqa: F401 (it is needed next, and its import takes seconds)
        from nightjar.flows.cluster import named

        # Preflight finds whatever this process has not found by then.
        inspection.found(elsewhere=named(ray) is not None, patience_s=_PATIENCE_S)
    return waits


def check(request: RunRequest, discovery: Discovery, ray: str | None, verbose: bool) -> CheckReport:
    """Check everything that a night needs besides its input; the cheapest checks come first.

    Raises:
        JobError, ClusterError: Something must be changed.
    """
    from nightjar.flows.cluster import named
    from nightjar.flows.pages.estimate import checked
    from nightjar.inference.run import checking
    from nightjar.inference.run.user_code import inspect_code

    checking.check_input(request, discovery)
    note = inspect_code(request, elsewhere=named(ray) is not None)
    if request.engine == LOCAL:
        found = checking.check(request, discovery)
    else:
        from nightjar.flows.cluster.connection import cluster  # Ray takes a while to import
        from nightjar.flows.cluster.tasks import call

        with cluster(ray, request.job, {}, verbose):
            found = call(checking.check, request, discovery)
    return checked(request, discovery, found, [note] if note else [])
