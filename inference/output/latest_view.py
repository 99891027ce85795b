"""`latest/` and `dates/<date>/` in the output, for readers who cannot run a command.

These folders are made from the newest snapshot, and may be behind it: the snapshot is the truth. Each file is replaced
whole. `latest/files.json` is written last, and says which snapshot the folders show. A command that finds them behind
updates the dates that have changed since. Two commands may do so at once. Each looks again when it is done, and if
there is a newer snapshot, writes again what it may have overwritten. Its note (`writing`) names these dates, in case it
is killed before.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from nightjar.inference.errors import Damaged, JobError, Missing, StorageError, Transient
from nightjar.inference.job.sections import EXPORTS
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.ledger.holders import Holder, is_dead, this_holder
from nightjar.inference.output import exports
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import PublishedNight, folder_of, night_of, sweep_late
from nightjar.inference.output.parts import DATA
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.storage import local as localstore
from nightjar.inference.storage.protocol import Storage, is_local, join

# What a killed command wrote last may be old, so the next command writes these dates again. The note
# `latest/_writing/<nonce>.json` exists from before a command's first write until the command has found that nobody
# published meanwhile. A command that stood still before a write may overwrite newer files, and be killed before it
# mends that.
_GONE_AFTER = dt.timedelta(days=7)
"""The age after which a note of a process on another machine is ignored; no process stands still for so long."""


@dataclass(frozen=True, slots=True)
class Left:
    """A note that another command left, or has not removed yet.

    dates: None if they are not known. ended: whether that command certainly does not write any more.
    """

    uri: str
    dates: frozenset[str] | None
    ended: bool


@dataclass(frozen=True, slots=True)
class _Note:
    """The content of a note. over: its command writes no more, and left these dates to the next one."""

    dates: tuple[str, ...]
    writer: Holder
    over: bool = False


@dataclass
class Notes:
    """This command's note, and those of others, for one output."""

    storage: Storage
    output: str
    _own: list[str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def others(self) -> list[Left]:
        """The notes of other commands."""
        found = []
        for entry in self.storage.list(self._folder()):
            try:
                found.append(_read(entry.uri, self.storage.read(entry.uri)))
            except Missing:
                continue  # it was removed just now
        return found

    def note(self, dates: Set[str]) -> None:
        """Leave a note before a write; a command that changes nothing leaves none. dates: all that this command
        writes.
        """
        with self._lock:
            if self._own and dates <= self._noted:
                return
            self._own.append(self._leave(dates - self._noted))
            self._noted |= dates

    def remove(self, mended: list[Left], unfinished: Set[str] | None = None) -> None:
        """Remove this command's notes, and those of `mended` whose processes have ended, because the folders are
        right. unfinished: the dates of which they are not, if there is anything left to do for the next command; a note
        of these is left.
        """
        gone = [*self._own, *(left.uri for left in mended if left.ended)]
        if unfinished is not None:
            self._leave(unfinished, over=True)
        if gone:
            self.storage.delete(gone)

    def _leave(self, dates: Set[str], *, over: bool = False) -> str:
        writer = this_holder("places")
        uri = join(self._folder(), f"{writer.nonce}.json")
        self.storage.create(uri, json.dumps(to_json(_Note(tuple(sorted(dates)), writer, over))).encode())
        return uri

    def _folder(self) -> str:
        return join(self.output, "latest", "_writing")


def _read(uri: str, raw: bytes) -> Left:
    try:
        note = of_json(_Note, json.loads(raw))
        writer = note.writer
        old = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(writer.at) > _GONE_AFTER
        return Left(uri, frozenset(note.dates), note.over or old or is_dead(writer))
    except (ValueError, TypeError, LookupError, AttributeError):
        return Left(uri, None, ended=True)


FILES = "files.json"
VIEW = "view.sql"
LINKS = "_symlink_format_manifest/manifest"

_AT_ONCE = 8
"""The number of dates that are written at once; an output without these folders may have thousands of dates."""

_MAX_ROUNDS = 100

_NAMED = 3
"""The most folders or dates that a note names; an output that was copied may have thousands."""


def refresh(
    storage: Storage,
    output: str,
    job: str,
    date: str | None = None,
    *,
    now: Snapshot | None = None,
    behind: bool = False,
) -> str:
    """Update `latest/` and `dates/` to the newest snapshot. Returns what could not be done and why, for a note.

    job: its name. date: a night to update even if it has not changed, because it may just have been swept. now: the
    newest snapshot, if it was read already. behind: do nothing if the folders say that they show the newest snapshot.
    """
    try:
        return _refresh(storage, output, job, {date} if date else set(), now, behind)
    except (StorageError, JobError) as error:
        return f"latest/ and dates/ could not be written, the next command does it: {error}"


def _refresh(storage: Storage, output: str, job: str, dates: set[str], now: Snapshot | None, behind: bool) -> str:
    now = now or publish.newest(storage, output)
    if not now.number:
        return ""
    shown = _shown(storage, output, now)
    notes = Notes(storage, output)
    others = notes.others()
    if behind and not (dates or others) and shown == now:
        return ""
    if any(left.dates is None for left in others):
        shown = None
    dates = dates.union(*(left.dates or () for left in others))
    for _ in range(_MAX_ROUNDS):
        changed = dates | _changed(storage, output, shown, now)
        places = _Places(storage, output, job, now, now.nights(), partial(notes.note, changed))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(places.show_date, sorted(changed)))
        problem = places.show_latest()
        before = shown.latest() if shown else None
        if before is not None and before in now.runs:
            places.read(before)  # and sweep: its workers that were cut off have ended by now
        if publish.numbers(storage, output)[-1:] == [now.number]:
            notes.remove(others, places.unfinished if places.problems else None)
            return "; ".join(filter(None, [problem, *places.problems, *places.swept]))
        dates = dates | places.unfinished
        shown, now = now, publish.newest(storage, output)
    raise JobError(f"publications in {output} are created faster than this command can follow")


def _shown(storage: Storage, output: str, now: Snapshot) -> Snapshot | None:
    """The snapshot that the folders show; None if this is not known. now: the newest.

    Of an output that was moved or copied nothing is known: the folders name files where it was.
    """
    try:
        found = json.loads(storage.read(join(output, "latest", FILES)))
        if found["manifest"] and not str(found["manifest"]).startswith(join(output, "runs", "")):
            return None
        number = int(found["publication"])
        return now if number == now.number else publish.snapshot(storage, output, number)
    except (Missing, Damaged, JobError, ValueError, TypeError, LookupError):
        return None


def _changed(storage: Storage, output: str, before: Snapshot | None, now: Snapshot) -> set[str]:
    """The dates that changed for readers since an earlier snapshot; all dates if that snapshot is not known."""
    if before is None:
        return {*now.nights(), *storage.subfolders(join(output, "dates"))}
    old, new = ({(date, run, each.runs[run]) for date, run in each.nights().items()} for each in (before, now))
    return {date for date, _, _ in old ^ new}


@dataclass(frozen=True)
class _Places:
    """The folders for readers of one output, for one snapshot.

    nights: the snapshot's nights, computed once. before_write: called before anything is written or removed. swept:
    what was deleted beside the parts, in sentences. folders: those that are where a link belongs. refused: why dates
    could not be written. unfinished: the dates of both.
    """

    storage: Storage
    output: str
    job: str
    now: Snapshot
    nights: dict[str, str]
    before_write: Callable[[], None]
    swept: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)
    _latest: list[PublishedNight] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What is left to do, in sentences for a person."""
        folders, refused = sorted(self.folders), sorted(self.refused)
        said = []
        if folders:
            what, them, links = "a folder where a link belongs", "it", "the link"
            if len(folders) > 1:
                what, them, links = "folders where links belong", "them, or all of latest/ and dates/,", "the links"
            said.append(
                f"{_some(folders)} {'is' if len(folders) == 1 else 'are'} {what}, as after a copy that followed links: "
                f"remove {them} if nobody keeps files of their own there; `nightjar files JOB` then makes {links}"
            )
        if refused:
            said.append(f"dates/ is not complete, the next command tries again: {_some(refused)}")
        return said

    def show_date(self, date: str) -> None:
        """Write the folder of a date, or empty it if nothing is published for the date. What cannot be written of it
        keeps no other date from being written.
        """
        run = self.nights.get(date)
        try:
            whole = self._show(join(self.output, "dates", date), f"{self.job}-{date}", self.read(run) if run else None)
        except Transient:
            raise  # the storage is away: it would not take the other dates either
        except StorageError as error:
            self.refused.append(str(error))
            whole = False
        if not whole:
            self.unfinished.add(date)

    def show_latest(self) -> str:
        """Write the folder of the latest night. Returns why that night cannot be read, if it cannot."""
        run, place = self.now.latest(), join(self.output, "latest")
        nothing = PublishedNight(self.now.number, problem=f"nothing is published in {self.output}")
        night = self.read(run) if run else nothing
        self._show(place, self.job, night)
        return f"{place} cannot show the run {run!r}: {night.problem}" if run and night.problem else ""

    def read(self, run: str) -> PublishedNight:
        """Read a run, and sweep it. The run of the latest night, which is in two folders, is read once."""
        if run == self.now.latest() and self._latest:
            return self._latest[0]
        try:
            night = night_of(self.storage, self.output, self.now.number, run, self.now.runs[run])
            self.swept.extend(filter(None, [sweep_late(self.storage, night)]))
        except (Missing, JobError) as error:
            # Somebody deleted or changed this night; that must not stop the other nights.
            night = PublishedNight(self.now.number, problem=str(error))
        if run == self.now.latest():
            self._latest.append(night)
        return night

    def _show(self, place: str, view: str, night: PublishedNight | None) -> bool:
        """Returns whether every link could be made, or taken away: none of them keeps the files from being written."""
        whole = True
        if is_local(place):
            whole = self._link(place, night, DATA, DATA)
            for form in EXPORTS:
                exported = night if night and form in night.exports else None
                whole = self._link(place, exported, form, f"{exports.FOLDER}/{form}") and whole
        self._put(join(place, LINKS), night.as_links() if night and night.run else None)
        self._put(join(place, VIEW), night.as_view(view) if night else None)
        self._put(join(place, FILES), night.as_json() if night else None)
        return whole

    def _put(self, uri: str, text: str | None) -> None:
        """Make the object contain this text, or delete it for None."""
        if text is None:
            self.before_write()
            self.storage.delete([uri])
            return
        # A local path may not be UTF-8.
        data = text.encode(errors="surrogateescape")
        try:
            same = self.storage.read(uri) == data
        except Missing:
            same = False
        if not same:
            self.before_write()
            self.storage.write(uri, data)

    def _link(self, place: str, night: PublishedNight | None, name: str, folder: str) -> bool:
        """Point a link at a folder of the night's revision: that of its data, or of a form of its exports.

        Until the data folder has been swept, it may have parts that are not published. Until then the link still leads
        to an earlier night, unless readers must not see that night any more. A folder of its name is data that a person
        copied there, and is left. Returns whether there is none.
        """
        link, root = join(place, name), self.output.rstrip("/")
        up = "../" * place.removeprefix(root).count("/")
        if localstore.is_folder(link):
            self.folders.append(link)
            return False
        there = localstore.read_link(link)
        if night and night.data:
            # A relative link, because the output may be moved, or mounted elsewhere.
            wanted = f"{up}{night.folder.removeprefix(root + '/')}/{folder}"
            if there != wanted:
                self.before_write()
                localstore.replace_link(link, wanted)
            return True
        if there is None:
            return True
        published = {f"{up}{folder_of(run, entry)}/{folder}" for run, entry in self.now.runs.items()}
        if not (night and night.run and there in published):
            self.before_write()
            self.storage.delete([link])
        return True


def _some(said: list[str]) -> str:
    """The first of them, and the number of the others."""
    more = f" and {len(said) - _NAMED:,} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more
