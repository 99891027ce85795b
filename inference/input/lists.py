"""A list of inputs: a text file with a file, a folder or a pattern on each line, which `input.list` names.

It is read whenever the input is looked for, so a list that was changed is input that was changed.
"""

from __future__ import annotations

import json
from pathlib import Path

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.input.listing import input_folder
from nightjar.inference.input.sources import lines
from nightjar.inference.job.input import Input
from nightjar.inference.job.locations import absolute, check_place, is_database, unescaped
from nightjar.inference.job.model import Job
from nightjar.inference.storage.locations import Reach, host_of
from nightjar.inference.storage.protocol import Storage, is_local, is_web


def with_list(storage: Storage, job: Job) -> Job:
    """The job with the inputs of its list, each once; the job itself if it has no list, if the list was read already,
    or if it is not there: a run may wait for it.

    Relative paths are looked up beside the job file, as those in it are.

    Raises:
        JobError: Nothing is listed, or a line is no place, or a place that the job does not allow.
            Names `input.list` and the line.
        StorageError: The list cannot be read.
    """
    uri = job.input.list_
    if uri is None or job.input.lines:
        return job
    try:
        content = storage.read(uri)
    except Missing:
        return job
    found, reach = named_in(uri, content, Path(job.folder)), Reach(own_places(job.input))
    for place, number in found.items():
        check_within(reach, job.input, input_folder(place), f"input.list: {uri}, line {number}")
    if not found:
        raise JobError(f"input.list: {uri} names no files: each of its lines is blank or a comment")
    return job.model_copy(update={"input": job.input.listing(found)})


def own_places(given: Input) -> tuple[str, ...]:
    """The places where all input lies: the folder or the web server of the list, or the uris; and `input.within`."""
    listed = given.list_ and (given.list_.rpartition("/")[0] or "/")
    return (*map(host_of, [listed] if listed else map(input_folder, given.uris)), *given.within)


def check_within(reach: Reach, given: Input, uri: str, where: str) -> None:
    """Check that a location which data names lies in one of `own_places`. where: the key, and who names it.

    Raises:
        JobError: It does not.
    """
    if reach.has(uri):
        return
    uri = uri.partition("?")[0] if is_web(uri) else uri
    real = reach.real(uri) if is_local(uri) else uri
    leads = f"{uri} leads to {real}, which" if real != uri else uri
    more = "" if len(own := own_places(given)) == 1 else f" and {len(own) - 1} more"
    raise JobError(
        f"{where}: {leads} is not below {own[0]}{more}; if it is input, add its place to the job: "
        f"input: {{within: [{json.dumps(host_of(real) if is_web(real) else real.rpartition('/')[0] or '/')}]}}"
    )


def named_in(uri: str, content: bytes, folder: Path) -> dict[str, int]:
    """The inputs that a list names, with the number of the line that names each first. uri: of the list.

    Raises:
        JobError: A line is no place. Names `input.list` and the line.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(content.removeprefix(lines.BOM).splitlines(), 1):
        if place := _place(line, f"input.list: {uri}, line {number}", folder):
            found.setdefault(place, number)
    return found


def _place(line: bytes, where: str, folder: Path) -> str:
    """What a line names; empty if it names nothing."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as error:
        raise JobError(f"{where}: it is not UTF-8") from error
    if not text or text.startswith("#"):
        return ""
    if is_database(text):
        raise JobError(f"{where}: a database is the only input of a job; name it in input.uri")
    # Such names are often made by programs: a brace is a brace, and no date.
    place = absolute(text.replace("{", "{{").replace("}", "}}"), folder, pattern=True)
    check_place(place, where, web=True)
    return unescaped(place)
