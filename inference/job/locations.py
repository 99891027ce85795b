"""Locations in a job file: made absolute, checked, and filled in for a date."""

from __future__ import annotations

import os.path
import re
import string
import unicodedata
from pathlib import Path

from nightjar.inference.errors import JobError
from nightjar.inference.job.times import moment_of
from nightjar.inference.messages import clip
from nightjar.inference.storage.locations import is_registered, location

_DATABASE = re.compile(
    r"postgresql://([^:@/?#]+@)?([^:@/?#\[\]]*|\[[0-9a-fA-F:]+\])(:\d+)?(/[^:@/?#]*)?(\?(?!.*(?i:pass(word|wd)=))[^@#]*)?"
)
"""A database's location without a password, however it may be written."""

_WITH_USER = re.compile(r"[a-zA-Z][\w+.-]*://[^/?#]*@")
"""The beginning of a location with somebody's name in it, and perhaps a password."""


_PLACE = re.compile(r"(s3|gs|az)://[\w.:$-]+(/|$)", re.ASCII)
_WEB = re.compile(r"https?://[\w.-]+(:\d{1,5})?([/?]|$)", re.ASCII)
"""Locations with a bucket or a host. At other characters in it the client of S3 panics; a host beyond ASCII has two
forms, and is no longer the one that the job names."""

_LAST_PORT = 65_535


class _Date:
    """A logical time as `{date}` in a location: by itself the day, and with a format what that makes of the moment."""

    def __init__(self, date: str) -> None:
        self._date = date

    def __format__(self, form: str) -> str:
        moment = moment_of(self._date).replace(tzinfo=None)
        return format(moment, form) if form else moment.date().isoformat()


def fill(text: str, date: str) -> str:
    """A location with its dates filled in, without the query of a signed URL. date: the logical time."""
    return location(text.format(date=_Date(date)))


def unescaped(uri: str) -> str:
    """A location without dates, with each doubled brace as the one that it stands for, and as of `fill`."""
    return location(uri.replace("{{", "{").replace("}}", "}"))


def is_dated(uri: str) -> bool:
    """Whether a location differs by date."""
    return any(field is not None for _, field, _, _ in string.Formatter().parse(uri))


def absolute(uri: str, folder: Path, *, pattern: bool = False) -> str:
    """An absolute location, relative to the job's folder. Braces and wildcards in the folder's own name are escaped."""
    uri = uri.removeprefix("file://").removeprefix("sqlite:///")  # behind which an absolute path has its slash
    if "://" in uri or is_registered(uri):
        return uri
    base = str(folder).replace("{", "{{").replace("}", "}}")
    base = re.sub(r"[*?\[]", r"[\g<0>]", base) if pattern else base
    # A trailing slash says "a folder", and is kept for the listing to see.
    home = os.path.expanduser(uri)  # noqa: PTH111 (pathlib raises RuntimeError where nobody has that name)
    return os.path.normpath(Path(base) / home) + ("/" if uri.endswith("/") else "")


def is_database(uri: str) -> bool:
    """Whether a location names a database's server."""
    return uri.startswith(("postgresql:", "postgres:"))


def check_database(text: str, where: str) -> None:
    """Check a database's location; its dates may be open. where: the file and key that name it.

    Raises:
        JobError: It is not valid, or has a password. The message does not show it.
    """
    if not _DATABASE.fullmatch(_filled(text, where) if "{" in text else text):
        raise JobError(
            f"{where}: write a database as postgresql://user@host:5432/database, without a password; libpq takes that "
            "from PGPASSWORD or ~/.pgpass on each machine"
        )


def check_place(text: str, where: str, *, web: bool = False) -> None:
    """Check that a location is valid; its dates may be open. where: the file and key that name it. web: whether it may
    be a file of a web server.

    Raises:
        JobError: It is not valid.
    """
    if _WITH_USER.match(text):
        raise JobError(
            f"{where}: a place has no name or password before an @; it would be published with the results. "
            "Credentials come from the environment of each machine"
        )
    filled, shown = _filled(text, where), location(text)
    if shown != text and not re.match("https?://", text):
        raise JobError(f"{where}: {shown} has a signature behind it, which only https:// has; write the signed URL")
    if "://" in text and not (_PLACE.match(filled) or (web and _WEB.match(filled))):
        more = "; or https:// with a file (a host beyond ASCII as xn--…)" if web else ""
        raise JobError(f"{where}: {shown!r} is no place; write a path, or s3://, gs:// or az:// with a bucket{more}")
    if re.match("https?://", text) and "#" in text:
        raise JobError(f"{where}: {shown!r} has a #, and a web server is not asked for what follows it; write %23")
    if re.match("https?://", text) and filled.endswith("/"):
        raise JobError(f"{where}: {shown!r} is a folder of a web server, which lists no files; name each file")
    if re.match(r"https?://[^?#]*[*[]", filled):
        raise JobError(f"{where}: {shown!r} is a pattern of a web server, which lists no files; name each file")
    if problem := _no_place(filled):
        raise JobError(f"{where}: {clip(repr(shown))} is no place: {problem}")


def _filled(text: str, where: str) -> str:
    try:
        fields = [
            (field + (f"!{conversion}" if conversion else ""), spec or "")
            for _, field, spec, conversion in string.Formatter().parse(text)
            if field is not None
        ]
    except ValueError as error:
        raise JobError(f"{where}: {error} in {location(text)!r}; write a brace that is meant as {{{{ or }}}}") from None
    for field, spec in fields:
        # A spec may hold fields of its own, whose attributes nobody has checked.
        if field != "date" or "{" in spec:
            name = f"{field}:{spec}" if spec and field == "date" else field
            raise JobError(f"{where}: {{{name}}} is unknown; write {{date}} or {{date:%Y/%m/%d}}")
    try:
        return fill(text, "2026-11-19")
    except (ValueError, LookupError) as error:
        raise JobError(
            f"{where}: {location(text)!r} cannot be filled in ({error}); write {{date}} or {{date:%Y/%m/%d}}"
        ) from None


def _no_place(filled: str) -> str:
    """Why a location is not valid; empty if it is."""
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in filled):
        return "it holds a control character"
    parts = filled.partition("://")[2].split("/")[1:] if "://" in filled else filled.split("/")[1:]
    inner = parts[:-1] if parts and not parts[-1] else parts
    if {"", ".", ".."} & set(inner):
        return "no part of it may be empty, '.' or '..'"
    if (port := re.match(r"https?://[^/?]*:(\d+)", filled)) and int(port[1]) > _LAST_PORT:
        return f"a port is at most {_LAST_PORT}"
    return ""
