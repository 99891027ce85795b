"""What a predictor uses beyond what identity covers is noticed: a table of ways, each tried in a real process."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import sqlite3
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest

from modeljobs import model_job
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import load_scorer
from nightjar.inference.predictors.adapter import frameworks
from nightjar.inference.records import Seen
from nightjar.inference.storage.local import LocalStorage
from nightjar.inference.witness.audit import literals, note_names, watch
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.places import Places
from nightjar.inference.witness.seen import PER_FOLDER, PER_KIND, Collection, sentences

CHILD = """
import importlib, json, os, sys
from nightjar.inference.witness.audit import note_names, watch
from nightjar.inference.witness.notes import Notes

root, ways = sys.argv[1], json.loads(sys.argv[2])
found = {}
for name, options in ways:
    before, home = list(sys.path), os.path.join(root, name)
    sys.path.insert(0, home)
    os.chdir(home)
    notes = Notes(home, [os.path.join(root, "model.bin")], os.path.join(root, "live"))
    watch(notes)
    note_names([options])
    importlib.import_module(name).score(**options)
    found[name] = [[seen.kind, seen.name, seen.by] for seen in notes.all()]
    assert "unnoted" not in {seen.kind for seen in notes.all()}, (name, notes.all())
    sys.path[:] = before
print(json.dumps(found))
"""
"""What a process does with each module: load it, score, and tell what was noticed."""


@contextmanager
def watching(home: str | Path) -> Iterator[Notes]:
    """Watch what happens within this context."""
    notes = Notes(str(home))
    watch(notes)
    yield notes
    watch(None)


Noticed = dict[str, list[list[str]]]
"""By way: [kind, name, by] of each thing that was noticed."""


@dataclass(frozen=True)
class Way:
    """How a predictor comes to something, and how it is to be noted.

    code: the body of `score`; OUT is a folder that nothing covers. top: what stands before it in the module.
    """

    code: str
    kind: str
    name: str
    top: str = ""
    options: tuple[tuple[str, str], ...] = ()


SAID = {
    "open": Way('open(OUT + "/vocab.json").read()', "file", "OUT/vocab.json"),
    "os_open": Way('os.close(os.open(OUT + "/vocab.json", os.O_RDONLY))', "file", "OUT/vocab.json"),
    "read_text": Way('(pathlib.Path(OUT) / "vocab.json").read_text()', "file", "OUT/vocab.json"),
    "read_and_write": Way('open(OUT + "/vocab.json", "r+").read()', "file", "OUT/vocab.json"),
    "read_and_append": Way('f = open(OUT + "/vocab.json", "a+"); f.seek(0); f.read()', "file", "OUT/vocab.json"),
    "while_importing": Way("pass", "file", "OUT/vocab.json", top='VOCABULARY = open("OUT/vocab.json").read()'),
    "numpy_load": Way('np.load(OUT + "/w.npy")', "file", "OUT/w.npy", top="import numpy as np"),
    "memmap": Way('score.kept = np.memmap(OUT + "/w.npy", mode="r")', "file", "OUT/w.npy", top="import numpy as np"),
    "mapped_by_c": Way('score.kept = pa.memory_map(OUT + "/m.npy")', "named", "OUT/m.npy", top="import pyarrow as pa"),
    "csv_by_c": Way('csv.read_csv(OUT + "/t.csv")', "named", "OUT/t.csv", "import pyarrow.csv as csv"),
    "joined_for_c": Way('csv.read_csv(os.path.join(OUT, "t.csv"))', "named", "OUT/t.csv", "import pyarrow.csv as csv"),
    "folders_joined_for_c": Way(
        'ctypes.CDLL(None).fopen(bytes(pathlib.Path(OUT) / "lib" / "beyondp" / "w.txt"), b"r")', "folder", "OUT"
    ),
    "attribute_for_c": Way(
        "Reader().read()",
        "named",
        "OUT/t.csv",
        "import pyarrow.csv as csv\nclass Reader:\n"
        '    def __init__(self): self.path = OUT + "/t.csv"\n'
        "    def read(self): csv.read_csv(self.path)",
    ),
    "fopen": Way('ctypes.CDLL(None).fopen(b"OUT/t.csv", b"r")', "named", "OUT/t.csv", "import ctypes"),
    "formatted_for_c": Way('ctypes.CDLL(None).fopen(f"{OUT}/t.csv".encode(), b"r")', "named", "OUT/t.csv"),
    "computed_for_c": Way(
        'ctypes.CDLL(None).fopen((OUT + "/t." + "CSV".lower()).encode(), b"r")', "folder", "OUT", "import ctypes"
    ),
    "helper_for_c": Way("pass", "named", "OUT/t.csv", "import nj_helpers.reading"),
    "option_for_c": Way(
        "csv.read_csv(path)", "named", "OUT/t.csv", "import pyarrow.csv as csv", (("path", "OUT/t.csv"),)
    ),
    "folder_option_for_c": Way(
        'csv.read_csv(place["folder"] + "/t.csv")',
        "named",
        "OUT/t.csv",
        "import pyarrow.csv as csv",
        (("place", '{"folder": "OUT/"}'),),
    ),
    "object_store": Way('"{}".format("s3://key:secret@bucket/m")', "named", "s3://bucket/m"),
    "database": Way('sqlite3.connect(OUT + "/d.sqlite").execute("select * from t")', "database", "OUT/d.sqlite"),
    "database_uri": Way(
        'sqlite3.connect("file:" + OUT + "/d.sqlite?mode=ro", uri=True)', "database", "OUT/d.sqlite", "import sqlite3"
    ),
    "network": Way('socket.create_connection(("localhost", PORT)).close()', "network", "localhost:PORT"),
    "address": Way("s = socket.socket(); s.connect(('127.0.0.1', PORT)); s.close()", "network", "127.0.0.1:PORT"),
    "program": Way('subprocess.run(["cat", OUT + "/vocab.json"], capture_output=True)', "program", "cat"),
    "file_of_program": Way(
        'subprocess.run(["cat", "/".join([OUT, "vocab.json"])], capture_output=True)', "named", "OUT/vocab.json"
    ),
    "shell": Way('os.system("cat " + OUT + "/vocab.json >/dev/null")', "program", "cat"),
    "environ_item": Way('os.environ["NJ_THRESHOLD"]', "environment", "NJ_THRESHOLD"),
    "environ_get": Way('os.environ.get("NJ_ABSENT")', "environment", "NJ_ABSENT"),
    "environ_bytes": Way('os.environb[b"NJ_THRESHOLD"]', "environment", "NJ_THRESHOLD"),
    "getenv": Way('os.getenv("NJ_THRESHOLD")', "environment", "NJ_THRESHOLD"),
    "environ_in": Way('"NJ_THRESHOLD" in os.environ', "environment", "NJ_THRESHOLD"),
    "module": Way("import beyond", "module", "OUT/lib/beyond.py", 'import sys\nsys.path.insert(0, "OUT/lib")'),
    "compiled_only": Way(
        "import beyondc", "module", "OUT/pyc/beyondc.pyc", 'import sys\nsys.path.insert(0, "OUT/pyc")'
    ),
    "zip": Way("import beyondz", "file", "OUT/lib.zip", 'import sys\nsys.path.insert(0, "OUT/lib.zip")'),
    "package_data": Way(
        'resources.files("beyondp").joinpath("w.txt").read_text()',
        "file",
        "OUT/lib/beyondp/w.txt",
        'import sys\nfrom importlib import resources\nsys.path.insert(0, "OUT/lib")',
    ),
    "link": Way('open("link.json").read()', "file", "OUT/vocab.json"),
    "parent": Way('open("../settings.ini").read()', "file", "ROOT/settings.ini"),
    "live": Way('open("ROOT/live/vocab.json").read()', "live", "ROOT/live/vocab.json"),
    "hub": Way(
        'open(OUT + "/hub/models--a--b/snapshots/1/config.json").read()',
        "file",
        "OUT/hub/models--a--b/snapshots/1/config.json",
    ),
    "thread": Way(
        't = threading.Thread(target=pathlib.Path(OUT, "vocab.json").read_text); t.start(); t.join()',
        "file",
        "OUT/vocab.json",
        top="import threading",
    ),
    "library": Way("ctypes.CDLL('OUT/own.so')", "library", "OUT/own.so", "import ctypes"),
}

SILENT = {
    "beside": 'open("beside.json").read(); pathlib.Path(__file__).with_name("beside.json").read_text()',
    "the_model": 'open("ROOT/model.bin", "rb").read()',
    "absent": '[os.path.exists("ROOT/none"), pathlib.Path("ROOT/none").is_file()]',
    "temporary": 'f = tempfile.NamedTemporaryFile("w+"); f.write("1"); f.flush(); open(f.name).read()',
    "temporary_folder": 'd = tempfile.mkdtemp(); p = d + "/a"; open(p, "w").close(); open(p).read()',
    "renamed": 'd = tempfile.mktemp(); open(d, "w").close(); os.replace(d, d + "2"); open(d + "2").read()',
    "logging": 'open(OUT + "/log.txt", "a").write("scored")',
    "own_appended": 'p = tempfile.mktemp(); f = open(p, "a+"); f.write("1"); f.seek(0); f.read(); open(p).read()',
    "standard": "import wave, colorsys, xml.dom.minidom",
    "time_zone": 'import zoneinfo; zoneinfo.ZoneInfo("Europe/Berlin"); open("/etc/localtime", "rb").read()',
    "plumbing": 'os.environ["PATH"]; os.path.expanduser("~")',
    "own_variable": 'os.environ["NJ_OWN"] = "1"; os.environ["NJ_OWN"]',
    "not_its_own_question": "import subprocess; subprocess.list2cmdline([]); tempfile.gettempdir()",
    "sentence": '"see beside.json, or /nowhere/at/all.json."',
    "memory": 'sqlite3.connect(":memory:").close()',
    "processor": 'open("/proc/cpuinfo").read(); os.cpu_count()',
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot (`home`), a folder that nothing covers (`out`), a live job folder, a model."""
    root = tmp_path_factory.mktemp("witness")
    out = root / "out"
    for folder in ("home", "helpers", "live", "out/lib/beyondp", "out/pyc", "out/hub/models--a--b/snapshots/1"):
        (root / folder).mkdir(parents=True)
    for file in ("home/beside.json", "live/vocab.json", "out/vocab.json", "settings.ini", "model.bin"):
        (root / file).write_text("{}")
    (out / "hub/models--a--b/snapshots/1/config.json").write_text("{}")
    (out / "t.csv").write_text("a,b\n1,2\n")
    for name in ("w.npy", "m.npy"):
        np.save(out / name, np.arange(3))
    (out / "lib/beyond.py").write_text("WEIGHT = 2\n")
    (out / "lib/decouple.py").write_text("import os\ndef config(name): return os.environ[name]\n")
    (out / "lib/beyondp/__init__.py").touch()
    (root / "helpers/reading.py").write_text("from . import table\n")
    (root / "helpers/table.py").write_text(
        f"import wave, pyarrow.csv, os\nT = pyarrow.csv.read_csv(os.path.join('{out}', 't.csv'))\n"
    )
    (out / "lib/beyondp/w.txt").write_text("2")
    import py_compile

    (out / "beyondc.py").write_text("WEIGHT = 2\n")
    py_compile.compile(str(out / "beyondc.py"), str(out / "pyc/beyondc.pyc"))
    with zipfile.ZipFile(out / "lib.zip", "w") as archive:
        archive.writestr("beyondz.py", "WEIGHT = 2\n")
    import _ctypes

    (out / "own.so").write_bytes(Path(_ctypes.__file__).read_bytes())
    (root / "home/link.json").symlink_to(out / "vocab.json")
    database = sqlite3.connect(out / "d.sqlite")
    database.execute("create table t(x)")
    database.close()
    return root


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """A local server that takes connections; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def noticed(root: Path, server: int) -> Noticed:
    """By way: what was noticed, as [kind, name, by]. Each module has a copy of the home folder to itself."""
    head = "import ctypes, os, pathlib, socket, sqlite3, subprocess, tempfile\n"
    ways: list[tuple[str, dict[str, object]]] = []

    def write(name: str, top: str, body: str, options: dict[str, str]) -> None:
        place = 'OUT = "OUT"' if "OUT" in top + body else ""
        text = f"{head}{top}\n{place}\ndef score({', '.join(options)}):\n    {body}\n"
        shutil.copytree(root / "home", root / name, symlinks=True)
        if "nj_helpers" in top:
            shutil.copytree(root / "helpers", root / name / "nj_helpers")
        (root / name / f"{name}.py").write_text(_placed(text, root, server))
        placed = {key: _placed(value, root, server) for key, value in options.items()}
        ways.append((name, {key: json.loads(text) if text[0] == "{" else text for key, text in placed.items()}))

    for name, way in SAID.items():
        write(f"way_{name}", way.top, way.code, dict(way.options))
    for name, body in SILENT.items():
        write(f"way_{name}", "", body, {})
    done = subprocess.run(
        [sys.executable, "-B", "-c", CHILD, str(root), json.dumps(ways)],
        env={**os.environ, "NJ_THRESHOLD": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Noticed = json.loads(done.stdout.splitlines()[-1])
    return found


def _placed(text: str, root: Path, port: int) -> str:
    return (
        text.replace('OUT = "OUT"', f'OUT = "{root}/out"')
        .replace("OUT/", f"{root}/out/")
        .replace("ROOT/", f"{root}/")
        .replace("PORT", str(port))
    )


@pytest.mark.parametrize("name", SAID)
def test_what_identity_does_not_cover_is_noticed(name: str, noticed: Noticed, root: Path, server: int) -> None:
    """With the user's file and line; C code's reads by what the code names."""
    way = SAID[name]
    wanted = f"{root}/out" if way.name == "OUT" else _placed(way.name, root, server)
    found = noticed[f"way_{name}"]
    by = [seen[2] for seen in found if seen[:2] == [way.kind, wanted]]
    assert by, found
    if name != "thread":
        assert by[0].partition(":")[0] in {f"way_{name}.py", "model.options", "nj_helpers/table.py"}


@pytest.mark.parametrize("name", SILENT)
def test_what_needs_no_word_gets_none(name: str, noticed: Noticed) -> None:
    """The snapshot, the model, the interpreter, the system and what the process made itself."""
    assert noticed[f"way_{name}"] == []


@pytest.fixture
def notes(root: Path) -> Iterator[Notes]:
    """A watch over this very process."""
    with watching(root / "home") as notes:
        yield notes


def test_a_predictor_of_an_installed_package_is_watched_too(
    root: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its lines lies in the snapshot: what it reads is told without one."""
    (root / "site-packages").mkdir()
    (root / "site-packages/theirs.py").write_text(
        "import socket\n"
        "class Predictor:\n"
        f"    def __init__(self): self.vocabulary = open('{root}/out/vocab.json').read()\n"
        "    def __call__(self, batch): return batch\n"
    )
    monkeypatch.syspath_prepend(str(root / "site-packages"))
    job = Job.model_validate(
        {
            "name": "j",
            "input": {"uri": "i"},
            "output": {"uri": "o"},
            "model": {"uses": "theirs:Predictor", "outputs": {"y": "float32"}},
        }
    )
    load_scorer(model_job(job.model_copy(update={"folder": str(root / "home")})), None)
    assert Seen("file", f"{root}/out/vocab.json") in notes.all()


def test_what_nightjar_itself_reads_is_not_the_predictors(root: Path, notes: Notes) -> None:
    """The watch is over the same process that reads the input and writes the output."""
    LocalStorage().read(f"{root}/out/vocab.json")
    assert notes.all() == ()


def test_a_file_read_only_for_some_rows_is_noticed_when_it_is(root: Path, notes: Notes) -> None:
    """Hours after preflight, in a worker."""
    (root / "home/rows.py").write_text(
        f"def score(rows):\n    return [open('{root}/out/t.csv') for r in rows if r > 8]"
    )
    score = runpy.run_path(str(root / "home/rows.py"))["score"]
    score([1, 2, 3])
    assert notes.all() == ()
    for file in score([9]):
        file.close()
    assert notes.all() == (Seen("file", f"{root}/out/t.csv", "rows.py:2"),)


def test_of_very_many_it_is_kept_that_there_are_more(root: Path, notes: Notes) -> None:
    """A predictor may read a file for each row; what is kept and reported of it stays small."""
    for index in [*range(70), *range(70)]:
        notes.add("file", f"/models/{index}", "predict.py:1")
    assert len(notes.all()) == PER_FOLDER + 1
    assert notes.all()[-1] == Seen("file", "/models", "predict.py:1", more=True)
    assert sentences(notes.all())[0].startswith("predict.py reads more than 50 files in /models, which is not part of")
    assert tuple(notes.news()) == notes.all()
    assert notes.news() == []


def test_news_that_another_thread_has_taken_meanwhile_are_nobody_elses(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between two calls of an actor. Else one of them would fail, and the receipt that it has be lost."""
    others: list[Seen] = []

    class Shared(deque[Seen]):
        def popleft(self) -> Seen:
            if not others:
                others.append(super().popleft())
            return super().popleft()

    monkeypatch.setattr(notes, "_unreported", Shared())
    notes.add("network", "host:80", "predict.py:1")
    assert notes.news() == []
    assert tuple(others) == notes.all()


def test_many_of_a_kind_hide_no_other(notes: Notes) -> None:
    """Nor does one folder hide the next, until there are very many folders."""
    for index in range(1000):
        notes.add("file", f"/models/{index // 100}/{index}", "predict.py:1")
    notes.add("network", "host:80", "predict.py:2")
    notes.add("database", "/d.sqlite", "predict.py:3")
    kept = notes.all()
    assert [seen.name for seen in kept if seen.kind != "file"] == ["host:80", "/d.sqlite"]
    assert [seen.name for seen in kept if seen.more] == ["/models/0", "/models/1", "/models/2", ""]
    assert len(kept) == PER_KIND + 2 + 4
    assert sentences(kept[-1:])[0] == "predict.py uses more files, which are not part of this run's identity"
    said = " ".join(sentences(kept))
    assert "connects to host:80" in said
    assert "opens the database /d.sqlite" in said


def test_what_processes_tell_of_is_put_together(notes: Notes) -> None:
    of_one, of_another = Collection(), Collection()
    for index in range(60):
        of_one.add(Seen("network", f"host:{index}"))
        of_another.add(Seen("network", f"host:{index + 5}"))
    together = Collection(of_one.all())
    for seen in of_another.all():
        together.add(seen)
    assert together.all()[-1] == Seen("network", "", "", more=True)
    assert len(together.all()) == PER_FOLDER + 1
    assert Collection(together.all()) == together


def test_odd_names_stop_nobody(tmp_path: Path) -> None:
    """What the user's code does ends as it would without a watch."""
    (tmp_path / "odd.py").write_text(
        "import os, sqlite3\n"
        "def score():\n"
        "    for name in (b'/\\xff/x', '/\\udcff', 'a' * 5000, '', '/\\0'):\n"
        "        try: open(name)\n"
        "        except (OSError, ValueError) as error: yield type(error).__name__\n"
        "    sqlite3.connect(b':memory:').close()\n"
        "    os.environ.get('NJ_\\udcff')\n"
    )
    with watching(tmp_path) as notes:
        note_names([{"a": None, "b": [{"c": "\udcff/\0"}]}])
        found = list(runpy.run_path(str(tmp_path / "odd.py"))["score"]())
    assert found == ["FileNotFoundError", "FileNotFoundError", "OSError", "FileNotFoundError", "ValueError"]
    assert [seen.name for seen in notes.all()] == ["NJ_\\udcff"]
    json.dumps([sentences([seen]) for seen in notes.all()])


def test_what_could_not_be_noted_is_said(tmp_path: Path) -> None:
    """A strict job is refused for it. The code goes on."""
    with watching(tmp_path) as notes:
        sys.audit("open", object(), "r", 0)  # Python itself causes this event with a path
    assert [(seen.kind, seen.name) for seen in notes.all()] == [("unnoted", "open")]
    assert sentences(notes.all())


def test_a_module_that_cannot_be_parsed_or_has_thousands_of_literals_stops_nobody(root: Path, tmp_path: Path) -> None:
    """Python refuses the one where it is imported; of the other's literals only so many are joined."""
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "half.py").write_text(f"PLACES = ['{root}/out', '\\ud83d', '/\\ud83d', '\\0', b'\\xff']")
    (tmp_path / "many.py").write_text(f"PLACES = ['{root}/out', {', '.join(repr(f'x{n}') for n in range(9000))}]")
    with watching(tmp_path) as notes:
        note_names([])
    assert [(seen.kind, seen.name, seen.by) for seen in notes.all()] == [("folder", f"{root}/out", "half.py:1")]


def test_of_many_folders_the_first_that_a_module_names_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each process the same."""
    home, folders = tmp_path / "home", [tmp_path / f"data{number}" for number in range(20)]
    for folder in (home, *folders):
        folder.mkdir()
        (folder / "t.csv").write_text("x")
    (home / "many.py").write_text(f"PLACES = {[*map(str, folders), 't.csv']}")
    monkeypatch.setattr(literals, "_JOINS", 5 * 21)
    with watching(home) as notes:
        note_names([])
    files = [seen.name for seen in notes.all() if seen.kind == "named"]
    assert sorted(files) == sorted(f"{folder}/t.csv" for folder in folders[:5])


def test_nothing_is_noticed_once_nobody_watches(root: Path) -> None:
    """The hook stays, for it cannot be taken out, and does nothing."""
    with watching(root / "home") as notes:
        pass
    (root / "out/vocab.json").read_text()
    assert notes.all() == ()


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            Seen("file", "/models/churn.joblib", "predict.py:12"),
            "predict.py reads /models/churn.joblib, which is not part of this run's identity; name it in `model.path` "
            "or put it beside the job",
        ),
        (
            Seen("file", "/models/churn.joblib"),
            "the predictor reads /models/churn.joblib, which is not part of this run's identity; name it in "
            "`model.path` or put it beside the job",
        ),
        (
            Seen("environment", "THRESHOLD", "lib/rules.py:3"),
            "lib/rules.py reads THRESHOLD of the environment, which is not part of this run's identity; write it into "
            "`model.options`",
        ),
    ],
)
def test_each_is_said_in_one_sentence(seen: Seen, sentence: str) -> None:
    """Who, what, and what to do about it."""
    assert sentences([seen]) == [sentence]


def test_the_files_of_one_folder_are_said_together() -> None:
    """A model of the Hub is many files, a library many modules."""
    hub = [Seen("file", f"/root/.cache/huggingface/hub/models--a--b/{name}", "p.py:1") for name in "xyz"]
    said = sentences([*hub, Seen("file", "/models/x", "p.py:2")])
    assert len(said) == 2
    assert said[0].startswith("p.py reads 3 files in /root/.cache/huggingface/hub/models--a--b, which is not")


def test_only_so_many_are_said() -> None:
    """Of each kind one before there is a second one of any; and how many are left out."""
    said = sentences([Seen("environment", f"V{index}", "p.py:1") for index in range(12)])
    assert len(said) == 9
    assert said[-1] == "and 4 more that are not part of this run's identity"
    last = Seen("network", "host:80", "p.py:2")
    said = sentences([*(Seen("environment", f"V{index}", "p.py:1") for index in range(12)), last])
    assert said[:2] == sentences([Seen("environment", "V0", "p.py:1"), last])


def test_what_a_framework_keeps_for_itself_is_not_worth_a_word(tmp_path: Path) -> None:
    """Its adapter says where that is; a file of another name in the same place is mentioned."""
    places = Places(str(tmp_path), ())
    prefixes = [prefix for framework in frameworks() for prefix in framework.scratch]
    assert prefixes
    for prefix in prefixes:
        place, begin = os.path.split(prefix)
        with folder_at(place), NamedTemporaryFile(prefix=begin, dir=place) as file:
            assert places.uncovered(file.name) is None
        above = str(Path(prefix.rstrip("/")).parent)
        with folder_at(above), NamedTemporaryFile(prefix="other", dir=above) as file:
            assert places.uncovered(file.name) == file.name


@contextmanager
def folder_at(place: str) -> Iterator[None]:
    """A folder that is there, and goes again if it was not."""
    made = [folder for folder in (Path(place), *Path(place).parents) if not folder.exists()]
    Path(place).mkdir(parents=True, exist_ok=True)
    yield
    for folder in made:
        folder.rmdir()


def test_the_callers_script_is_no_part_of_what_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads its lines when somebody asks for the text of a stack, as torch does when it is imported."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "asks_for_stack.py").write_text("import traceback\n\n\ntext = traceback.format_stack()\n")
    script = tmp_path / "drive.py"
    script.write_text("import asks_for_stack\n")
    drive = compile(script.read_bytes(), str(script), "exec")
    monkeypatch.syspath_prepend(tmp_path / "home")
    with watching(str(tmp_path / "home")) as notes:
        exec(drive, ran := {})
    assert any("import asks_for_stack" in line for line in ran["asks_for_stack"].text), "the script was read"
    assert notes.all() == ()
