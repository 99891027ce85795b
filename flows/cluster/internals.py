"""Everything that `flows` uses of Ray without a public name. No other module of `flows` does so.

Each function says what it is for, so that you know what to look for when you move to another version. The test
`tests/unit/base/test_internals.py` fails on versions on which this module has not been seen to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants, utils, worker
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.node import Node

from nightjar.inference.process import replaced

SEEN_ON = {"ray": "2.60.0"}
"""The versions with which this module has been seen to work."""

SIGNS_IN = "ray._private.authentication"
"""The logger with which Ray says at every sign-in which token it found."""

_print = worker.print_to_stdstream


@contextmanager
def loopback() -> Iterator[None]:
    """Make a Ray that is started in this context use 127.0.0.1 as its node's address, and bind every port to it.

    Ray does so on macOS and Windows. On Linux it replaces a loopback address by one that other machines reach. Without
    this, its servers listen on every interface.
    """
    with replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
        yield


@contextmanager
def nobody_else(*, logs: bool) -> Iterator[None]:
    """Make a Ray that is started in this context do without what nobody looks at; `ray.init` has no setting for it.

    CPU seconds of a start that each costs (of 2.2 without all): the monitor, which asks clouds for more nodes, 0.7;
    what is left of the dashboard if it is switched off, which reports to Ray's makers, 1.0; and, without `logs`, the
    process that brings what workers print to this one, 0.5. The node's agent starts as in a Ray that was installed
    without a dashboard (0.1), and so serves nothing.
    """
    missing = ImportError("nobody looks at this Ray")
    started = ["start_monitor", "start_api_server", *([] if logs else ["start_log_monitor"])]
    with (
        replaced(Node, **dict.fromkeys(started, lambda *_, **__: None)),
        replaced(utils, get_dashboard_dependency_error=lambda: missing),
    ):
        yield


def temporary_folder() -> str:
    """The folder in which Ray would put its own folder. Without this, `RAY_TMPDIR` and others would have to be read
    here.
    """
    folder: str = get_default_system_temp_dir()  # type: ignore[no-untyped-call]
    return folder


def in_folder(folder: Path) -> dict[str, Any]:
    """The option of `ray.init` that makes Ray write into this folder. Without it, files stay in `/tmp/ray` for ever."""
    return {"_temp_dir": str(folder)}


@contextmanager
def off_stdout(verbose: bool) -> Iterator[None]:
    """Make a connection of this context send Ray's messages about nodes to standard error, and only if `verbose`.

    Ray prints them to standard output whatever `log_to_driver` says, and has no setting for it. Without this they
    appear in the middle of the output of `--json`.
    """

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        if verbose:
            _print({**data, "is_err": True}, ignore_prefix)

    with replaced(worker, print_to_stdstream=tell):
        yield


def sign_in() -> None:
    """Use the token on this machine, as `ray start` does.

    Without this a client uses it only if `RAY_AUTH_MODE` is set, and else waits for minutes.

    Raises:
        RayError: The token is wrong.
    """
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def new_token() -> str:
    """Make a token as Ray does. Without this Ray writes its own, into a file that everybody may read."""
    token: str = generate_new_authentication_token()
    return token
