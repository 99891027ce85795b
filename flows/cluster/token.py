"""Ray's token. Everybody who has it can run code in this user's clusters, so nobody else may read its file."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from nightjar.flows.cluster.internals import new_token
from nightjar.inference.errors import ClusterError
from nightjar.inference.privatefiles import OTHERS, create_private


def token_file() -> Path:
    """The file from which Ray reads its token, unless `RAY_AUTH_TOKEN` is set."""
    given = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(given) if given else Path.home() / ".ray" / "auth_token"


def readers_of_token() -> str:
    """The token file's mode, if others may read it; empty if nobody else may, or if there is no such file."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(token_file().stat().st_mode)
        return f"{mode:04o}" if mode & OTHERS else ""
    return ""


def keep_token_private() -> None:
    """Make sure that only this user can read the token file, and create it, before Ray writes one that is open to all.

    Raises:
        ClusterError: The file cannot be written, or belongs to somebody else and is open to others.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_file()
    try:
        if not path.exists() and "RAY_AUTH_TOKEN_PATH" not in os.environ:
            create_private(path, new_token())
        if readers_of_token():
            path.chmod(0o600)
    except OSError as error:
        raise ClusterError(
            f"Ray's token cannot be kept in {path}: {error.strerror or error}; mend its owner and mode (0600), or put "
            "the token into RAY_AUTH_TOKEN"
        ) from error
