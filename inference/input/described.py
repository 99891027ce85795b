"""What is in each file of the input, or why nobody can tell."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from nightjar.inference.errors import Denied, InputCorrupt, JobError, Missing, SchemaMismatch, SourceFailed
from nightjar.inference.input.schemas import SharedSchemas
from nightjar.inference.input.sources import unsupported
from nightjar.inference.input.sources.protocol import Description
from nightjar.inference.input.sources.reading import describe, source_of
from nightjar.inference.job.model import Job
from nightjar.inference.storage.protocol import Entry, Storage

_READERS = 32
"""Files that are looked into at the same time: a look is a request or two, and mostly waiting."""

WINDOW = 4096
"""The most files whose descriptions are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason why a file has no description. denied: reading it is not allowed."""

    why: str
    denied: bool


@dataclass
class AllUnread:
    """Counts the files without a description, and makes the error for an input with no other files."""

    job: Job
    files: int = 0
    denied: int = 0
    first: str = ""

    def add(self, unread: Unread) -> None:
        """Count one file."""
        self.files, self.denied, self.first = self.files + 1, self.denied + unread.denied, self.first or unread.why

    def error(self) -> JobError | Denied:
        if not self.files:
            return JobError(
                f"{self.job.input.key}: the files at {self.job.input.shown} were deleted after they had been listed"
            )
        if self.denied == self.files:
            # If every file is denied, the credentials are wrong rather than the files.
            return Denied(self.first)
        advice = unsupported.advice(self.job.input.uri)
        return JobError(
            f"{self.job.input.key}: no file can be read; the first: {self.first}" + (f". {advice}" if advice else "")
        )


def described(
    storage: Storage, job: Job, entries: Iterator[Entry], ahead: int = WINDOW
) -> Iterator[tuple[Entry, Description | Unread | None]]:
    """Yield each file with its description, None if the file is gone. Up to `ahead` files are described ahead."""
    kinds = SharedSchemas()
    with ThreadPoolExecutor(_READERS) as pool:
        while window := list(islice(entries, ahead)):
            found = pool.map(lambda entry: _describe(storage, job, entry, kinds), window)
            yield from zip(window, found, strict=True)
            ahead = min(2 * ahead, WINDOW)


def _describe(storage: Storage, job: Job, entry: Entry, kinds: SharedSchemas) -> Description | Unread | None:
    """Describe a file, or say why it cannot be described; None if the file does not exist any more."""
    try:
        found = describe(storage, job, entry)
        return replace(found, schema=kinds.shared(found.schema))
    except Missing:
        return None
    except (InputCorrupt, SchemaMismatch, SourceFailed, Denied) as error:
        return Unread(str(error), isinstance(error, Denied))


def no_rows(job: Job, files: int, first: str) -> JobError:
    """The error for an input without rows. files: their number. first: the uri of the first one."""
    # What a database is read by is no file that a person could look at.
    named = first if source_of(job, first).of_files else job.input.uri
    which = f"the file {named} holds" if files == 1 else f"the {files} files at {job.input.shown} hold"
    return JobError(f"{job.input.key}: {which} no rows")
