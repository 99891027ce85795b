"""What goes wrong with a bucket, as errors of ours: the one place that reads what obstore says of a fault."""

from __future__ import annotations

import re

from obstore import exceptions as sdk

from nightjar.inference.errors import AlreadyExists, Denied, Missing, StorageError, Transient

_OVER = "ExpiredToken|ExpiredTokenException|RequestExpired|TokenRefreshRequired"
"""S3's error codes for credentials that have expired."""


def fault_of(error: Exception, uri: str) -> StorageError:
    """Convert an error of obstore to one of ours, by its type."""
    if isinstance(error, FileNotFoundError):
        return Missing(f"{uri}: no such object")
    if isinstance(error, sdk.AlreadyExistsError):
        return AlreadyExists(f"{uri}: exists already")
    if isinstance(error, sdk.PermissionDeniedError | sdk.UnauthenticatedError):
        return _denied(error, uri)
    if isinstance(error, sdk.InvalidPathError | ValueError):
        return StorageError(
            f"{uri}: object names with empty, '.' or '..' parts or control characters cannot be used: {said(error)}"
        )
    if isinstance(error, sdk.GenericError):
        return _by_status(error, uri)
    return StorageError(f"{uri}: {said(error)}")


def _by_status(error: sdk.GenericError, uri: str) -> StorageError:
    """Convert an error by its HTTP status. Only here is a message read: obstore gives the status nowhere else."""
    text, status = str(error), status_of(error)
    # S3 answers an expired session token with 400, like a malformed request.
    if status in {401, 403} or re.search(rf"<Code>({_OVER}|InvalidToken)</Code>", text):
        return _denied(error, uri)
    if status == 404:
        return Missing(f"{uri}: no such bucket")
    if status == 416:
        return StorageError(f"{uri}: it was overwritten while it was read, by a shorter object")
    if "redirect" in text:
        return StorageError(f"{uri}: the bucket is in another region; set AWS_DEFAULT_REGION to its region")
    # Without a status there was no answer: refused, cut off, timed out, name not resolved. 501 does not pass.
    if status in {0, 408, 429} or (status >= 500 and status != 501):
        return Transient(f"{uri}: {said(error)}")
    code = re.search(r"<Code>(\w+)</Code>", text)
    why = f"{said(error)} ({code[1]})" if code else said(error)
    # S3 answers 400 if a body came too slowly.
    if code and code[1] in {"RequestTimeout", "RequestTimeoutException"}:
        return Transient(f"{uri}: {why}")
    return StorageError(f"{uri}: {why}")


def status_of(error: Exception) -> int:
    """The HTTP status of the answer; 0 when there was none."""
    match = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(match[1]) if match else 0


def _denied(error: Exception, uri: str) -> Denied:
    reason = re.search(r"<Code>(\w+)</Code>", str(error))
    if reason and re.fullmatch(_OVER, reason[1]):
        return Denied(
            f"{uri}: the credentials have expired ({reason[1]}); get new ones where the run starts and repeat the "
            "command: what is committed is kept"
        )
    return Denied(
        f"{uri}: {reason[1] if reason else said(error)}; "
        "check the credentials and what they are allowed to do with this bucket"
    )


def said(error: Exception) -> str:
    """The text of an error, without the request and the dump of Rust structures that obstore appends."""
    text = str(error)
    line = text.partition("\n")[0].partition(": <?xml")[0].rstrip(": ")
    asked = re.search(r"Error performing (\w+) (\w+://[^/ ]+)\S* in [^ ,]+(, after \d+ retries)?.*? - (.*)", line)
    if asked:
        line = f"{asked[1]} {asked[2]}{asked[3] or ''}: {asked[4]}"
    # Only the dump says how a connection failed.
    how = re.search(r'(?:message|error): "([^"]+)"|source: (TimedOut)', text) if "status code" not in line else None
    return line[:300] + (f" ({how[1] or 'timed out'})" if how else "")
