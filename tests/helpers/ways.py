"""Every way we know to change what scores a row: job folders, what is changed in them, and what becomes of it."""

from __future__ import annotations

import json
import os
import pickle
import py_compile
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

AGAIN, REFUSED, SAID = "scored again", "refused", "said"

ROWS_AS_BEFORE = f"{AGAIN}: a row with the same values is scored by the same"


HEAD = "import os, sys\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"


SCORE = "\ndef score(batch):\n    return {'score': batch['x'] * W}\n"


@dataclass(frozen=True)
class Way:
    """A job folder, what is changed, and what becomes of it.

    code: of predict.py, which sets W. files: by name, from the folder above the job's on. first: lays what is no text.
    job: keys that differ; `then`: afterwards. rows: whether a worker must come to them. variable: set afterwards.
    """

    expected: str
    code: str = "W = 1"
    files: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Path], None] = lambda root: None
    first: Callable[[Path], None] = lambda root: None
    job: Mapping[str, Any] = field(default_factory=dict)
    then: Mapping[str, Any] | None = None
    rows: bool = False
    variable: tuple[str, str] | None = None


def put(name: str, text: str) -> Callable[[Path], None]:
    """Write a file, its size and modification time as before if they can be."""

    def change(root: Path) -> None:
        path = root / name
        times = path.stat() if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    return change


def zipped(text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with zipfile.ZipFile(root / "job" / "lib.zip", "w") as archive:
            archive.writestr("h.py", text)

    return change


def team_zip(root: Path) -> None:
    """As PYTHONPATH would name it."""
    with zipfile.ZipFile(root / "team.zip", "w") as archive:
        archive.writestr("team.py", "W = 1")
    sys.path.append(str(root / "team.zip"))


def compiled(text: str) -> Callable[[Path], None]:
    """A module of which there is only the bytecode."""

    def change(root: Path) -> None:
        source = root / "h.py"
        source.write_text(text)
        py_compile.compile(str(source), str(root / "job" / "h.pyc"), doraise=True)
        source.unlink()

    return change


def bytecode(*names: str) -> Callable[[Path], None]:
    """As Python leaves it beside the modules that it imports."""

    def change(root: Path) -> None:
        for name in names:
            py_compile.compile(str(root / name), doraise=True)

    return change


def on_path(name: str) -> Callable[[Path], None]:
    """A folder of packages, compiled as by an earlier process."""

    def change(root: Path) -> None:
        sys.path.append(str(root / name))
        for source in (root / name).rglob("*.py"):
            py_compile.compile(str(source), doraise=True)

    return change


def linked(name: str, target: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(root / target)

    return change


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for each in changes:
            each(root)

    return change


def own_library(root: Path) -> None:
    import _ctypes

    shutil.copy(_ctypes.__file__, root / "own.so")


def database(root: Path) -> None:
    with sqlite3.connect(root / "db") as kept:
        kept.execute("create table w (w)")


def logged(value: int) -> Callable[[Path], None]:
    """A database whose writer keeps its last rows in the log beside it."""

    def change(root: Path) -> None:
        kept = sqlite3.connect(root / "job" / "w.db")
        kept.executescript(
            "pragma journal_mode = wal; pragma wal_autocheckpoint = 0; create table if not exists w (w);"
            f"insert into w values ({value})"
        )
        OPEN.append(kept)

    return change


OPEN: list[sqlite3.Connection] = []


def rewritten(root: Path) -> None:
    """Other rows under the same name, size and modification time."""
    path = root / "job" / "data" / "a.parquet"
    times = path.stat()
    lay_input(root, reverse=True)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size


def lay_input(root: Path, reverse: bool = False, kind: str = "float64") -> None:
    folder = root / "job" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    values = list(range(200))
    table = pa.table({"x": pa.array(values[::-1] if reverse else values, kind), "id": pa.array(values, pa.int64())})
    pq.write_table(table, folder / "a.parquet", compression="none", use_dictionary=False, write_statistics=False)


def package(version: str, text: str = "W = 1") -> dict[str, str]:
    """An installed package of the user's, as files below `site-packages`."""
    return {
        "site-packages/mylib/__init__.py": text,
        "site-packages/my_lib-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: my-lib\nVersion: {version}\n",
        "site-packages/my_lib-1.dist-info/RECORD": "mylib/__init__.py,,\nmy_lib-1.dist-info/METADATA,,\n",
        "site-packages/my_lib-1.dist-info/top_level.txt": "mylib\n",
    }


def installed(version: str, text: str = "W = 1") -> Callable[[Path], None]:
    return both(*(put(name, content) for name, content in package(version, text).items()))


def editable(root: Path) -> None:
    """`my-lib` as most tools install a folder that is worked on: a file names it, which Python reads when it starts."""
    notes = root / "site-packages" / "my_lib-1.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lib\nVersion: 1.0\n")
    (notes / "RECORD").write_text("_editable_impl_my_lib.pth,,\nmy_lib-1.dist-info/METADATA,,\n")
    origin = {"url": f"file://{root}/work", "dir_info": {"editable": True}}
    (notes / "direct_url.json").write_text(json.dumps(origin))
    (root / "site-packages" / "_editable_impl_my_lib.pth").write_text(f"{root}/work/src\n")
    sys.path.append(str(root / "site-packages"))


def pickled(folder: str) -> Callable[[Path], None]:
    """A pickle with a class of the module h, which lies in a folder on Python's path."""

    def change(root: Path) -> None:
        sys.path.append(str(root / folder))
        import h

        (root / "m.pkl").write_bytes(pickle.dumps(h.M()))

    return change


PICKLED: dict[str, Any] = {"uses": "sklearn", "path": "ROOT/m.pkl", "trusted": True}


LOADED = "class M:\n def predict(self, x):\n  return x[:, 0].astype('float32') * 1"


def imported(verdict: str, folder: str, job: Mapping[str, Any] = {}, **model: Any) -> Way:
    """A module in this folder that a trusted pickle imports."""
    module = f"{folder}/h.py"
    return Way(
        verdict,
        files={module: LOADED},
        change=put(module, LOADED.replace("* 1", "* 2")),
        first=pickled(folder),
        job={**job, "model": {**PICKLED, **model}},
    )


LARGE = "x" * (9 << 20)


OUT = "OUT = HERE_ABOVE = Path({root!r})\n"


SENT = "session_2026-11-22_01-02-03_123456_789/runtime_resources/working_dir_files/_ray_pkg_a"


HUB = "home/.cache/huggingface/hub/models--org--name/snapshots/abc/weights.bin"


WAYS: dict[str, Way] = {
    # ---- beside the job file
    "a model that the predictor loads by itself": Way(
        AGAIN, "W = float((HERE / 'm.joblib').read_text())", {"job/m.joblib": "1"}, put("job/m.joblib", "2")
    ),
    "a vocabulary": Way(
        AGAIN, "import json\nW = json.load(open(HERE / 'v.json'))", {"job/v.json": "1"}, put("job/v.json", "2")
    ),
    "a file read by a relative name": Way(
        AGAIN, "W = float(open('v.txt').read())", {"job/v.txt": "1"}, put("job/v.txt", "2")
    ),
    "package data through importlib.resources": Way(
        AGAIN,
        "import importlib.resources as r\nW = float(r.files('pkg').joinpath('w.txt').read_text())",
        {"job/pkg/__init__.py": "", "job/pkg/w.txt": "1"},
        put("job/pkg/w.txt", "2"),
    ),
    "import_module(name=…)": Way(
        AGAIN,
        "import importlib\nW = importlib.import_module(name='h').W",
        {"job/h.py": "W = 1"},
        put("job/h.py", "W = 2"),
    ),
    "import_module under another name": Way(
        AGAIN,
        "from importlib import import_module as load\nW = load('h').W",
        {"job/h.py": "W = 1"},
        put("job/h.py", "W = 2"),
    ),
    "a module's name computed in a loop": Way(
        REFUSED,
        "for n in 'gh':\n    W = __import__(n).W",
        {"job/h.py": "W = 1", "job/g.py": "W = 1"},
        put("job/h.py", "W = 2"),
    ),
    "a module's name that the code computes, imported if it can be": Way(
        REFUSED,
        "from importlib import import_module\ntry:\n W = import_module(chr(104)).W\nexcept ImportError:\n W = 1",
        {"job/h.py": "W = 1"},
        put("job/h.py", "W = 2"),
    ),
    "a package's __getattr__": Way(
        AGAIN,
        "import pkg\nW = pkg.W",
        {
            "job/pkg/__init__.py": "def __getattr__(n):\n from pkg import deep\n return deep.W",
            "job/pkg/deep.py": "W = 1",
        },
        put("job/pkg/deep.py", "W = 2"),
    ),
    "import * with __all__": Way(
        AGAIN,
        "from pkg import *\nW = deep.W",
        {"job/pkg/__init__.py": "__all__ = ['deep']", "job/pkg/deep.py": "W = 1"},
        put("job/pkg/deep.py", "W = 2"),
    ),
    "a module in a zip on the path": Way(
        AGAIN, "sys.path.insert(0, str(HERE / 'lib.zip'))\nfrom h import W", {}, zipped("W = 2"), zipped("W = 1")
    ),
    "a module in a folder on the path": Way(
        AGAIN,
        "sys.path.insert(0, str(HERE / 'libs'))\nfrom h import W",
        {"job/libs/h.py": "W = 1"},
        put("job/libs/h.py", "W = 2"),
    ),
    "a compiled module that Python prefers": Way(
        AGAIN, "try:\n from h import W\nexcept ImportError:\n W = 1", {"job/h.py": "W = 1"}, put("job/h.so", "2")
    ),
    "a module with only its bytecode": Way(AGAIN, "from h import W", {}, compiled("W = 2"), compiled("W = 1")),
    "source of the same size and time": Way(AGAIN, "from h import W", {"job/h.py": "W = 1"}, put("job/h.py", "W = 2")),
    "weights that are mapped": Way(
        AGAIN,
        "import numpy as np\nW = np.memmap(HERE / 'w.bin', 'u1', 'r')[0]",
        {"job/w.bin": "1"},
        put("job/w.bin", "2"),
    ),
    "a module imported late": Way(
        AGAIN,
        "class _W:\n __array_ufunc__ = None\n def __rmul__(s, o):\n  from h import W\n  return o * W\nW = _W()",
        {"job/h.py": "W = 1"},
        put("job/h.py", "W = 2"),
    ),
    "rows of a database that are still in its log": Way(
        AGAIN,
        "import sqlite3\nW = sqlite3.connect(HERE / 'w.db').execute('select sum(w) from w').fetchone()[0]",
        {},
        logged(2),
        logged(1),
    ),
    "a link pointed elsewhere": Way(
        AGAIN,
        "W = float((HERE / 'v').read_text())",
        {"v1": "1", "v2": "2"},
        linked("job/v", "v2"),
        linked("job/v", "v1"),
    ),
    "what a link points to": Way(
        AGAIN, "W = float((HERE / 'v').read_text())", {"v1": "1"}, put("v1", "2"), linked("job/v", "v1")
    ),
    "a hidden settings file": Way(
        REFUSED, "W = float((HERE / '.env').read_text())", {"job/.env": "1"}, put("job/.env", "2")
    ),
    "a module that hides an installed one": Way(AGAIN, "import yaml\nW = 1", {}, put("job/yaml.py", "W = 2")),
    "a file that is gone": Way(
        AGAIN, "W = 1 if (HERE / 'v').exists() else 2", {"job/v": "1"}, lambda root: (root / "job" / "v").unlink()
    ),
    "a YAML file that a pattern of the code names": Way(
        AGAIN,
        "kind = 'net'\nW = len(open(HERE / f'{kind}.yaml').read())",
        {"job/net.yaml": "model: 1"},
        put("job/net.yaml", "model: 2"),
    ),
    "a file whose name the code computes": Way(
        REFUSED, "W = float(open(HERE / chr(118)).read())", {"job/v": "1"}, put("job/v", "2")
    ),
    "a file whose name the code computes, read if it can be": Way(
        REFUSED,
        "try:\n W = float(open(HERE / chr(118)).read())\nexcept OSError:\n W = 1",
        {"job/v": "1"},
        put("job/v", "2"),
    ),
    "a folder that the code lists": Way(
        REFUSED, "W = len([p for p in HERE.iterdir() if p.name != 'x'])", {"job/v": "1"}, put("job/u", "2")
    ),
    "a folder whose name the code computes and lists": Way(
        REFUSED,
        "import glob\nW = len(glob.glob(str(HERE / chr(118) / '*')))",
        {"job/v/w": "1"},
        put("job/v/u", "2"),
    ),
    "modules of a folder that pkgutil lists": Way(
        REFUSED,
        "import pkgutil, rules.base\n"
        "W = sum(__import__('rules.' + m.name, fromlist='W').W for m in pkgutil.iter_modules(rules.__path__))",
        {"job/rules/base.py": "W = 0", "job/rules/a.py": "W = 1"},
        put("job/rules/a.py", "W = 2"),
    ),
    "files of a package without __init__.py that importlib lists": Way(
        REFUSED,
        "import importlib.resources as r, rules.base\n"
        "W = sum(float(p.read_text()) for p in r.files(rules.base.__package__).iterdir() if p.suffix == '.t' + 'xt')",
        {"job/rules/base.py": "", "job/rules/a.txt": "1"},
        put("job/rules/a.txt", "2"),
    ),
    "a compiled module whose name the code computes, imported if it can be": Way(
        REFUSED,
        "from importlib import import_module\ntry:\n W = import_module(chr(104)).W\nexcept ImportError:\n W = 1",
        {},
        compiled("W = 2"),
        compiled("W = 1"),
    ),
    "a file of a folder that the code lists, in `model.code`": Way(
        AGAIN,
        "W = sum(float(p.read_text()) for p in HERE.iterdir() if p.suffix == '.txt')",
        {"job/v.txt": "1"},
        put("job/v.txt", "2"),
        job={"model": {"code": ["*.txt"]}},
    ),
    "a file that an option names": Way(
        AGAIN,
        files={"job/v": "1", "job/predict.py": "def score(batch, w):\n return {'score': batch['x']}"},
        change=put("job/v", "2"),
        job={"model": {"options": {"w": "v"}}},
    ),
    "a file that an ignore file names": Way(
        AGAIN,
        "W = float((HERE / 'm.bin').read_text())",
        {"job/m.bin": "1", "job/.gitignore": "*.bin"},
        put("job/m.bin", "2"),
    ),
    "a file of a program's own folder": Way(
        AGAIN, "W = float((HERE / '.cache' / 'w').read_text())", {"job/.cache/w": "1"}, put("job/.cache/w", "2")
    ),
    "a file of a program's own folder by its full name": Way(
        AGAIN, "W = float((OUT / 'job' / '.cache' / 'w').read_text())", {"job/.cache/w": "1"}, put("job/.cache/w", "2")
    ),
    # ---- the job and its model
    "the predictor's code": Way(AGAIN, change=put("job/predict.py", HEAD + "W = 2" + SCORE)),
    "the model file": Way(
        AGAIN,
        files={"job/m/a": "1", "job/predict.py": "def score(batch, path): ..."},
        change=put("job/m/a", "2"),
        job={"model": {"path": "m/a"}},
    ),
    "a file of the model's folder": Way(
        AGAIN,
        files={"job/m/a": "1", "job/predict.py": "def score(batch, path): ..."},
        change=put("job/m/a", "2"),
        job={"model": {"path": "m"}},
    ),
    "model.version": Way(AGAIN, then={"model": {"version": "2"}}),
    "the options": Way(AGAIN, then={"model": {"options": {"scale": 2}}}),
    "the features": Way(AGAIN, then={"model": {"features": ["id"]}}),
    "the outputs' types": Way(AGAIN, then={"model": {"outputs": {"score": "float64"}}}),
    "the batch size": Way(AGAIN, then={"model": {"batch_size": 7}}),
    "the preprocess": Way(
        AGAIN,
        files={"job/prep.py": "def p(b): return b"},
        change=put("job/prep.py", "def p(b): return {}"),
        job={"preprocess": "prep:p"},
    ),
    "the carried columns": Way(AGAIN, then={"carry": ["x"]}),
    # ---- what a trusted model imports
    "a module beside the job that a pickle imports, on the path as Ray's workers have it": imported(REFUSED, "job"),
    "a module that a pickle imports and `model.code` names": imported(AGAIN, "job", code=["h.py"]),
    "a module elsewhere that a pickle imports": imported(SAID, "lib"),
    "a module elsewhere that a pickle imports, where the job is strict and has code": imported(
        REFUSED, "lib", {"identity": "strict"}, code=["predict.py"]
    ),
    # ---- the input
    "input rewritten with its size and time kept": Way(AGAIN, change=rewritten),
    "a column's type": Way(AGAIN, change=lambda root: lay_input(root, kind="float32")),
    # ---- installed
    "an installed package that `uses` names": Way(
        AGAIN,
        files=package("1.0", "def score(b): ..."),
        change=installed("2.0", "def score(b): pass"),
        job={"model": {"uses": "mylib:score"}},
    ),
    "an installed package of another version": Way(SAID, "from mylib import W", package("1.0"), installed("2.0")),
    "a package that counts": Way(
        AGAIN, "from mylib import W", package("1.0"), installed("2.0"), job={"identity": {"packages": ["my-lib"]}}
    ),
    "an editable package that counts": Way(
        AGAIN,
        files={"work/src/company/mylib/__init__.py": "", "work/src/company/mylib/w.json": "1"},
        change=put("work/src/company/mylib/w.json", "2"),
        first=editable,
        job={"identity": {"packages": ["my-lib"]}},
    ),
    "a file beside the modules of an editable package that counts": Way(
        SAID,
        "W = float((OUT / 'work' / 'src' / 'w').read_text())",
        {"work/src/mylib/__init__.py": "", "work/src/w": "1"},
        put("work/src/w", "2"),
        first=editable,
        job={"identity": {"packages": ["my-lib"]}},
    ),
    # ---- outside
    "an environment variable": Way(SAID, "W = float(os.environ.get('NJ_W', 1))", variable=("NJ_W", "2")),
    "an environment variable by getenv": Way(SAID, "W = float(os.getenv('NJ_W', '1'))", variable=("NJ_W", "2")),
    "a file elsewhere": Way(SAID, "W = float((OUT / 'w').read_text())", {"w": "1"}, put("w", "2")),
    "an array elsewhere": Way(
        SAID, "import numpy as np\nW = np.fromfile(OUT / 'w.bin', 'u1')[0]", {"w.bin": "1"}, put("w.bin", "2")
    ),
    "a config in the folder above": Way(
        SAID, "W = float((OUT / 'config').read_text())", {"config": "1"}, put("config", "2")
    ),
    "the live folder by its full name": Way(SAID, "W = float((OUT / 'job' / 'v').read_text())", {"job/v": "1"}),
    "a module elsewhere on the path": Way(
        SAID,
        "sys.path.append(str(OUT / 'lib'))\nfrom elsewhere import W",
        {"lib/elsewhere.py": "W = 1"},
        put("lib/elsewhere.py", "W = 2"),
    ),
    "a module in a zip that PYTHONPATH names": Way(SAID, "from team import W", first=team_zip),
    "code that somebody sent along with a Ray job": Way(
        SAID,
        f"sys.path.append(str(OUT / '{SENT}'))\nfrom sent import W",
        {f"{SENT}/sent.py": "W = 1"},
        put(f"{SENT}/sent.py", "W = 2"),
    ),
    "a file that lies among the input": Way(
        AGAIN,
        "W = float((OUT / 'job' / 'data' / 'airports.json').read_text())",
        {"job/data/airports.json": "1"},
        put("job/data/airports.json", "2"),
        job={"input": {"uri": "data/*.parquet"}},
    ),
    "a file of the input that belongs to other rows": Way(
        SAID, "W = len((OUT / 'job' / 'data' / 'a.parquet').read_bytes())"
    ),
    "what an earlier night published": Way(
        SAID, "W = float((OUT / 'job' / 'out' / 'w').read_text())", {"job/out/w": "1"}, put("job/out/w", "2")
    ),
    "a file read only for some rows": Way(
        SAID,
        "class _W:\n __array_ufunc__ = None\n def __rmul__(s, o):\n"
        "  return o * float((OUT / 'r').read_text()) if max(o) > 150 else o\nW = _W()",
        {"r": "1"},
        put("r", "2"),
        job={"model": {"batch_size": 50}},
        rows=True,
    ),
    "a model of the Hub": Way(SAID, f"W = float((OUT / '{HUB}').read_text())", {HUB: "1"}, put(HUB, "2")),
    "a file read by C code": Way(
        SAID,
        "import ctypes\nctypes.CDLL(None).fopen(str(OUT / 'w').encode(), b'r')\nW = 1",
        {"w": "1"},
        put("w", "2"),
    ),
    "a CSV file read by Arrow": Way(
        SAID,
        "import pyarrow.csv as csv\nW = csv.read_csv(str(OUT / 'w.csv'))['w'][0].as_py()",
        {"w.csv": "w\n1\n"},
        put("w.csv", "w\n2\n"),
    ),
    "a file that Arrow maps": Way(
        SAID, "import pyarrow as pa\nM = pa.memory_map(str(OUT / 'w'))\nW = float(M.read())", {"w": "1"}, put("w", "2")
    ),
    "a database file": Way(
        SAID, "import sqlite3\nsqlite3.connect(OUT / 'db').execute('select 1')\nW = 1", first=database
    ),
    "a server": Way(
        SAID,
        "import socket\nwith socket.socket() as s:\n s.settimeout(1)\n s.connect_ex(('127.0.0.1', 9))\nW = 1",
    ),
    "a program's answer": Way(
        SAID, "import subprocess\nW = float(subprocess.check_output(['cat', OUT / 'w']))", {"w": "1"}, put("w", "2")
    ),
    "a shared library elsewhere": Way(
        SAID, "import ctypes\nctypes.CDLL(str(OUT / 'own.so'))\nW = 1", first=own_library
    ),
    "a path in the options": Way(
        SAID,
        files={"w": "1", "job/predict.py": "def score(batch, w):\n return {'score': batch['x']}"},
        change=put("w", "2"),
        job={"model": {"options": {"w": "ROOT/w"}}},
    ),
    "a file elsewhere, where the job is strict": Way(
        REFUSED, "W = float((OUT / 'w').read_text())", {"w": "1"}, put("w", "2"), job={"identity": "strict"}
    ),
}


SILENT: dict[str, Way] = {
    "nothing": Way("silent"),
    "bytecode of an earlier process": Way(
        "silent", "from h import W", {"job/h.py": "W = 1"}, first=bytecode("job/predict.py", "job/h.py")
    ),
    "a module of a strict job's pickle that `model.code` names": Way(
        "silent",
        files={"job/h.py": LOADED},
        first=pickled("job"),
        job={"identity": "strict", "model": {**PICKLED, "code": ["h.py"]}},
    ),
    "a file of a package without __init__.py, by importlib": Way(
        "silent",
        "import importlib.resources as r, rules.base\n"
        "W = len(r.files(rules.base.__package__).joinpath('base.py').read_text())",
        {"job/rules/base.py": "", "job/rules/other.txt": ""},
    ),
    "an editable package that counts, in a strict job": Way(
        "silent",
        "from mylib import W",
        {"work/src/mylib/__init__.py": "from mylib.w import W", "work/src/mylib/w.py": "W = 1"},
        first=both(editable, on_path("work/src")),
        job={"identity": {"strict": True, "packages": ["my-lib"]}},
    ),
    "a strict job's own predictor on PYTHONPATH": Way(
        "silent",
        files={
            "lib/mylib/__init__.py": "from pathlib import Path\nW = float(Path(__file__).with_name('w').read_text())\n"
            "def score(b): return {'score': b['x'] * W}",
            "lib/mylib/w": "1",
        },
        first=on_path("lib"),
        job={"identity": "strict", "model": {"uses": "mylib:score"}},
    ),
}


UNSEEN: dict[str, Way] = {
    "an installed package edited in place": Way(
        "silent", "from mylib import W", package("1.0"), installed("1.0", "W = 2")
    ),
    "data of an installed package edited in place": Way(
        "silent",
        "from mylib import W",
        {
            **package("1.0", "from pathlib import Path\nW = float(Path(__file__).with_name('w').read_text())"),
            "site-packages/my_lib-1.dist-info/RECORD": "mylib/__init__.py,,\nmylib/w,sha256=any,1\n",
            "site-packages/mylib/w": "1",
        },
        put("site-packages/mylib/w", "2"),
    ),
    "a large file of a package that counts": Way(
        "silent",
        files={**package("1.0"), "site-packages/mylib/w.bin": LARGE},
        change=put("site-packages/mylib/w.bin", LARGE[1:] + "y"),
        job={"identity": {"packages": ["my-lib"]}},
    ),
    "an environment variable that an installed predictor reads": Way(
        "silent",
        files=package(
            "1.0", "import os\nW = float(os.getenv('NJ_W', '1'))\ndef score(b): return {'score': b['x'] * W}"
        ),
        job={"model": {"uses": "mylib:score"}},
        variable=("NJ_W", "2"),
    ),
    "a file that C code reads by a computed path": Way(
        "silent",
        "import ctypes\nctypes.CDLL(None).fopen(str(OUT / chr(119)).encode(), b'r')\nW = 1",
        {"w": "1"},
        put("w", "2"),
    ),
}
"""What nothing tells: a package counts by its version, Python tells nobody of a read variable, and C code leaves no
trace of a file that it closes. The docs say so."""
