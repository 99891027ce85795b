"""The local engine: a whole run without Ray, in one process of its own."""

from __future__ import annotations

import gc
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, RunFailed
from nightjar.inference.job.finding import modules_in
from nightjar.inference.logs import capture
from nightjar.inference.logs.printed import Line, all_lines
from nightjar.inference.storage.lake import LakeStorage
from support import ONCE, Lake

SCORES = "    return {'score': batch['x'] * 2}\n"
WHERE = '''
import os
from concurrent.futures import ThreadPoolExecutor
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
    """As in a notebook: the same module names, another model."""
    lake.write_model(WHERE)
    (lake.folder / "beside.py").write_text("FACTOR = 2\n")
    before = Path.cwd(), list(sys.path)
    lake.ready().run()
    assert (Path.cwd(), list(sys.path)) == before
    assert "beside" not in sys.modules
    (lake.folder / "beside.py").write_text("FACTOR = 3\n")
    ran = lake.run()
    assert ran.scored.again == ("beside.py changed: 8 of 8 shards are scored",)
    published = lake.published()
    assert (published["score"] == published["id"] * 3).all()


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
    """The model was interrupted anywhere: it would answer with the rows themselves."""
    lake.write_model(
        ONCE + "import time\n"
        "class Lazy:\n"
        "    factor = 0\n"
        "    def __call__(self, batch):\n"
        "        if not self.factor:\n"
        "            self.factor = 1\n"
        "            if once('slow'):\n"
        "                time.sleep(60)\n"
        "            self.factor = 2\n"
        "        return {'score': batch['x'] * self.factor}\n"
    )
    lake.ready(model__uses="model:Lazy", retry__stall_s=2).run()
    assert (lake.published()["score"] == lake.published()["id"] * 2).all()


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


def test_code_that_calls_exit_costs_the_row(lake: Lake) -> None:
    """Its exit code would be taken for the command's: 3 says that another writer holds the run."""
    lake.write_model(f"import sys\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n        sys.exit(3)\n{SCORES}")
    lake.ready(retry__max_quarantined=1, retry__attempts=3).run()
    assert lake.quarantined()["_row"].tolist() == [1000]
    assert len(lake.published()) == 7999


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
def test_a_model_that_ends_or_holds_its_process_is_refused_with_a_sentence(lake: Lake, code: str, how: str) -> None:
    """The command lives on, and the message has the key and the model's file."""
    loads = f"class Model:\n    def __init__(self, path):\n{_indented(code, 8)}\n"
    lake.write_model(f"{loads}    def __call__(self, batch):\n    {SCORES}")
    (lake.folder / "trees.json").write_text("{}")
    lake.ready(model__uses="model:Model", model__path="trees.json", retry__stall_s=1)
    with pytest.raises(JobError, match=re.escape(f"model.uses ({lake.folder}/trees.json): loading the model {how}")):
        lake.run()
    assert lake.snapshot().number == 0


@pytest.mark.parametrize("code", [CRASHES, EXITS, DEAF], ids=["crashes", "exits", "hangs"])
def test_a_row_that_ends_or_holds_its_process_is_found(lake: Lake, code: str) -> None:
    """As on Ray: it is quarantined, and every other row of the shards that died with it is scored."""
    lake.write_model(f"def score(batch):\n    if 5300 in batch['x']:\n{_indented(code, 8)}\n{SCORES}")
    lake.ready(retry__max_quarantined=1, retry__stall_s=2, retry__backoff_s=0).run()
    assert lake.quarantined()["_row"].tolist() == [1300]
    assert len(lake.published()) == 7999


def _indented(code: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in code.splitlines())


ONLY = """
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


def test_a_model_of_which_there_may_be_only_one_is_loaded_once(lake: Lake) -> None:
    """As with a lock, or the whole memory of a GPU: preflight and the passes use one process."""
    lake.write_model(ONLY.format(lock=str(lake.folder / "one.lock")))
    (lake.folder / "trees.json").write_text("{}")
    lake.ready(model__uses="model:Model", model__path="trees.json")
    lake.run()
    assert len(lake.published()) == 8000


def test_two_runs_of_one_process_score_at_once(tmp_path: Path) -> None:
    lakes = [Lake(tmp_path / name, LOCAL).ready() for name in ("one", "other")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Lake.run, lakes))
    assert [len(lake.published()) for lake in lakes] == [8000, 8000]


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
    return list(all_lines(LakeStorage(), str(lake.revision())))


def test_what_the_code_prints_is_kept_with_the_run_and_seen(lake: Lake, capfd: pytest.CaptureFixture[str]) -> None:
    """By print and logging, each once, under the shard that was scored."""
    lake.write_model(PRINTS)
    lake.ready().run()
    seen = capfd.readouterr()
    lines = kept(lake)
    assert [line.text for line in lines if not line.shard and line.stream == "out"][:1] == ["loading"]
    for number, shard in enumerate(lake.planned().ids()):
        row = number * 1000
        assert sorted((line.stream, line.text) for line in lines if line.shard == shard) == [
            ("err", f"logged {row}"),
            ("err", f"to stderr {row}"),
            ("out", f"row {row}"),
        ]
        assert f"row {row}\n" in seen.err
        assert f"to stderr {row}\n" in seen.err


def test_the_traceback_of_a_shard_that_failed_is_kept_and_not_seen(
    lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    lake.write_model(f"def score(batch):\n    if 5300 in batch['x']:\n        raise KeyError('colour')\n{SCORES}")
    lake.ready(retry__max_quarantined=0)
    with pytest.raises(RunFailed, match="colour"):
        lake.run()
    assert any("raise KeyError('colour')" in line.text for line in kept(lake))
    assert "Traceback" not in capfd.readouterr().err


def test_what_a_process_printed_that_died_is_kept(lake: Lake) -> None:
    """Its files lie on this machine, and go when they are kept."""
    lake.write_model(
        "import os\nimport warnings\n\n\ndef score(batch):\n    if 5000 in batch['x']:\n"
        "        print('the end is near')\n        warnings.warn('very near')\n        os.kill(os.getpid(), 9)\n"
        + SCORES
    )
    lake.ready(retry__max_quarantined=1, retry__backoff_s=0).run()
    texts = [line.text for line in kept(lake)]
    assert "the end is near" in texts
    assert [text for text in texts if text.endswith("UserWarning: very near")]
    assert not list(capture._folder().glob(f"{capture._beginning(str(lake.revision()))}*"))
