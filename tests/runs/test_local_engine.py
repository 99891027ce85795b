"""The local engine: a whole run in this process, without Ray, which leaves the process as it found it."""

from __future__ import annotations

import gc
import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from nightjar.flows.pages.advice import Commands
from nightjar.flows.pages.failure import failure
from nightjar.inference import witness
from nightjar.inference.engine import LOCAL, opened
from nightjar.inference.engine.local import _Process
from nightjar.inference.errors import JobError, NeedsRay, RunFailed
from nightjar.inference.history.run_status import RunState, stands
from nightjar.inference.job.finding import modules_in
from nightjar.inference.logs import capture
from nightjar.inference.logs.printed import Line, Reading
from nightjar.inference.output.revisions import newest_revision
from nightjar.inference.scoring.attempts import this_worker
from nightjar.inference.scoring.suspects import Attempt
from nightjar.inference.storage.lake import LakeStorage
from support import HELPERS, Lake

SCORES = "    return {'score': batch['x'] * 2}\n"
WHERE = '''
import os
from pathlib import Path
from types import ModuleType

import beside

HERE = Path(__file__).parent


def score(batch):
    """Twice x, by a factor that lies beside the code."""
    assert Path.cwd() == HERE
    assert HERE != Path(__LIVE__)
    return {"score": batch["x"] * beside.FACTOR}
'''


def test_a_run_publishes_every_row_once(lake: Lake) -> None:
    ran = lake.ready().run()
    assert ran.publication.number == 1
    assert ran.scored.progress.done_shards == 8
    published = lake.published()
    assert published["id"].tolist() == list(range(8000))
    assert (published["score"] == published["x" if "x" in published else "id"] * 2).all()


def test_what_is_committed_is_not_scored_again(lake: Lake) -> None:
    lake.ready().run()
    (lake.folder / "data" / "part-03.parquet").unlink()
    lake.write_file("part-04.parquet", 8000, 2000)
    ran = lake.run()
    assert ran.scored.progress.reused_shards == 6
    assert ran.publication.number == 2
    assert lake.published()["id"].tolist() == [*range(6000), *range(8000, 10000)]


def test_a_finished_run_is_not_scored_again(lake: Lake) -> None:
    """Run again: nothing is scored, no model is loaded, the publication stays."""
    lake.ready().run()
    again = lake.run()
    assert again.scored.finished
    assert again.scored.progress.reused_shards == 8
    assert again.publication.number == 1
    assert not (lake.revision(2)).exists()


def test_the_process_is_left_as_it_was_and_the_next_run_uses_the_code_of_now(lake: Lake) -> None:
    """As in a notebook: the same process, the same module names, another model."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    before = Path.cwd(), list(sys.path)
    lake.ready().run()
    assert (Path.cwd(), list(sys.path)) == before
    assert "beside" not in sys.modules
    assert not witness.seen()
    (lake.folder / "beside.py").write_text("FACTOR = 3\n")
    ran = lake.run()
    assert ran.scored.again == ("beside.py changed: 8 of 8 shards are scored again",)
    published = lake.published()
    assert (published["score"] == published["id"] * 3).all()


def test_an_installed_package_that_changes_between_two_runs_of_a_process_is_refused(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would say that the new one scored. One that could not be imported may be mended."""
    site = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(site)
    module = site / "changed_between.py"
    lake.write_files(files=1, rows=10)
    lake.write_job(model__uses="changed_between:score")
    module.write_text("raise ValueError\n")
    with pytest.raises(JobError, match="ValueError"):
        lake.run(engine=LOCAL)
    module.write_text("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    lake.run(engine=LOCAL)
    assert lake.published()["score"].tolist() == [2 * i for i in range(10)]
    module.write_text("def score(batch):\n    return {'score': batch['x'] * 333}\n")
    with pytest.raises(JobError, match="'changed_between' was changed after this process had imported it"):
        lake.run(engine=LOCAL)
    del sys.modules["changed_between"]


def test_modules_that_the_caller_has_of_the_folder_are_his_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook has imported the live module: the run scores with its own copy, and the notebook keeps what it has."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    monkeypatch.syspath_prepend(str(lake.folder))
    import beside  # type: ignore[import-not-found]

    lake.ready().run()
    assert sys.modules["beside"] is beside
    monkeypatch.delitem(sys.modules, "beside")


def test_modules_that_other_threads_import_meanwhile_do_no_harm(tmp_path: Path) -> None:
    """Python may switch to another thread, which imports, wherever it collects garbage."""
    made: list[str] = []

    def import_one(*_: object) -> None:
        made.append(f"imported_meanwhile_{len(made)}")
        sys.modules[made[-1]] = ModuleType(made[-1])

    often = gc.get_threshold()
    gc.callbacks.append(import_one)
    try:
        gc.set_threshold(1)
        assert modules_in(str(tmp_path)) == {}
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(import_one)
        for name in made:
            del sys.modules[name]
    assert made


def test_the_modules_of_a_folder_are_found_through_links_and_installed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the folders on the way is a link."""
    (tmp_path / "job" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("job")
    (tmp_path / "job" / "far").symlink_to(tmp_path)
    places = {
        "mine": "job/mine.py",
        "linked": "link/deep/linked.py",
        "beside": "job-2/beside.py",
        "out": "job/far/out.py",
        "installed": "job/.venv/lib/site-packages/installed.py",
    }
    for name, place in places.items():
        module = ModuleType(f"found_{name}")
        module.__file__ = str(tmp_path / place)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for folder in ("job", "link"):
        assert set(modules_in(str(tmp_path / folder))) == {"found_mine", "found_linked"}


def test_a_package_without_init_is_that_of_the_run(lake: Lake) -> None:
    """Its modules are edited between two nights of one process, and another job has namesakes of them."""
    lake.ready()
    lake.write_model("from lib import factors\ndef score(batch):\n    return {'score': batch['x'] * factors.FACTOR}\n")
    (lake.folder / "lib").mkdir()
    for factor in (2, 3):
        (lake.folder / "lib/factors.py").write_text(f"FACTOR = {factor}  # of now\n")
        assert lake.run().scored.progress.reused_rows == 0
        assert (lake.published()["score"] == lake.published()["id"] * factor).all()


def test_a_process_that_was_interrupted_in_preflight_scores_nothing(lake: Lake) -> None:
    """The model was interrupted anywhere: this one would answer with the rows themselves."""
    lake.write_model(
        "import time\n"
        "class Lazy:\n"
        "    def __init__(self):\n"
        "        self.factor = 0\n"
        "    def __call__(self, batch):\n"
        "        if not self.factor:\n"
        "            self.factor = 1\n"
        "            time.sleep(60)\n"
        "            self.factor = 2\n"
        "        return {'score': batch['x'] * self.factor}\n"
    )
    lake.write_files()
    lake.write_job(model__uses="model:Lazy", retry__stall_s=1)
    with pytest.raises(
        NeedsRay, match=r"^model\.uses: scoring the first rows: Stalled: no progress for retry\.stall_s"
    ):
        lake.run()
    assert lake.snapshot().number == 0


def test_a_library_that_panics_costs_the_row(lake: Lake) -> None:
    """Its exception is no `Exception`."""
    lake.write_model(
        "from polars.exceptions import PanicException\n"
        "def score(batch):\n"
        "    if 1234 in batch['x']:\n"
        "        raise PanicException('called `Option::unwrap()` on a `None` value')\n" + SCORES
    )
    lake.write_files()
    lake.write_job(retry__max_quarantined=1)
    lake.run()
    (row,) = lake.quarantined().to_dict("records")
    assert (row["_row"], row["error"], row["message"]) == (
        1234,
        "Panicked",
        "called `Option::unwrap()` on a `None` value",
    )


class Stands(ModuleType):
    """For a module, as torch's `classes` does."""

    def __getattr__(self, name: str) -> object:
        if name == "__file__":
            raise AttributeError(name)
        raise RuntimeError(f"Tried to instantiate class {name!r}, but it does not exist")


def test_an_object_among_the_modules_that_fails_for_every_name_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "stands_for_one", Stands("stands_for_one"))
    assert modules_in(str(tmp_path)) == {}


def test_a_bad_row_costs_that_row(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n"
        "    if 1234 in batch['x']:\n"
        "        raise ValueError('1234 cannot be scored')\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    ran = lake.ready().run()
    assert ran.scored.progress.counts.rows_quarantined == 1
    assert lake.quarantined()["_row"].tolist() == [1234]
    assert len(lake.published()) == 7999


def test_a_model_that_cannot_be_loaded_is_one_sentence(lake: Lake) -> None:
    lake.write_model("raise ImportError('no such thing')\n")
    with pytest.raises(
        JobError, match=r"^model\.uses: importing module 'model' failed with ImportError: no such thing"
    ):
        lake.ready().run()
    assert not list((lake.revision() / "data").glob("*"))


@pytest.mark.parametrize(("first", "kind"), [(0, JobError), (5000, RunFailed)], ids=["preflight", "run"])
def test_code_that_calls_exit_does_not_end_the_command(lake: Lake, first: int, kind: type[Exception]) -> None:
    """Its exit code would be taken for the command's: 3 says that another writer holds the run."""
    lake.write_model(
        f"import sys\n\n\ndef score(batch):\n    if {first} in batch['x']:\n        sys.exit(3)\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    with pytest.raises(kind, match=r"calls sys\.exit\(3\), which would end this command"):
        lake.ready().run()


CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
EXITS = "import os\nos._exit(0)\n"
DEAF = "sum(range(10**13))  # code in C, which Python cannot interrupt\n"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (CRASHES, "ended its process (signal 11, Segmentation fault), without an exception"),
        (EXITS, "ended its process (exit code 0), without an exception"),
        (DEAF, "took longer than retry.stall_s = 1 s and was ended"),
    ],
    ids=["crashes", "exits", "hangs"],
)
@pytest.mark.parametrize("when", ["loading", "scoring"])
def test_a_model_that_ends_or_holds_its_process_ends_the_run_with_a_sentence(
    lake: Lake, code: str, how: str, when: str
) -> None:
    """The command lives on, and the message has the key and the model's file."""
    inside = "    " + code.strip().replace("\n", "\n    ")
    load, score = (inside, "    pass") if when == "loading" else ("    pass", inside)
    lake.write_model(
        f"class Model:\n    def __init__(self, path):\n{_indented(load)}\n"
        f"    def __call__(self, batch):\n{_indented(score)}\n        return {{'score': batch['x'] * 2}}\n"
    )
    (lake.folder / "trees.json").write_text("{}")
    lake.ready(model__uses="model:Model", model__path="trees.json", retry__stall_s=1)
    what, kind = ("loading the model", JobError) if when == "loading" else ("scoring the first rows", NeedsRay)
    with pytest.raises(kind, match=re.escape(f"model.uses ({lake.folder}/trees.json): {what} {how}")):
        lake.run()
    assert lake.snapshot().number == 0


def _indented(code: str) -> str:
    return "\n".join("    " + line for line in code.splitlines())


ONCE = """
import os

class Model:
    def __init__(self, path):
        self.lock = path + ".lock"
        self.file = os.open({lock!r}, os.O_CREAT | os.O_RDWR)
        import fcntl
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __call__(self, batch):
        return {{"score": batch["x"] * 2}}
"""


def test_a_model_of_which_there_may_be_only_one_is_loaded_one_after_the_other(lake: Lake) -> None:
    """As with a lock, or the whole memory of a GPU: preflight's process has ended before this one loads."""
    lake.write_model(ONCE.format(lock=str(lake.folder / "one.lock")))
    (lake.folder / "trees.json").write_text("{}")
    lake.ready(model__uses="model:Model", model__path="trees.json")
    lake.run()
    assert len(lake.published()) == 8000


def test_a_process_that_is_taken_back_has_no_logs(lake: Lake) -> None:
    """Those of the run are closed: a later one that has no revision must not print to them."""
    process = _Process()
    process.lend(lake.ready().worker_spec())
    assert process.logs is not None
    process.take_back()
    assert process.logs is None


def test_what_ended_a_process_before_is_left_to_ray(lake: Lake) -> None:
    """It would end this one, and the command with it."""
    plan, spec = lake.ready().planned(), lake.worker_spec()
    with opened(LOCAL) as engine:
        assert engine.preflight(spec, []).device == "cpu"
        events = engine.run_pass(spec, plan.table.slice(0, 1), [Attempt(number=2, crumbs=True)])
        with pytest.raises(NeedsRay, match=r"ended the process that scored it.*leave --engine local out"):
            next(events)


def test_a_night_that_only_ray_gets_over_is_repeated_there(lake: Lake) -> None:
    """The command to repeat it, at once, on a page or later, does not say what the message says to leave out."""
    lake.write_model("import sys\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n        sys.exit(3)\n" + SCORES)
    with pytest.raises(NeedsRay) as ended:
        lake.ready().run()
    found = failure(Commands(lake.request(), job="job.yaml"), ended.value, report="")
    request = lake.request()
    revision = newest_revision(request.storage, request.run_uri)
    assert revision is not None
    standing = stands(RunState.of(request, revision, None))
    later = Commands(request, job="job.yaml").of_standing(standing)
    for repeat in (found.commands["repeat"], later["repeat"]):
        assert repeat.endswith("run job.yaml --run-id 2026-11-19")


def test_code_that_hangs_ends_the_run_not_the_process(lake: Lake) -> None:
    lake.write_model(
        "import time\n\n\ndef score(batch):\n    while 5000 in batch['x']:\n        time.sleep(0.01)\n"
        "    return {'score': batch['x'] * 2}\n"
    )
    lake.ready(retry__stall_s=4, model__batch_size=1000)
    with pytest.raises(RunFailed, match=r"can score no more: Stalled: no progress for retry.stall_s = 4 s"):
        lake.run()
    assert lake.run(limit=5000).scored.progress.done_shards == 5


PRINTS = '''
import logging
import os
import sys

print("loading")


def score(batch):
    """Twice x; it says something in three ways."""
    first = int(batch["x"].min())
    if first % 1000 == 0:
        print("row", first)
        print("to stderr", first, file=sys.stderr)
        logging.getLogger("my.model").warning("logged %d", first)
    return {"score": batch["x"] * 2}
'''


def kept(lake: Lake) -> list[Line]:
    return list(Reading(LakeStorage(), str(lake.revision())).new())


def test_what_the_code_prints_is_kept_with_the_run_and_seen_as_before(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """By print and logging, each once, under the shard that was scored; then nothing is copied any more."""
    lake.write_model(PRINTS)
    lake.ready()
    streams, handlers = (sys.stdout, sys.stderr), list(logging.getLogger().handlers)
    lake.run()
    assert (sys.stdout, sys.stderr) == streams
    assert logging.getLogger().handlers == handlers
    seen = capsys.readouterr()
    lines = kept(lake)
    assert {line.worker for line in lines if line.shard} == {this_worker()}, "preflight has a process of its own"
    assert [line.text for line in lines if not line.shard and line.stream == "out"][:1] == ["loading"]
    for number, shard in enumerate(lake.planned().ids()):
        row = number * 1000
        assert sorted((line.stream, line.text) for line in lines if line.shard == shard) == [
            ("err", f"logged {row}"),
            ("err", f"to stderr {row}"),
            ("out", f"row {row}"),
        ]
        assert f"row {row}\n" in seen.out
        assert f"to stderr {row}\n" in seen.err


class Cell:
    """A notebook's stream: text goes to the page, and there is no descriptor."""

    def __init__(self) -> None:
        self.page: list[tuple[int, str]] = []

    def write(self, text: str) -> int:
        self.page.append((threading.get_ident(), text))
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


def test_a_notebook_sees_what_is_printed_and_it_is_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that were there before print for the notebook: theirs is shown, and not kept.

    A line is printed in parts, between which another thread may print: what each thread printed is told apart.
    """
    cells = Cell(), Cell()
    monkeypatch.setattr(sys, "stdout", cells[0])
    monkeypatch.setattr(sys, "stderr", cells[1])
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.01):
            print("beat")

    kernel = threading.Thread(target=beat)
    kernel.start()
    lake.write_model(PRINTS)
    try:
        lake.ready().run()
    finally:
        ended.set()
        kernel.join()
    beats = [text for thread, text in cells[0].page if thread == kernel.ident]
    assert beats
    assert set(beats) == {"beat", "\n"}
    lines = "".join(text for thread, text in cells[0].page if thread != kernel.ident).splitlines()
    assert "loading" in lines
    assert "row 7000" in lines
    assert sys.stdout is cells[0]
    texts = [line.text for line in kept(lake)]
    assert "row 7000" in texts
    assert "beat" not in texts


def test_what_a_killed_command_printed_is_kept_by_the_next_one(lake: Lake) -> None:
    """Its files lie on this machine, and go when they are kept."""
    lake.write_model(
        "import os\nimport warnings\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n"
        "        print('the end is near')\n        warnings.warn('very near')\n        os.kill(os.getpid(), 9)\n"
        + SCORES
    )
    lake.ready()
    code = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from support import Lake; "
    code += "Lake(Path(sys.argv[1])).run(engine='local')"
    tests = str(HELPERS)
    killed = subprocess.run([sys.executable, "-c", code, str(lake.folder), tests], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    lake.write_model("def score(batch):\n    return {'score': batch['x'] * 2}\n")
    lake.run()
    texts = [line.text for line in kept(lake)]
    assert "the end is near" in texts
    assert [text for text in texts if text.endswith("UserWarning: very near")]
    assert not list(capture._folder().glob(f"{Path(capture._beginning(str(lake.revision()))).name}*"))


ENDS_ALL = """
import os

def score(batch):
    if os.fork() == 0:
        os._exit(status=0)
    if os.wait()[1] == 0 and 5000 in batch["x"]:
        os._exit({code})
    return {{"score": batch["x"] * 2}}
"""


@pytest.mark.parametrize(("code", "ends"), [(0, 1), (7, 7)])
def test_code_that_ends_the_process_does_not_end_it_as_if_the_night_was_published(
    tmp_path: Path, code: int, ends: int
) -> None:
    """Processes that it forked end as they like."""
    Lake(tmp_path).ready().write_model(ENDS_ALL.format(code=code))
    run = (
        "import sys; from pathlib import Path; from support import Lake; Lake(Path(sys.argv[1]), engine='local').run()"
    )
    environ = {**os.environ, "PYTHONPATH": str(HELPERS)}
    words = [sys.executable, "-c", run, str(tmp_path)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == ends
    assert ("os._exit(0), which ends this command" in done.stderr) == (code == 0)
