"""What this package uses of Ray's and prefect-ray's own that has no public name: all of it, and nowhere else.

Each function says what it is for, so that whoever moves to another version knows what to look for there. The test
`tests/unit/test_internals.py` fails on a version on which none of this was seen to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect_ray.task_runners import PrefectRayFuture
from ray._common.utils import get_default_system_temp_dir
from ray._private import ray_constants, worker
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

SEEN_ON = {"ray": "2.60.0", "prefect": "3.8.8", "prefect-ray": "0.6.0"}
"""The versions on which this file was seen to work."""

SIGNS_IN = "ray._private.authentication"
"""The logger of Ray's that says of every sign-in which token it found."""

_print = worker.print_to_stdstream


@contextmanager
def loopback() -> Iterator[None]:
    """A Ray that is started meanwhile takes 127.0.0.1 for its node's address, and then binds every port to it.

    That is what Ray does on macOS and Windows. Elsewhere it replaces a loopback address that it is given by one that
    others reach. Without this, its servers listen on every interface.
    """
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def temporary_folder() -> str:
    """Where Ray would put its own folder. Without this, `RAY_TMPDIR` and the like would have to be read here."""
    folder: str = get_default_system_temp_dir()  # type: ignore[no-untyped-call]
    return folder


def in_folder(folder: Path) -> dict[str, Any]:
    """The option of `ray.init` that puts what Ray writes into a folder. Without it, it lies in `/tmp/ray` for ever."""
    return {"_temp_dir": str(folder)}


def keep_off_stdout(verbose: bool) -> None:
    """What Ray has to say of nodes goes to standard error, and only if asked for.

    Ray prints that to standard output whatever `log_to_driver` says, and has no setting for it. Without this it
    stands in the middle of `--json`.
    """

    def tell(data: dict[str, Any], ignore_prefix: bool) -> None:
        if verbose:
            _print({**data, "is_err": True}, ignore_prefix)

    worker.print_to_stdstream = tell


def sign_in() -> None:
    """Use the token that lies on this machine, as `ray start` does.

    Without this a client uses it only where `RAY_AUTH_MODE` is set, and else waits for minutes.

    Raises:
        RayError: the token is wrong.
    """
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def new_token() -> str:
    """A token as Ray makes one. Without this Ray writes its own, into a file that everybody may read."""
    token: str = generate_new_authentication_token()
    return token


def has_ended(task: PrefectRayFuture[Any]) -> bool:
    """Whether the end of a task was heard of by `task.wait`. Without this, only Prefect's API could be asked."""
    return task._final_state is not None
