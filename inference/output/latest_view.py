"""`latest/` and `dates/<date>/` in the output, for readers who cannot run a command.

These folders are made from the newest snapshot, and may be behind it: the snapshot is the truth. Each file is replaced
whole. `latest/files.json` is written last, and says which snapshot the folders show. A command that finds the folders
behind updates the dates that have changed since. Two commands may do so at once. Each looks again when it is done, and
if there is a newer snapshot, writes again what it may have overwritten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from nightjar.inference.errors import Damaged, JobError, Missing, StorageError
from nightjar.inference.jsonform import SELDOM, to_json
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import Files, night_of, sweep_late
from nightjar.inference.output.parts import DATA
from nightjar.inference.output.publications import Snapshot
from nightjar.inference.storage import local as localstore
from nightjar.inference.storage.protocol import Storage, at_once, is_local, join

FILES = "files.json"
VIEW = "view.sql"
LINKS = "_symlink_format_manifest/manifest"

_MAX_ROUNDS = 100


def refresh(storage: Storage, output: str, job: str, date: str | None = None, *, now: Snapshot | None = None) -> str:
    """Update `latest/` and `dates/` to the newest snapshot. Returns what could not be done and why, for a note.

    job: its name. date: a night to update even if it has not changed, because it may just have been swept; without it
    nothing is done if the folders say that they show the newest snapshot. now: that, if it was read already.
    """
    try:
        return _refresh(storage, output, job, {date} if date else set(), now)
    except (StorageError, JobError) as error:
        return f"latest/ and dates/ could not be written, the next command does it: {error}"


def _refresh(storage: Storage, output: str, job: str, dates: set[str], now: Snapshot | None) -> str:
    now = now or publish.newest(storage, output)
    if not now.number:
        return ""
    shown = _shown(storage, output, now)
    if not dates and shown == now:
        return ""
    for _ in range(_MAX_ROUNDS):
        places = _Places(storage, output, job, now, now.nights())
        list(at_once(places.show_date, sorted(dates | _changed(storage, output, shown, now))))
        problem = places.show_latest()
        before = shown.latest() if shown else None
        if before is not None and before in now.runs:
            places.read(before)  # and sweep: its workers that were cut off have ended by now
        if publish.numbers(storage, output)[-1:] == [now.number]:
            return "; ".join(filter(None, [problem, *places.swept]))
        shown, now = now, publish.newest(storage, output)
    raise JobError(f"publications in {output} are created faster than this command can follow")


def _shown(storage: Storage, output: str, now: Snapshot) -> Snapshot | None:
    """The last snapshot of which the folders show everything; None if this is not known. now: the newest.

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
    return now.dates_unlike(before)


@dataclass(frozen=True)
class _Places:
    """The folders for readers of one output, for one snapshot.

    nights: the snapshot's nights, computed once. swept: what was deleted beside the parts, in sentences.
    """

    storage: Storage
    output: str
    job: str
    now: Snapshot
    nights: dict[str, str]
    swept: list[str] = field(default_factory=list)
    _latest: list[Files] = field(default_factory=list)

    def show_date(self, date: str) -> None:
        """Write the folder of a date, or empty it if nothing is published for the date."""
        run = self.nights.get(date)
        self._show(join(self.output, "dates", date), f"{self.job}-{date}", self.read(run) if run else None)

    def show_latest(self) -> str:
        """Write the folder of the latest night. Returns why that night cannot be read, if it cannot."""
        run, place = self.now.latest(), join(self.output, "latest")
        nothing = Files(self.storage, self.now.number, problem=f"nothing is published in {self.output}")
        night = self.read(run) if run else nothing
        self._show(place, self.job, night)
        return f"{place} cannot show the run {run!r}: {night.problem}" if run and night.problem else ""

    def read(self, run: str) -> Files:
        """Read a run, and sweep it. The run of the latest night, which is in two folders, is read once."""
        if run == self.now.latest() and self._latest:
            return self._latest[0]
        try:
            night = night_of(self.storage, self.output, self.now.number, run, self.now.runs[run])
            self.swept.extend(filter(None, [sweep_late(self.storage, night)]))
        except (Missing, JobError) as error:
            # Somebody deleted or changed this night; that must not stop the other nights.
            night = Files(self.storage, self.now.number, problem=str(error))
        if run == self.now.latest():
            self._latest.append(night)
        return night

    def _show(self, place: str, view: str, night: Files | None) -> None:
        if is_local(place):
            self._link(place, night)
        self._put(join(place, LINKS), as_links(night) if night and night.run_id else None)
        self._put(join(place, VIEW), as_view(night, view) if night else None)
        self._put(join(place, FILES), as_json(night) if night else None)

    def _put(self, uri: str, text: str | None) -> None:
        """Make the object contain this text, or delete it for None."""
        if text is None:
            self.storage.delete([uri])
            return
        # A local path may not be UTF-8.
        data = text.encode(errors="surrogateescape")
        try:
            same = self.storage.read(uri) == data
        except Missing:
            same = False
        if not same:
            self.storage.write(uri, data)

    def _link(self, place: str, night: Files | None) -> None:
        """Point a link at the data of the night's revision.

        Until the data folder has been swept, it may have parts that are not published. Until then the link still leads
        to an earlier night, unless readers must not see that night any more.
        """
        link, root = join(place, DATA), self.output.rstrip("/")
        up = "../" * place.removeprefix(root).count("/")
        there = localstore.read_link(link)
        if night and night.data:
            # A relative link, because the output may be moved, or mounted elsewhere.
            wanted = f"{up}{night.folder.removeprefix(root + '/')}/{DATA}"
            if there != wanted:
                localstore.replace_link(link, wanted)
            return
        if there is None:
            return
        published = {f"{up}runs/{run}/r{entry.revision}/{DATA}" for run, entry in self.now.runs.items()}
        if not (night and night.run_id and there in published):
            self.storage.delete([link])


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One Parquet file of a night, which is never rewritten. bytes: its size."""

    uri: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFiles:
    """`files.json`: the exact files of a published night, in input order, with the totals of their rows and bytes.

    If there is no night that can be read, run, date, revision and manifest are null, and `problem` says why.
    """

    publication: int
    """The number of the output's newest publication when the file was written; 0 if nothing was published."""

    run: str | None
    """The name of the run."""

    date: str | None
    """The run's logical time: a day as `2026-11-28`, or an instant in UTC as `2026-11-28T0530`."""

    revision: int | None
    """The number of the revision."""

    manifest: str | None
    """The URI of the manifest."""

    data: str | None
    """The folder with these files and no others; null until the folder has been swept."""

    rows: int
    """Rows of all files."""

    bytes: int
    """Bytes of all files."""

    problem: str | None = field(default=None, metadata=SELDOM)
    """Why no night can be read; else left out."""

    files: tuple[PublishedFile, ...]
    """The files, in input order."""


def as_json(night: Files) -> str:
    """`files.json`: a line for each file."""
    about = PublishedFiles(
        publication=night.publication,
        run=night.run_id or None,
        date=night.date or None,
        revision=night.revision or None,
        manifest=night.manifest or None,
        data=night.data,
        rows=night.rows,
        bytes=night.bytes,
        problem=night.problem or None,
        files=(),
    )
    each = (PublishedFile(uri, *sizes) for uri, *sizes in night.sized())
    files = ",\n".join(f"  {json.dumps(to_json(file))}" for file in each)
    head = json.dumps(to_json(about), indent=1).removesuffix("[]\n}")
    return head + (f"[\n{files}\n ]" if files else "[]") + "\n}\n"


def as_links(night: Files) -> str:
    """The URIs, one per line, as in Hive's symlink text files."""
    return "".join(f"file://{uri}\n" if is_local(uri) else f"{uri}\n" for uri in night.uris)


def as_view(night: Files, name: str) -> str:
    """SQL that creates a view for DuckDB. One of no files raises an error that says why, because DuckDB has none."""
    create = f'create or replace view "{name}" as\n'
    if not night.uris:
        return f"{create}select error({_quoted(night.problem or 'this night has no files')});\n"
    files = ",\n".join(f"  {_quoted(_literal(uri))}" for uri in night.uris)
    # DuckDB would turn a folder named date=2026-11-19 into a column.
    return f"{create}select * from read_parquet([\n{files}\n], hive_partitioning = false);\n"


def _literal(uri: str) -> str:
    """A path with its wildcards escaped, because DuckDB reads every path as a glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in uri)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
