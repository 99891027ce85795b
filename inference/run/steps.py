"""The steps of a run: `discover`, `score`, `validate`, `publish_run`; and `plan`, `check`, `check_input`, which
write nothing that stays.

Each step that writes opens an epoch, does its part, and stops. The flow's tasks call these, and so may a plain script.
They hand each other small frozen records; whatever matters is in the ledger, so that any step may be repeated, by
anybody, at any time.
"""

from __future__ import annotations

from nightjar.inference.input.discovery import Discovery
from nightjar.inference.input.discovery import discover as discover_input
from nightjar.inference.input.plan import make_plan
from nightjar.inference.output import revisions as revs
from nightjar.inference.output import targets
from nightjar.inference.run.checking import Checked, check, check_input
from nightjar.inference.run.publishing import publish_run
from nightjar.inference.run.refusals import check_columns, check_without_input
from nightjar.inference.run.request import RunRequest, identity_of
from nightjar.inference.run.results import Publication, RunPlan, Scored, Verdict
from nightjar.inference.run.resume import limited, why_again
from nightjar.inference.run.scoring import nothing_to_score, score, was_published
from nightjar.inference.run.validating import validate

_FILES = 1000
"""The paths of this many files are looked at for the name of a column that the files lack."""


def discover(request: RunRequest) -> Discovery:
    """Find tonight's input and check it against the job. Writes nothing.

    Raises:
        JobError: nothing to score, or job, input, output and model do not fit together.
    """
    check_without_input(request)
    discovery = discover_input(request.storage, request.job)
    check_columns(request.job, discovery.schema, discovery.files["uri"].slice(0, _FILES).to_pylist())
    return discovery


def plan(request: RunRequest, discovery: Discovery) -> RunPlan:
    """Plan what would be scored, and say what the ledger already has. Writes nothing.

    Raises:
        JobError: a table of the job's cannot be written, or cannot take the columns.
    """
    targets.check(request.storage, request.job, discovery.schema)
    identity = identity_of(request, discovery.schema)
    newest = revs.newest_revision(request.storage, request.run_uri)
    previous = newest.plan(identity.fingerprint) if newest else None
    made = limited(
        make_plan(
            discovery, request.job, identity.fingerprint, None if request.fresh else previous, revs.planned_by(newest)
        ),
        request,
    )
    state = newest.state if newest and not request.fresh else None
    return RunPlan(made, state, why_again(request, identity, made, newest))


__all__ = [
    "Checked",
    "Publication",
    "RunPlan",
    "Scored",
    "Verdict",
    "check",
    "check_input",
    "discover",
    "nothing_to_score",
    "plan",
    "publish_run",
    "score",
    "validate",
    "was_published",
]
