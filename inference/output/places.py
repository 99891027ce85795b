"""`latest/` and `dates/<date>/` in the output: what readers see, for those who cannot run a command.

They are made from the newest snapshot once it is there, and may be behind it: the snapshot is the truth. Each file is
replaced whole. `latest/files.json`, written last, says which snapshot they show: whoever finds it behind does what is
missing, for the dates that have changed since. Two commands may do so at once: each looks again when it is done, and
if there is a newer snapshot then, writes anew what it may have written over. Its note (`writing`) says which dates
those are, should it be killed before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError, Missing, StorageError
from nightjar.inference.output import outcomes
from nightjar.inference.output import publications as publish
from nightjar.inference.output.publications import Published, Snapshot
from nightjar.inference.output.writing import Notes
from nightjar.inference.storage import local as localstore
from nightjar.inference.storage.protocol import Storage, is_local, join

FILES = "files.json"
VIEW = "view.sql"
LINKS = "_symlink_format_manifest/manifest"
FOLDER = "data"

_AT_ONCE = 8
"""Dates written at once: of an output that has no places yet there may be thousands."""

_MAX_ROUNDS = 100


@dataclass(frozen=True)
class PublishedNight:
    """A published run as readers need it. One without `run` stands for nothing that can be read; `problem` says why.

    manifest: its URI. folder: the revision's. data: the folder that holds the data files and nothing else; None until
    it was swept. parts: name (relative to `folder`), rows and bytes of each data file, in input order.
    """

    publication: int
    run: str | None = None
    date: str | None = None
    revision: int | None = None
    manifest: str | None = None
    folder: str = ""
    data: str | None = None
    parts: pa.Table = field(default_factory=lambda: outcomes.NO_PARTS)
    problem: str = ""

    def files(self) -> Iterator[dict[str, Any]]:
        """URI, rows and bytes of each data file."""
        for line in outcomes.lines(self.parts):
            yield {"uri": join(self.folder, line["name"]), "rows": line["rows"], "bytes": line["size"]}

    def as_json(self) -> str:
        """`files.json`: a line for each file."""
        about = {
            "publication": self.publication,
            "run": self.run,
            "date": self.date,
            "revision": self.revision,
            "manifest": self.manifest,
            "data": self.data,
            "rows": outcomes.total(self.parts, "rows"),
            "bytes": outcomes.total(self.parts, "size"),
            **({"problem": self.problem} if self.problem else {}),
        }
        files = ",\n".join(f"  {json.dumps(file)}" for file in self.files())
        head = json.dumps(about, indent=1).removesuffix("\n}")
        return head + ',\n "files": ' + (f"[\n{files}\n ]" if files else "[]") + "\n}\n"

    def as_links(self) -> str:
        """The URIs, one a line: what Hive calls a symlink text file."""
        return "".join(f"file://{uri}\n" if is_local(uri) else f"{uri}\n" for uri in self._uris())

    def as_view(self, name: str) -> str:
        """SQL that makes a view for DuckDB. It has no view of no files: there the view says why it has none."""
        create = f'create or replace view "{name}" as\n'
        if not self.parts.num_rows:
            return f"{create}select error({_quoted(self.problem or 'this night has no files')});\n"
        files = ",\n".join(f"  {_quoted(_literal(uri))}" for uri in self._uris())
        # Of a folder named date=2026-11-19 DuckDB would make a column.
        return f"{create}select * from read_parquet([\n{files}\n], hive_partitioning = false);\n"

    def _uris(self) -> Iterator[str]:
        return (file["uri"] for file in self.files())


def published(storage: Storage, output: str, run_id: str | None) -> PublishedNight:
    """A published run, by default the latest night.

    Raises:
        JobError: it is not published; or its manifest or list of shards is not what was published.
        Missing: one of these was deleted.
    """
    now = publish.newest(storage, output)
    return _night(storage, output, now.number, *publish.seen(now, output, run_id))


def refresh(
    storage: Storage,
    output: str,
    job: str,
    date: str | None = None,
    *,
    now: Snapshot | None = None,
    behind: bool = False,
) -> str:
    """Let `latest/` and `dates/` show the newest snapshot; returns what could not be done and why, for a note.

    job: its name. date: a night to look at whether or not it has changed: it may have been swept just now. now: the
    newest snapshot, where it was read already. behind: do nothing where they say that they show it.
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
        if publish.numbers(storage, output)[-1:] == [now.number]:
            notes.remove(others)
            return problem
        shown, now = now, publish.newest(storage, output)
    raise JobError(f"publications in {output} are created faster than this command can follow")


def _shown(storage: Storage, output: str, now: Snapshot) -> Snapshot | None:
    """The snapshot that the places show; None if nobody can say. now: the newest."""
    try:
        number = int(json.loads(storage.read(join(output, "latest", FILES)))["publication"])
        return now if number == now.number else publish.snapshot(storage, output, number)
    except (Missing, JobError, ValueError, TypeError, LookupError):
        return None


def _changed(storage: Storage, output: str, before: Snapshot | None, now: Snapshot) -> set[str]:
    """The dates of which readers see something else than in an earlier snapshot; all, if that is not known."""
    if before is None:
        return {*now.nights(), *storage.subfolders(join(output, "dates"))}
    old, new = ({(date, run, each.runs[run]) for date, run in each.nights().items()} for each in (before, now))
    return {date for date, _, _ in old ^ new}


@dataclass(frozen=True)
class _Places:
    """The places of one output, as one snapshot wants them.

    nights: the snapshot's, made once. before_write: called before anything is written or removed.
    """

    storage: Storage
    output: str
    job: str
    now: Snapshot
    nights: dict[str, str]
    before_write: Callable[[], None]
    _latest: list[PublishedNight] = field(default_factory=list)

    def show_date(self, date: str) -> None:
        """Write the place of a date, or empty it if nothing is published of it."""
        run = self.nights.get(date)
        self._show(join(self.output, "dates", date), f"{self.job}-{date}", self._read(run) if run else None)

    def show_latest(self) -> str:
        """Write the place of the latest night; returns why that night cannot be read, if it cannot."""
        run, place = self.now.latest(), join(self.output, "latest")
        nothing = PublishedNight(self.now.number, problem=f"nothing is published in {self.output}")
        night = self._read(run) if run else nothing
        self._show(place, self.job, night)
        return f"{place} cannot show the run {run!r}: {night.problem}" if run and night.problem else ""

    def _read(self, run: str) -> PublishedNight:
        """A run; that of the latest night, which stands in two places, is read once."""
        if run == self.now.latest() and self._latest:
            return self._latest[0]
        try:
            night = _night(self.storage, self.output, self.now.number, run, self.now.runs[run])
        except (Missing, JobError) as error:
            # Somebody deleted or changed it: no other night must suffer for that.
            night = PublishedNight(self.now.number, problem=str(error))
        if run == self.now.latest():
            self._latest.append(night)
        return night

    def _show(self, place: str, view: str, night: PublishedNight | None) -> None:
        if is_local(place):
            self._link(place, night)
        self._put(join(place, LINKS), night.as_links() if night and night.run else None)
        self._put(join(place, VIEW), night.as_view(view) if night else None)
        self._put(join(place, FILES), night.as_json() if night else None)

    def _put(self, uri: str, text: str | None) -> None:
        """Let the object hold this text, or not be there."""
        if text is None:
            self.before_write()
            self.storage.delete([uri])
            return
        # A path of this machine need not be UTF-8.
        data = text.encode(errors="surrogateescape")
        try:
            same = self.storage.read(uri) == data
        except Missing:
            same = False
        if not same:
            self.before_write()
            self.storage.write(uri, data)

    def _link(self, place: str, night: PublishedNight | None) -> None:
        """Let the link of a place lead to the night's folder.

        Until that was swept, it may hold parts that are not published. The link goes on leading to an earlier night
        then, unless readers shall not see that one any more.
        """
        link, root = join(place, FOLDER), self.output.rstrip("/")
        up = "../" * place.removeprefix(root).count("/")
        there = localstore.read_link(link)
        if night and night.data:
            # Relative: the output may be moved, or mounted elsewhere.
            wanted = f"{up}{night.data.removeprefix(root + '/')}"
            if there != wanted:
                self.before_write()
                localstore.replace_link(link, wanted)
            return
        published = {f"{up}{_revision(run, entry)}/{FOLDER}" for run, entry in self.now.runs.items()}
        if there and not (night and night.run and there in published):
            self.before_write()
            self.storage.delete([link])


def _night(storage: Storage, output: str, number: int, run: str, entry: Published) -> PublishedNight:
    parts = publish.data_parts(storage, output, run, entry)
    folder = join(output, _revision(run, entry))
    try:
        storage.stat(join(folder, "_SUCCESS"))
        data = join(folder, FOLDER)
    except Missing:
        data = None
    return PublishedNight(number, run, entry.date, entry.revision, join(output, entry.manifest), folder, data, parts)


def _revision(run: str, entry: Published) -> str:
    return f"runs/{run}/r{entry.revision}"


def _literal(uri: str) -> str:
    """A path as a pattern that means itself: DuckDB takes each for a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in uri)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
