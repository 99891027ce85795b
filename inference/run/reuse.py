"""Whose results a run takes over, and why it scores shards again that have a result.

A run that is scored again takes over results of its own published revision. With `reuse: shards` in the job a night
takes over results of an earlier night. Either way a shard is taken over only under the same id, and so only if the same
input was scored by the same model, code and keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from nightjar.inference.errors import AlreadyExists, Damaged, JobError, Missing, TakenBack
from nightjar.inference.identity.differences import differences, summed
from nightjar.inference.identity.identity import Identity, row_identities
from nightjar.inference.input.plan import Plan
from nightjar.inference.ledger.ledger import Ledger, State
from nightjar.inference.ledger.lines import Published
from nightjar.inference.ledger.remarks import Remarks
from nightjar.inference.output import publications as publish
from nightjar.inference.output import revisions as revs
from nightjar.inference.output.rowindex import RowReuse
from nightjar.inference.run.request import RunRequest
from nightjar.inference.storage.protocol import join, same_version
from nightjar.inference.validation.manifest import Manifest, read_manifest
from nightjar.inference.witness.seen import Collection

_NIGHTS = 16
"""The most earlier nights whose manifests are read to find one with the same fingerprint."""


@dataclass(frozen=True)
class Source:
    """A published revision whose results may be taken over."""

    revision: revs.Revision

    plan: Plan
    """Its newest plan."""

    @property
    def fingerprint(self) -> str:
        """Of what scored its shards."""
        return revs.planned_by(self.revision)


class EarlierNights:
    """The newest nights before this one that readers see. A manifest is read once, and only if it is asked for."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._read: dict[str, Manifest | None] = {}
        self.unread: list[str] = []
        """A sentence for each night that cannot be read, and so is no source."""

    def manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Run and manifest of each, the newest first."""
        dates = sorted(((entry.date, run) for run, entry in self._shown.items()), reverse=True)
        nights = [run for date, run in dates if date < self._request.date]
        for run in nights[:_NIGHTS]:
            if (manifest := self._manifest(run)) is not None:
                yield run, manifest

    @cached_property
    def _shown(self) -> dict[str, Published]:
        return publish.newest(self._request.storage, self._request.output).runs

    def _manifest(self, run: str) -> Manifest | None:
        """The manifest of a run that readers see; None if it cannot be read, which is said of an earlier night."""
        if run not in self._read:
            try:
                self._read[run] = read_manifest(self._request.storage, self._request.output, self._shown[run])
            except (Damaged, JobError, Missing) as error:
                self._read[run] = None
                if run != self._request.run_id:
                    self.unread.append(f"nothing of the night {run} can be reused: {error}")
        return self._read[run]

    def own(self) -> Manifest | None:
        """The manifest of this run, as readers see it."""
        run = self._request.run_id
        return self._manifest(run) if run in self._shown else None

    def after_own(self) -> Iterator[tuple[str, Manifest]]:
        """This run, as readers see it, and then as `manifests`."""
        if (manifest := self.own()) is not None:
            yield self._request.run_id, manifest
        yield from self.manifests()

    def remarks(self, name: str) -> Remarks:
        """What is known about how the results of a revision were scored. name: as `Revision.name`; '' for none."""
        for run, manifest in self.after_own() if name else ():
            if name == f"{run}/r{manifest.revision}":
                return Remarks((), manifest.preflight, Collection(manifest.outside), dict(manifest.loaded))
        return Remarks()

    def alike(self, fingerprint: str = "") -> Source | None:
        """The newest one that was scored under this fingerprint; '': under any."""
        for run, manifest in self.manifests():
            if fingerprint in ("", manifest.fingerprint):
                try:
                    uri = revs.run_folder(self._request.output, run)
                    found = _source(revs.read_revision(self._request.storage, uri, manifest.revision))
                    if found is not None and len(found.plan):
                        return found
                except (Damaged, Missing) as error:
                    self.unread.append(f"nothing of the night {run} can be reused: {error}")
        return None


def source_of(
    request: RunRequest, state: State, newest: revs.Revision | None, fingerprint: str, nights: EarlierNights
) -> Source | None:
    """The published revision whose results a revision takes over: of this run, or with `reuse` of an earlier night.

    It is chosen with the first plan that has this fingerprint, and then stays. A revision that was begun with `--fresh`
    takes over none, whoever continues it. state: of the ledger of the revision. newest: of this run.
    """
    own = _own_source(request, state, newest, fingerprint)
    if _is_chosen(state, fingerprint) or _is_fresh(request, state) or request.job.reuse is None:
        return own
    if own is not None and own.fingerprint == fingerprint:
        return own
    return nights.alike(fingerprint) or own


def _is_chosen(state: State, fingerprint: str) -> bool:
    return state.planned is not None and state.planned.fingerprint == fingerprint


def _is_fresh(request: RunRequest, state: State) -> bool:
    return request.fresh or any(writer.fresh for _, writer in state.openers)


def _own_source(request: RunRequest, state: State, newest: revs.Revision | None, fingerprint: str) -> Source | None:
    """As `source_of`, without a look at other nights."""
    if state.planned is not None and _is_chosen(state, fingerprint):
        if not state.planned.adopts:
            return None
        return _source(revs.revision_named(request.storage, request.output, state.planned.adopts))
    if newest is None or _is_fresh(request, state):
        return None
    if not newest.sealed and newest.number > 1:
        # It was begun before, and killed before it had a plan.
        newest = revs.read_revision(request.storage, request.run_uri, newest.number - 1)
    return _source(newest) if newest.state.intent is not None else None


def _source(revision: revs.Revision) -> Source | None:
    """None if somebody deletes the revision or has deleted it: its shards are scored again."""
    with suppress(Missing):
        plan = None if revision.state.removed else revision.plan()
        return Source(revision, plan) if plan is not None else None
    return None


def rows_from(request: RunRequest, state: State, fingerprint: str, schema: pa.Schema, nights: EarlierNights) -> str:
    """The revision from which outputs of rows are taken, as `Revision.name`; '' for none: the one of this run that
    readers see, or else the newest earlier night, that has rows in an index of one of the models.

    It is chosen with the first plan that has this fingerprint, and then stays. schema: all columns of the input.
    """
    if state.planned is not None and _is_chosen(state, fingerprint):
        return state.planned.rows_from
    if request.job.reuse != "rows" or _is_fresh(request, state):
        return ""
    wanted = row_identities(request.job, request.scoring, schema).values()
    for run, manifest in nights.after_own():
        if manifest.index is not None and manifest.index.rows and any(map(manifest.index.of, wanted)):
            return f"{run}/r{manifest.revision}"
    return ""


def row_reuse(request: RunRequest, state: State, schema: pa.Schema) -> RowReuse | None:
    """How workers take outputs of rows from an earlier night; None if the job does not reuse rows.

    An earlier night that readers do not see any more is none. state: of the ledger of the revision, with its plan.
    """
    if request.job.reuse != "rows":
        return None
    secret, source = _secret(request), state.planned.rows_from if state.planned else ""
    found = RowReuse(secret, row_identities(request.job, request.scoring, schema))
    if not source:
        return found
    run, number = revs.run_and_number(source)
    entry = publish.shown(request.storage, request.output, run)
    if entry is None or entry.revision != number:
        return found
    with suppress(Damaged, JobError, Missing):  # its rows are scored
        index = read_manifest(request.storage, request.output, entry).index
        return replace(found, source=source, folder=revs.uri_named(request.output, source), index=index)
    return found


def _secret(request: RunRequest) -> bytes:
    """Under which the keys of the rows of all nights are made. Who chooses rows must not know it."""
    uri = join(request.output, "reuse.key")
    with suppress(Missing):
        return request.storage.read(uri)
    with suppress(AlreadyExists):
        request.storage.create(uri, secrets.token_hex(16).encode())
    return request.storage.read(uri)


def check_not_taken_back(request: RunRequest, newest: revs.Revision | None, number: int, fingerprint: str) -> None:
    """Check that the revision of this number would not publish results that a person took back.

    Raises:
        TakenBack: It would.
    """
    if request.limit:  # never published
        return
    state = newest.state if newest is not None and newest.number == number else State()
    if newest is not None and _is_chosen(state, fingerprint):
        check_sources(request, newest.ledger, state)
        return
    own = _own_source(request, state, newest, fingerprint)
    if own is not None and own.fingerprint == fingerprint:
        _check_shown(request, own.revision.name)


def check_sources(request: RunRequest, ledger: Ledger, state: State) -> None:
    """Check that nobody took back the results that a revision took over. state: of its ledger, with its plan.

    Raises:
        TakenBack: Somebody did.
    """
    if state.planned is None:
        return
    _check_shown(request, state.planned.adopts)
    try:
        _check_shown(request, rows := state.planned.rows_from)
    except TakenBack:
        if any(each.reused_from == rows for each in ledger.receipts(state)):
            raise


def _check_shown(request: RunRequest, name: str) -> None:
    """Check that readers see this revision, or a newer one of its run, or that retention has deleted it. name: as
    `Revision.name`; '' for none.
    """
    if not name:
        return
    run, revision = revs.run_and_number(name)
    shown = publish.shown(request.storage, request.output, run)
    if (shown is None or shown.revision < revision) and not _deleted(request, name):
        words = " ".join((run, *request.place))
        raise TakenBack(
            f"r{revision} of the run {run!r} was published before and rolled back or unpublished since, and this "
            "run would publish its results again: nothing was scored, and readers do not see them. "
            f"`nightjar republish JOB {words}` shows r{revision} again, --fresh scores everything anew",
            run,
        )


def _deleted(request: RunRequest, name: str) -> bool:
    """Whether a revision is gone, or is being deleted. One that was rolled back or unpublished is there."""
    state = revs.revision_named(request.storage, request.output, name).state
    return state.planned is None or bool(state.removed)


def why_again(
    request: RunRequest,
    identity: Identity,
    made: Plan,
    newest: revs.Revision | None,
    source: Source | None,
    nights: EarlierNights,
) -> Iterator[str]:
    """Why earlier nights cannot be reused, why shards with a result are scored again, in words, with their number, and
    why a published run is judged again.

    newest: of this run, before this plan. source: whose results are taken over.
    """
    yield from nights.unread
    with suppress(Damaged, Missing):  # the revision before may be deleted meanwhile
        before = _compared_with(request, newest, source, nights)
        if before is None or before.state.planned is None or request.fresh:
            return
        if before.state.planned.fingerprint == identity.fingerprint:
            yield from _changed_input(made, before)
            own = nights.own() if before is newest and before.sealed else None
            if own is not None and own.revision == before.number and own.judging != request.scoring.judging:
                yield f"checks, or their code or limits, changed since r{before.number}, so the run is judged again"
            return
        scored_by = revs.identity_of_plan(request.storage, before.uri, before.state)
        have = before.state.committed | (source.revision.state.committed if source else set())
        old = len(set(made.ids()) - have)
        if scored_by is not None and old:
            yield _to_score(summed(differences(scored_by, identity)), old, len(made))


def _compared_with(
    request: RunRequest, newest: revs.Revision | None, source: Source | None, nights: EarlierNights
) -> revs.Revision | None:
    """The revision before this plan that has results: of this run, or with `reuse` of the night that is the source, or
    else of the newest earlier night.
    """
    if newest is not None and not newest.state.committed and newest.number > 1:
        # This revision was begun before, and ended without any result.
        newest = revs.read_revision(request.storage, request.run_uri, newest.number - 1)
    if newest is not None and newest.state.committed:
        return newest
    night = source or (nights.alike() if request.job.reuse else None)
    return night.revision if night else None


def _changed_input(made: Plan, newest: revs.Revision) -> tuple[str, ...]:
    """The files whose shards differ from those of the previous plan."""
    assert newest.state.planned is not None
    before = newest.plan()
    assert before is not None
    ids = set(before.ids())
    new = [shard.pieces for shard in made.shards() if shard.id not in ids]
    if not new:
        return ()
    wanted = {piece.uri for pieces in new for piece in pieces}
    pieces = (piece for shard in before.shards() for piece in shard.pieces if piece.uri in wanted)
    then = {piece.uri: piece for piece in pieces}
    what = {
        piece.uri: f"{piece.uri.rsplit('/', 1)[-1]} {'changed' if piece.uri in then else 'is new'}"
        for pieces in new
        for piece in pieces
        if (old := then.get(piece.uri)) is None
        or (piece.size, same_version(piece.version, old.version)) != (old.size, True)
    }
    return (_to_score(summed(list(what.values())) or "files are put together otherwise", len(new), len(made)),)


def _to_score(what: str, shards: int, of: int) -> str:
    return f"{what}: {shards:,} of {of:,} shards {'is' if shards == 1 else 'are'} scored"
