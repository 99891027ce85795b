"""The last step: makes the revision visible, in one atomic act."""

from __future__ import annotations

import time
from collections.abc import Collection

from nightjar.inference.errors import StorageError, TakenBack, Unanswered
from nightjar.inference.ledger.epochs import LedgerWriter
from nightjar.inference.ledger.lines import Published, question_name
from nightjar.inference.output import latest_view, targets
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.run import waiting
from nightjar.inference.run.lease import leased
from nightjar.inference.run.request import RunRequest
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.validation import gates
from nightjar.inference.validation.manifest import read_manifest


def publish_run(request: RunRequest, scored: Scored, verdict: Verdict) -> Publication:
    """Make the revision visible, in one atomic act.

    Raises:
        Held: another writer has taken the run over since it was validated.
        Unanswered: a gate asks a person, who has not said yes.
        TakenBack: there was nothing to score, and a person took back what was published of it.
    """
    began = time.time()
    if scored.finished:
        check_visible(request, scored.revision, verdict.checksum)
        waiting.forget_failure(request)
        return shown_everywhere(request, scored.revision, scored.number, verdict.manifest, began)
    if not request.publish:
        return Publication(scored.revision, 0, verdict.manifest, 0, time.time() - began)
    if verdict.question is not None:
        raise unanswered(verdict)
    uri = revs.revision_uri(request.run_uri, scored.revision)
    with leased(request, uri, "publish", keep=False, after=verdict.epoch) as writer:
        entry = Published(scored.revision, verdict.manifest, verdict.checksum, request.date)
        if gates.asking(verdict.gates) and not writer.state.approves(entry):
            raise unanswered(verdict)
        number, swept, unfinished = make_visible(request, writer, entry, scored.fingerprint)
    return shown_everywhere(request, scored.revision, number, verdict.manifest, began, swept, unfinished)


def unanswered(verdict: Verdict) -> Unanswered:
    """The error of a run that must not be published before a person has said yes."""
    said = "; ".join(map(gates.told, gates.asking(verdict.gates)))
    return Unanswered(said, verdict.gates, question_name(verdict.checksum))


def make_visible(request: RunRequest, writer: LedgerWriter, entry: Published, fingerprint: str) -> tuple[int, int, str]:
    """Publish a revision under this lease. fingerprint: of its plan.

    Returns its number, how many files were swept, and why sweeping failed though readers see the revision."""
    uri = revs.revision_uri(request.run_uri, entry.revision)
    made = revs.read_plan(request.storage, uri, writer.state, fingerprint)
    assert made is not None
    swept, unfinished, before = 0, "", writer.state.published
    try:
        number = before.number if before else publish.publish(writer, request.output, request.run_id, entry)
        # Sweep only now, when no later plan can need a part, whoever continues and whenever this writer wakes up.
        swept = revs.sweep(writer, uri, made)
        revs.mark_success(writer, uri, number, entry.manifest)
    except StorageError as error:
        # What readers see decides. The next command does what is left to do: `finish_publication`.
        intent = writer.state.intent
        if intent is None or publish.shown(request.storage, request.output, request.run_id) != entry:
            raise
        number, unfinished = intent.number, str(error)
    return number, swept, unfinished


def finish_publication(request: RunRequest, newest: revs.Revision) -> bool:
    """Finish a publication that was begun, because before that nobody knows what readers will see.

    Returns whether there was one.
    """
    if not newest.sealed or newest.success is not None:
        return False
    with leased(request, newest.uri, "publish", keep=False, seen=newest) as writer:
        intent = writer.state.intent
        assert intent is not None
        manifest = read_manifest(request.storage, request.output, intent.published)
        make_visible(request, writer, intent.published, manifest.fingerprint)
    return True


def shown_everywhere(
    request: RunRequest, revision: int, number: int, manifest: str, began: float, swept: int = 0, unfinished: str = ""
) -> Publication:
    """Commit what is published to the job's tables, and lead readers to it. began: when this began, in epoch seconds;
    the others are as in `Publication`.
    """
    left = commit_tables(request)
    behind = latest_view.refresh(request.storage, request.output, request.job.name, request.date)
    return Publication(revision, number, manifest, swept, time.time() - began, unfinished, behind, left)


def commit_tables(request: RunRequest, dates: Collection[str] = ()) -> tuple[str, ...]:
    """Commit what is published to the job's tables. Returns a sentence for each table that could not be changed, and
    for each night that a table does not show, as `targets.commit` for a command about these dates, by default the
    request's.
    """
    return tuple(targets.commit(request.storage, request.output, request.job.output.tables, dates or {request.date}))


def check_visible(request: RunRequest, revision: int, checksum: str) -> None:
    """Check that readers see this revision, which was published before. checksum: of its manifest.

    Raises:
        TakenBack: They do not.
    """
    shown = publish.shown(request.storage, request.output, request.run_id)
    if shown is None or shown.checksum != checksum:
        raise TakenBack(
            f"r{revision} of the run {request.run_id!r} was published before and rolled back or unpublished "
            "since: nothing was scored, and readers do not see it"
        )
