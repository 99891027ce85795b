"""The owner of an output: `job.json` names the job. It is created only if absent, and never rewritten."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nightjar.inference.errors import AlreadyExists, JobError, Missing
from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.output.publications import now_utc
from nightjar.inference.storage.protocol import Storage, join


@dataclass(frozen=True, slots=True)
class Owner:
    """What `job.json` says: the job's name, and since when."""

    job: str
    since: str = ""


def claim_output(storage: Storage, output: str, name: str) -> None:
    """Claim the output for this job, or find that it belongs to this job already.

    Raises:
        JobError: it belongs to another job; names `output.uri`.
    """
    try:
        storage.create(_uri(output), json.dumps(to_json(Owner(name, now_utc()))).encode())
    except AlreadyExists:
        check_owner(storage, output, name)


def check_owner(storage: Storage, output: str, name: str) -> str | None:
    """Check that the output is free or belongs to this job; changes nothing.

    Returns:
        The job to which it belongs, None if it is free.

    Raises:
        JobError: it belongs to another job.
    """
    uri = _uri(output)
    try:
        owner = of_json(Owner, json.loads(storage.read(uri))).job
    except Missing:
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise JobError(f"output.uri: {uri} was not written by Nightjar; give {name!r} a place of its own") from None
    if owner != name:
        raise JobError(f"output.uri: {output} belongs to the job {owner!r}; give {name!r} a place of its own")
    return owner


def _uri(output: str) -> str:
    return join(output, "job.json")
