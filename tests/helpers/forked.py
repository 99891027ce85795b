"""`nightjar …`, or a function, in processes forked from one that has done the imports: each has a process of its own.

Importing Prefect and Ray takes seconds of each command, and most claims are not about that. What is about starting,
Ray, signals or the terminal runs the installed command (`support.command`), as a user would.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

LIGHT = ("nightjar.flows.cli.main", "nightjar.inference.run.refusals", "nightjar.inference.run.request")
"""What any command imports that looks at a job."""

HEAVY = (
    *LIGHT,
    "nightjar.flows.api",
    "nightjar.flows.launch",
    "nightjar.flows.backfilling",
    "nightjar.flows.serving.deploy",
    "nightjar.inference.engine.local",
    "nightjar.inference.scoring.child",
    "nightjar.inference.run.user_code",
    "fastapi",
    "pandas",
)
"""What a command imports that scores, and what Prefect and Ray import while one runs."""

SCORES = ("nightjar.inference.engine.local", "pandas")
"""What is imported when shards are scored in a process."""

COMMAND = "nightjar.flows.cli.main:main"

COMMAND_S = 400
"""Seconds after which a command is taken for one that hangs. Alone it takes a tenth of that; in CI three run on two
cores, which may be busy with others, too."""

_STARTED_IN = {"RAY_AUTH_MODE": "token", **os.environ}
"""What stays for all tests is none of one test's processes, and has none of its environment.

Ray reads its mode when it is imported, so that a command which is forked later could not choose it.
"""


@dataclass(frozen=True)
class Done:
    """What a command came to. imported: the modules that its process had in the end."""

    returncode: int
    stdout: str
    stderr: str
    imported: frozenset[str]


def forked(
    *words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = COMMAND_S
) -> Done:
    """Run `nightjar …` in a process that has Prefect and Ray imported."""
    return _nursery(HEAVY).run(COMMAND, words, env or {}, cwd, timeout_s)


def forked_light(*words: str | Path, env: dict[str, str] | None = None) -> Done:
    """Run `nightjar …` in a process that has imported no more than any command does."""
    return _nursery(LIGHT).run(COMMAND, words, env or {}, None)


def forked_call(
    function: str, *words: str | Path, env: dict[str, str] | None = None, after: tuple[str, ...] = ()
) -> Done:
    """Call a function, given as `module:name`, in a process that has imported `after`, or its module and `SCORES`."""
    return _nursery(after or (function.partition(":")[0], *SCORES)).run(function, words, env or {}, None)


def forked_script(path: Path) -> None:
    """Run a script in its folder, in a process that has imported what most scripts of tests do.

    Raises:
        AssertionError: It failed.
    """
    done = _nursery(("runpy", "numpy", "pandas", "pyarrow.parquet")).run("runpy:run_path", (path,), {}, path.parent)
    assert done.returncode == 0, done.stderr


@cache
def _nursery(modules: tuple[str, ...]) -> _Nursery:
    return _Nursery(modules)


class _Nursery:
    """A process that imports, and forks for each command that it is told of; it ends with this one."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        words = [sys.executable, str(Path(__file__)), *modules]
        # Unbuffered: of two answers that come together `select` would not see the one that lies in a buffer.
        self._process = subprocess.Popen(
            words, env=_STARTED_IN, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        atexit.register(self.end)

    def run(
        self,
        function: str,
        words: tuple[str | Path, ...],
        env: dict[str, str],
        cwd: Path | None,
        timeout_s: float = COMMAND_S,
    ) -> Done:
        with tempfile.TemporaryDirectory() as folder:
            told = {
                "function": function,
                "words": [str(word) for word in words],
                "env": {**os.environ, **env},
                "cwd": str(cwd or Path.cwd()),
                "folder": folder,
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
            pid, code = self._answer(60), None
            try:
                code = self._answer(timeout_s)
            except AssertionError:
                from stacks import stacks  # only here: the processes that are forked import nothing of it

                print(stacks(pid), file=sys.stderr)  # what it waits for is known only as long as it waits
                raise
            finally:
                if code is None:
                    with suppress(ProcessLookupError):  # it may end just now
                        os.kill(pid, signal.SIGKILL)
                    self._answer(60)
            out, err = (Path(folder, name).read_text() for name in ("out", "err"))
            listed = Path(folder, "imported")  # absent if the process was killed
            return Done(code, out, err, frozenset(listed.read_text().split() if listed.exists() else ()))

    def _answer(self, timeout_s: float) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        assert ready, f"the command has not ended after {timeout_s:g} s"
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """No further command is told of."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _serve() -> None:
    """Fork for each line of standard input; the child goes on as `nightjar` would, up to its natural end."""
    for module in sys.argv[1:]:
        import_module(module)
    if "nightjar.inference.engine.local" in sys.modules:
        import forks
        import installed  # noqa: F401

        # What the processes of commands are forked off imports for seconds, too: all commands share one.
        forks.begin()
        forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    gc.freeze()
    for line in sys.stdin:
        told = json.loads(line)
        if not (pid := os.fork()):
            _become(told)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(told: dict[str, Any]) -> None:
    """Everything that a new process would have got from who started it."""
    folder = Path(told["folder"])
    for target, name, mode in ((0, os.devnull, os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
        opened = os.open(folder / name, mode | os.O_CREAT, 0o600)
        os.dup2(opened, target)
        os.close(opened)
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    module, _, name = told["function"].partition(":")
    function = getattr(import_module(module), name)
    code = 0
    try:
        if told["function"] == COMMAND:
            _be_a_command(told["words"])
            function()
        else:
            function(*told["words"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    (folder / "imported").write_text("\n".join(sys.modules))
    # As an interpreter ends, but for taking itself apart: that would copy all that was imported.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _be_a_command(words: list[str]) -> None:
    """What the installed program has before its main function begins."""
    sys.argv[:] = ["nightjar", *words]
    sys.path[0] = str(Path(sys.executable).parent)
    from nightjar.flows.cli import options

    options.out.__init__()  # type: ignore[misc]
    options.err.__init__(stderr=True)  # type: ignore[misc]
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


if __name__ == "__main__":
    _serve()
