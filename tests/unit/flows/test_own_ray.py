"""A run's own Ray: what is left of killed ones is removed, and nothing else; its token is this user's alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from nightjar.flows.cluster import connection, local
from nightjar.flows.cluster.local import keep_token_private
from nightjar.inference.errors import ClusterError, ClusterLost, GateFailed

TIMED_OUT = "The current node timed out during startup. This could happen because the GCS has become overloaded."


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Ray's folders lie, for this test alone; its path is short, as sockets need it."""
    link = Path(f"/tmp/njt{os.getpid()}")
    link.symlink_to(tmp_path_factory.mktemp("ray"))
    monkeypatch.setenv("RAY_TMPDIR", str(link))
    monkeypatch.delenv(local.KEEP, raising=False)
    yield link
    link.unlink()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without a token."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def folder_of(temporary: Path, name: str, *, lock: bool = True) -> Path:
    """What a run's own Ray leaves when it is killed."""
    folder = temporary / f"njray-{name}"
    logs = folder / "r" / "session_2026-11-19_02-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text(name)
    if lock:
        (folder / "lock").touch()
    return folder


@contextmanager
def alive(folder: Path) -> Iterator[Path]:
    """Another process holds its lock."""
    code = "import fcntl, sys; lock = open(sys.argv[1]); fcntl.flock(lock, 2); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, str(folder / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        yield folder
        holder.communicate(b"")


def test_of_killed_runs_the_last_logs_stay_and_all_else_goes(temporary: Path) -> None:
    killed = {hour: folder_of(temporary, f"killed{hour}") for hour in (3, 1, 4, 2, 6, 5, 7)}
    for hour, folder in killed.items():
        os.utime(folder / "lock", (hour * 3600, hour * 3600))
    local.tidy_up()
    assert [hour for hour in sorted(killed) if killed[hour].exists()] == sorted(killed)[-local.KEPT_LOGS :]
    for folder in filter(Path.exists, killed.values()):
        assert {path.name for path in folder.iterdir()} == {"lock", "logs"}
        assert (folder / "logs" / "raylet.out").read_text() in folder.name


def test_only_what_is_of_a_dead_run_is_removed(temporary: Path) -> None:
    """Not one that lives, in this process or another one, nor one that was kept, Ray's own, or a link."""
    ours = local._new_folder()
    kept, living = folder_of(temporary, "kept", lock=False), folder_of(temporary, "alive")
    rays = temporary / "ray" / "session_2026-11-19_02-00-00_000000_1"
    rays.mkdir(parents=True)
    target = folder_of(temporary / "not-there", "target")
    (temporary / "njray-link").symlink_to(target)
    with alive(living):
        local.tidy_up()
    assert all((folder / "r").exists() for folder in (living, kept, target))
    assert ours.exists()
    assert rays.exists()
    local._end(ours, keep_logs=False)
    assert not ours.exists()


def test_processes_of_a_killed_run_are_ended_and_no_others(temporary: Path) -> None:
    """They are told by their environment, wherever they hang in the tree of processes."""
    ours, others = folder_of(temporary, "killed"), folder_of(temporary, "alive")
    left, stays = (
        subprocess.Popen(["sleep", "600"], env={**os.environ, "NIGHTJAR_RAY_FOLDER": str(folder)})
        for folder in (ours, others)
    )
    try:
        with alive(others):
            local.tidy_up()
        assert left.wait(timeout=10) == -9
        assert stays.poll() is None
    finally:
        for process in (left, stays):
            process.kill()
            process.wait()


def timing_out(monkeypatch: pytest.MonkeyPatch, tries: int) -> list[str]:
    """So many starts of Ray time out, which it says with a bare `Exception`. The folders of all tries, as they come."""
    tried: list[str] = []

    def init(**options: Any) -> None:
        tried.append(options["_temp_dir"])
        if len(tried) <= tries:
            raise Exception(TIMED_OUT)  # noqa: TRY002 (as Ray does)

    monkeypatch.setattr(ray, "init", init)
    return tried


def test_a_start_that_times_out_is_tried_once_more_and_told_in_one_sentence(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = timing_out(monkeypatch, 2)
    timed_out = pytest.raises(ClusterError, match="twice: The current node timed out during startup")
    with timed_out as raised, local.local_ray({}, {}, lambda: False):
        raise AssertionError("there is no Ray")
    assert "\n" not in str(raised.value)
    assert len(set(tried)) == 2, "each try has a folder of its own"


def test_a_second_try_that_comes_through_leaves_nothing_of_the_first(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are wanted only where no try comes through."""
    tried = timing_out(monkeypatch, 1)
    with local.local_ray({}, {}, lambda: False):
        assert [path.parent for path in map(Path, tried) if path.parent.exists()] == [Path(tried[1]).parent]
    assert list(temporary.iterdir()) == []


def test_a_mistake_of_our_own_is_not_taken_for_rays(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "init", lambda: None)  # does not take what it is given
    with pytest.raises(TypeError), local.local_ray({}, {}, lambda: False):
        raise AssertionError("there is no Ray")
    assert list(temporary.glob("njray-*/r")) == []


def test_a_temporary_folder_with_too_long_a_path_is_named(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/" + "long" * 10)
    with pytest.raises(ClusterError, match=r"RAY_TMPDIR=/longlong.* at most"):
        local.tidy_up()


def test_a_new_token_is_for_this_user_alone(home: Path) -> None:
    keep_token_private()
    token = home / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64
    assert [path.name for path in token.parent.iterdir()] == [token.name]
    first = token.read_text()
    keep_token_private()
    assert token.read_text() == first


def test_a_token_that_others_could_read_is_closed_to_them(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a token")
    token.chmod(0o644)
    keep_token_private()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() == "a token"


REACHES = "from nightjar.flows.cluster.connection import reach; reach('127.0.0.1:9')"


def test_a_token_file_that_holds_none_is_one_sentence(tmp_path: Path) -> None:
    """For a cluster that somebody else started; nobody is asked there before. Ray looks once a process."""
    (tmp_path / "token").touch()
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {**others, "HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    asked = subprocess.run([sys.executable, "-c", REACHES], env=env, capture_output=True, text=True, timeout=60)
    assert "ClusterError: no usable Ray cluster at 127.0.0.1:9: RAY_AUTH_TOKEN_PATH is set but" in asked.stderr


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "said")])
def test_without_need_no_token_is_made(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    keep_token_private()
    assert not (home / ".ray").exists()


def test_a_token_that_cannot_be_kept_is_one_sentence(home: Path) -> None:
    (home / ".ray").write_text("no folder")
    with pytest.raises(ClusterError, match=r"Ray's token cannot be kept in .*auth_token: .*RAY_AUTH_TOKEN"):
        keep_token_private()


@pytest.mark.parametrize(("error", "kept"), [(ClusterLost, True), (GateFailed, True), (None, False)])
def test_rays_logs_stay_of_a_run_that_failed(error: type[BaseException] | None, kept: bool) -> None:
    connection._failed.clear()
    connection._note_failure(error)
    assert connection._failed.is_set() is kept
    connection._failed.clear()
