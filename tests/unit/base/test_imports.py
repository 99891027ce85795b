"""The rooms: who may import what, read from the source; and how little a command loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors.adapter import frameworks
from support import ROOT, Lake

LIBRARIES = (
    "PIL",
    "torch",
    "sklearn",
    "skops",
    "onnxruntime",
    "lightgbm",
    "xgboost",
    "catboost",
    "transformers",
    "keras",
)
OF_TORCH = ("batches", *(f"tabular/{name}" for name in ("keras", "modules", "ontorch", "torch")))
OF_TEXTS = ("transformers/loading", "transformers/textmodel", "transformers/textpredictors")
OF_FOLDERS = (*OF_TEXTS, "transformers/mediapredictors")
"""The predictors of models in folders, of which only `loading` knows the library that loads them."""

HEAVY = ("ray", *LIBRARIES, "prefect", "pandas", "boto3", "jinja2")


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All that a file says that can import: statements, and calls."""
    tree = ast.walk(ast.parse(path.read_text(), str(path)))
    return tuple(node for node in tree if isinstance(node, ast.Import | ast.ImportFrom | ast.Call))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module a file imports, wherever in it, also by a written-out name."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield str(first.value)


ORDER = {
    "inference": (
        "history",
        "run",
        "engine",
        "validation",
        "scoring",
        "output",
        "logs",
        "ledger",
        "witness",
        "identity",
        "metrics",
        "predictors",
        "input",
        "job",
        "storage",
        "arrow_types",
        "tensors",
        "records",
        "usage",
        "jsonform",
        "errors",
        "messages",
        "stopwatch",
        "process",
        "privatefiles",
    ),
    "flows": (
        "cli",
        "api",
        "serving",
        "backfilling",
        "starting",
        "launch",
        "nightly_flow",
        "outcome",
        "notifying",
        "flow_call",
        "pages",
        "prefect_api",
        "cluster",
        "reports",
        "finished_run",
    ),
}
"""The rooms of each package from top to bottom: each imports from those below it and from itself, never from above.

Above them all stands the package itself, whose `__init__` gives the public names.
"""


def modules(package: str) -> dict[str, Path]:
    """Dotted name below the package → file."""
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT / package).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def edges(package: str) -> set[tuple[str, str]]:
    """Which module of the package imports which other one; also for types alone, and inside functions."""
    known, prefix = modules(package), f"nightjar.{package}"
    pairs = set()
    for module, path in known.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{prefix}."):
                folder = str(node.module).removeprefix(prefix).removeprefix(".")
                named = (f"{folder}.{alias.name}".removeprefix(".") for alias in node.names)
                pairs |= {(module, name if name in known else folder) for name in named}
    return pairs


@pytest.mark.parametrize("package", ORDER)
def test_every_room_has_its_place_in_the_order(package: str) -> None:
    assert {name.partition(".")[0] for name in modules(package)} - {""} == set(ORDER[package])


@pytest.mark.parametrize("package", ORDER)
def test_no_room_imports_from_above(package: str) -> None:
    rank = {room: place for place, room in enumerate(("", *ORDER[package]))}
    above = [pair for pair in edges(package) if rank[pair[0].partition(".")[0]] > rank[pair[1].partition(".")[0]]]
    assert not above


@pytest.mark.parametrize("package", ORDER)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    graph: dict[str, set[str]] = {}
    for module, other in edges(package):
        graph.setdefault(module, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def importers(room: str, module: str) -> set[str]:
    """The files of a room that import a module or anything below it."""
    files = (ROOT / room).rglob("*.py")
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if any(f"{name}.".startswith(f"{module}.") for name in imports(path))
    }


@pytest.mark.parametrize(
    ("room", "module", "owners"),
    [
        ("inference", "prefect", set()),
        ("inference", "prefect_ray", set()),
        ("inference", "nightjar.flows", set()),
        (
            "inference",
            "ray",
            {
                f"inference/engine/ray/{name}.py"
                for name in ("__init__", "capacity", "engine", "internals", "passes", "processes", "warming")
            },
        ),
        ("inference", "ray.data", {"inference/engine/ray/internals.py", "inference/engine/ray/passes.py"}),
        (
            "inference",
            "torch",
            {f"inference/predictors/{n}.py" for n in (*OF_TORCH, *OF_FOLDERS)},
        ),
        ("inference", "transformers", {"inference/predictors/transformers/loading.py"}),
        ("inference", "sklearn", {"inference/predictors/tabular/sklearn.py"}),
        ("inference", "skops", {"inference/predictors/tabular/sklearn.py"}),
        ("inference", "onnxruntime", {"inference/predictors/tabular/onnx.py"}),
        ("inference", "lightgbm", {"inference/predictors/tabular/boosters.py"}),
        ("inference", "xgboost", {"inference/predictors/tabular/boosters.py"}),
        ("inference", "catboost", {"inference/predictors/tabular/boosters.py"}),
        ("inference", "keras", {"inference/predictors/tabular/keras.py"}),
        ("inference", "boto3", {"inference/storage/credentials.py"}),
        ("inference", "deltalake", {"inference/input/sources/delta.py", "inference/output/targets/delta.py"}),
        ("inference", "adbc_driver_postgresql", {"inference/input/sources/databases.py"}),
        ("inference", "sqlite3", {"inference/input/sources/databases.py"}),
        ("inference", "pyiceberg", {"inference/input/sources/iceberg.py"}),
        ("inference", "lance", {"inference/input/sources/lance.py"}),
        ("inference", "botocore", {"inference/storage/credentials.py"}),
        (
            "inference",
            "obstore",
            {f"inference/storage/{name}.py" for name in ("credentials", "bucket")},
        ),
        (
            "flows",
            "ray",
            {f"flows/cluster/{name}.py" for name in ("connection", "internals", "local", "tasks")},
        ),
        (
            "flows",
            "prefect_ray",
            {f"flows/cluster/{n}.py" for n in ("__init__", "connection", "tasks")},
        ),
        ("flows", "jinja2", {"flows/pages/reportpage.py"}),
        ("flows", "starlette", {"flows/prefect_api/ownserver.py", "flows/serving/site.py"}),
        ("flows", "uvicorn", {"flows/prefect_api/ownserver.py", "flows/serving/site.py"}),
        ("flows", "torch", set()),
        ("flows", "sklearn", set()),
        ("flows", "boto3", set()),
        ("flows", "obstore", set()),
        ("flows", "pyarrow.compute", set()),
        ("flows", "pyarrow.parquet", set()),
        ("flows", "pandas", set()),
    ],
)
def test_each_sdk_has_its_owners_and_no_others(room: str, module: str, owners: set[str]) -> None:
    """`inference/` knows no Prefect, `flows/` touches no row, and every SDK is met in one place."""
    assert importers(room, module) == owners


def test_only_the_predictors_name_a_framework() -> None:
    """Neither in code nor in a message: what is said of a framework outside its adapter is a guess for all others."""
    libraries = {name for adapter in frameworks() for name in adapter.libraries}
    uses = {rf"\b{name}\b" for name in FRAMEWORKS}  # some are plain words, which are parts of others
    names = re.compile("|".join({*uses, *libraries, r"\.pt2", "tensorflow", "keras"}))
    assert names.search("import torch")
    allowed = {ROOT / "inference/job/seams.py", *(ROOT / "inference/predictors").rglob("*.py")}
    files = {*(ROOT / "inference").rglob("*.py"), *(ROOT / "flows").rglob("*.py")} - allowed
    found = {
        f"{path.relative_to(ROOT)}: {names.findall(text)}"
        for path in files
        if names.search(text := path.read_text().lower())
    }
    assert not found


def test_the_rooms_are_where_the_rules_look() -> None:
    """A rule about an empty folder would always hold."""
    assert len(list((ROOT / "inference").rglob("*.py"))) > 20
    assert len(list((ROOT / "flows").rglob("*.py"))) > 5


def loaded_by(code: str) -> set[str]:
    """The top-level modules a fresh process has loaded when the code is done."""
    tail = (
        "\nimport sys; sys.__stdout__.write('\\nLOADED ' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED ")[2].split())


def test_the_command_line_loads_nothing_heavy() -> None:
    """`import nightjar.flows.cli.main` is what every command pays first."""
    assert not loaded_by("import nightjar.flows.cli.main") & {*HEAVY, "pyarrow"}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], []])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """Help is there at once, without Ray, torch, Prefect or pandas."""
    code = (
        "import sys\n"
        f"sys.argv = {['nightjar', *words]!r}\n"
        "from nightjar.flows.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code"
    )
    assert not loaded_by(code) & {*HEAVY, "pyarrow"}


def test_the_process_of_a_run_on_ray_loads_what_it_uses() -> None:
    """It reads no rows: its workers do. A framework and pandas take a second or more each, before Ray is started."""
    code = "import nightjar.flows.launch, nightjar.flows.cluster.connection"
    assert not loaded_by(code) & {"pandas", *LIBRARIES, "boto3"}


LOOKS = """
import sys
from nightjar.flows.cli.main import main

for words in COMMANDS:
    sys.argv = ["nightjar", *words]
    try:
        main()
    except SystemExit as done:
        assert done.code in (None, 0, 2), (words, done.code)
    loaded = [name for name in ("ray", "prefect", "torch", "boto3", "obstore") if name in sys.modules]
    assert not loaded, (words, loaded)
"""


def test_commands_that_only_look_load_what_they_use(lake: Lake) -> None:
    """Neither Ray nor Prefect nor a framework nor another storage's client; nor does a run whose job is wrong."""
    run, job = "2026-11-19", str(lake.ready().job_path)
    lake.run(date=run, engine="local")
    looking = [[name, job] for name in ("plan", "status", "runs", "files", "publications")]
    commands = [*looking, ["show", job, run], ["logs", job, run], ["unpublish", job, run], ["republish", job, run]]
    commands += [["prune", job, "--keep", "1"]]
    commands += [["run", str(lake.folder / "nowhere.yaml")]]
    code = LOOKS.replace("COMMANDS", repr(commands))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
