"""How a process opens what it scores with: the run's copies of model and code, and a watch over what else is used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from modeljobs import model_job
from nightjar.inference import messages
from nightjar.inference.errors import JobError
from nightjar.inference.identity import snapshots
from nightjar.inference.scoring.assignment import (
    WorkerSpec,
    batch_size,
    enter_copy,
    open_scorers,
    open_stage,
    read_schema,
)
from nightjar.inference.witness import audit as witness
from ownsource import EXAMPLE, RECORD
from support import Lake

MODEL = """
import os

class Predictor:
    def __init__(self, path, table=""):
        self.factor = float(open(path).read())
        self.more = float(open("more.json").read())
        for each in (os.path.join({outside!r}, "vocab.json"), os.path.join({folder!r}, "live.txt")):
            open(each).read()

    def __call__(self, batch):
        return {{"score": batch["x"] * self.factor + self.more}}
"""


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a process does that has itself alone is undone at the end: folder, path and watch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    witness.watch(None)


@pytest.fixture
def spec(lake: Lake) -> WorkerSpec:
    """Of a predictor that reads its model, a file beside it, one outside of the job, and one of the live folder."""
    outside = lake.folder.with_name("outside")
    outside.mkdir()
    for path, text in (
        (lake.folder / "weights.txt", "3"),
        (lake.folder / "more.json", "10"),
        (lake.folder / "live.txt", "live"),
        (outside / "vocab.json", "{}"),
        (outside / "table.csv", "1"),
    ):
        path.write_text(text)
    lake.write_model(MODEL.format(outside=str(outside), folder=str(lake.folder)))
    options = {"table": str(outside / "table.csv")}
    lake.ready(model__uses="model:Predictor", model__path="weights.txt", model__options=options)
    return replace(lake.worker_spec(), own_process=True)


@pytest.mark.usefixtures("own_process")
def test_a_process_scores_with_the_runs_files_and_notes_which_others_are_used(lake: Lake, spec: WorkerSpec) -> None:
    """It stands in its copy of the folder. The model is known; a file that an option names is noted."""
    for name in ("weights.txt", "more.json"):
        (lake.folder / name).write_text("1000")
    scorer = open_scorers(spec).loaded[0]
    witness.note_names([each.options for each in spec.job.models])
    noticed = {(each.kind, each.name) for each in witness.seen()}
    assert scorer(pa.table({"x": [1.0]}))["score"].to_pylist() == [13.0]
    assert Path.cwd() != lake.folder
    assert (Path.cwd() / "more.json").read_text() == "10"
    outside = lake.folder.with_name("outside")
    assert noticed == {
        ("file", f"{outside}/vocab.json"),
        ("named", f"{outside}/table.csv"),
        ("live", f"{lake.folder}/live.txt"),
    }


@pytest.mark.usefixtures("own_process")
def test_a_file_that_only_an_option_names_is_noted(lake: Lake) -> None:
    """Also where no function of the user's own gets it: Python made the one that takes the options of a dataclass."""
    table = lake.folder.with_name("table.csv")
    table.write_text("1")
    lake.write_model(
        "from dataclasses import dataclass\n\n@dataclass\nclass Predictor:\n    table: str\n\n"
        "    def __call__(self, batch):\n        return {'score': batch['x']}\n"
    )
    lake.ready(model__uses="model:Predictor", model__options={"table": str(table)})
    open_scorers(replace(lake.worker_spec(), own_process=True))
    witness.note_names([{"table": str(table)}])
    assert [(each.kind, each.name) for each in witness.seen()] == [("named", str(table))]


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("inside", [True, False])
def test_python_finds_in_the_copy_what_it_found_in_the_live_folder(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Also by the empty entry, if the working directory is the live folder. Other entries stay, and so do those of
    environments.
    """
    lake.write_model()
    for name in ("src/more.py", "env/conda-meta/history", "env/lib/python3.11/site-packages/theirs.py"):
        (lake.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (lake.folder / name).write_text("")
    request, live = lake.ready().request(), str(lake.folder)
    others = [
        f"{live}/env/lib/python3.11/site-packages",
        f"{live}/not-there",
        "__editable__.finder",
        str(lake.folder.parent),
    ]
    monkeypatch.chdir(lake.folder if inside else lake.folder.parent)
    monkeypatch.setattr(sys, "path", ["", live, f"{live}/src", *others])
    job, _ = enter_copy(request.job, request.scoring.code, tmp_path / "cache")
    assert sys.path == [job.folder if inside else "", job.folder, f"{job.folder}/src", *others]
    assert Path.cwd() == Path(job.folder) != lake.folder


STAGED = """
def prep(batch):
    return {"y": batch["x"] + 1}

class Net:
    def __init__(self, path):
        raise AssertionError("only an actor loads this")

    def __call__(self, batch):
        return {"score": batch["y"]}
"""


@pytest.mark.usefixtures("own_process")
def test_the_cpu_stage_loads_of_each_model_the_preprocess(lake: Lake) -> None:
    """As it was when the run began; the models' files are not fetched."""
    lake.write_model(STAGED)
    (lake.folder / "tree.txt").write_text("3")
    (lake.folder / "net.txt").write_text("5")
    each = {"outputs": {"score": "float32"}, "features": ["x"]}
    tree = {**each, "name": "tree", "uses": "model:Net", "path": "tree.txt"}
    net = {**each, "name": "net", "uses": "model:Net", "path": "net.txt", "preprocess": "model:prep", "features": ["y"]}
    spec = lake.ready(model=None, models=[tree, net]).worker_spec()
    (lake.folder / "tree.txt").unlink()
    (lake.folder / "net.txt").unlink()
    first, second = open_stage(replace(spec, own_process=True)).loaded
    witness.note_names([])
    assert witness.seen() == ()
    rows = pa.table({"x": pa.array([1.0, 2.0], pa.float32())})
    assert [values.tolist() for values in first.preprocess(rows).values()] == [[1.0, 2.0]]
    assert [values.tolist() for values in second.preprocess(rows).values()] == [[2.0, 3.0]]


def test_all_that_is_read_where_it_lies_is_known(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an installed package, a model and a file of the code that are too large to copy: no change escapes."""
    site = lake.folder.with_name("site-large")
    site.mkdir()
    (site / "nightjar_large.py").write_text(
        "class Model:\n    def __init__(self, path): pass\n    def __call__(self, batch): return {}\n"
    )
    (lake.folder / "weights.bin").write_text("0123456789")
    lake.write_model("from nightjar_large import Model\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(snapshots, "COPIED_BYTES", 5)
    keys = {"model__uses": "nightjar_large:Model", "model__path": "weights.bin", "model__code": ["model.py"]}
    spec = lake.ready(**keys).worker_spec()
    names = {Path(each.source).name for each in open_scorers(spec).linked}
    assert names == {"nightjar_large.py", "weights.bin", "model.py"}


def test_a_model_that_cannot_be_loaded_is_said_with_its_key_and_error(lake: Lake) -> None:
    lake.write_model(
        "class Predictor:\n    def __init__(self): raise KeyError('colour')\n    def __call__(self, batch): pass\n"
    )
    with pytest.raises(JobError) as failed:
        open_scorers(lake.ready(model__uses="model:Predictor").worker_spec())
    assert (
        str(failed.value)
        == "model.uses: loading model:Predictor failed with KeyError: 'colour' (model.py:2, in __init__)"
    )
    assert failed.value.traceback.endswith("KeyError: 'colour'\n")


def test_an_error_of_opening_says_which_of_several_models_it_is_about(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the model's own code raises it, or what imports that, or a file that is too large to copy has changed."""
    lake.write_model(
        "class Raises:\n    def __init__(self): raise KeyError('colour')\n    def __call__(self, batch): pass\n"
        "class Reads:\n    def __init__(self, path): pass\n    def __call__(self, batch): pass\n"
    )
    (lake.folder / "weights.txt").write_text("3")
    each = {"features": ["x"], "outputs": {"score": "float32"}}
    good = {**each, "name": "good", "uses": "model:Reads", "path": "weights.txt"}
    lake.ready(model=None, models=[good, {**each, "name": "bad", "uses": "model:Raises"}])
    with pytest.raises(JobError, match=r"^models\.bad: model\.uses: loading model:Raises failed with KeyError: "):
        open_scorers(lake.worker_spec())
    lake.write_job(model=None, models=[good, {**each, "name": "bad", "uses": "model:Gone"}])
    with pytest.raises(JobError, match=r"^models\.bad: model\.uses: module 'model' .* has no 'Gone'") as failed:
        open_scorers(lake.worker_spec())
    assert failed.value.__cause__ is not None
    monkeypatch.setattr(snapshots, "COPIED_BYTES", 0)
    spec = lake.worker_spec()
    (lake.folder / "weights.txt").write_text("1000")
    with pytest.raises(JobError, match=r"^models\.good: "):
        open_scorers(spec)


@pytest.mark.parametrize(
    "line",
    [
        "raise ValueError(KEY)",
        "raise ValueError({'key': KEY})",
        "import urllib.parse\nraise ValueError(urllib.parse.urlencode({'key': KEY}))",
        "class Predictor:\n    def __init__(self): open(KEY)\n    def __call__(self, batch): pass",
    ],
)
def test_a_secret_in_an_error_of_loading_is_not_told(lake: Lake, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Nor by what caused the error."""
    monkeypatch.setattr(messages, "_hidden", [])
    monkeypatch.setenv("THE_KEY", "")
    monkeypatch.setenv("OF_TONIGHT", "hunter2\\hunter2")
    lake.write_model(f"import os\nKEY = os.environ['THE_KEY']\n{line}\n")
    lake.ready(model__uses="model:Predictor", resources__runtime_env={"env_vars": {"THE_KEY": "${OF_TONIGHT}"}})
    with pytest.raises(JobError, match=r"^model\.uses: .* failed with \w+: .*\*\*\*") as failed:
        open_scorers(replace(lake.worker_spec(), environment=lake.request().environment))
    assert "hunter2" not in str(failed.value)
    assert (failed.value.__cause__, failed.value.__suppress_context__) == (None, True)


def test_a_source_of_the_users_own_reads_as_it_did_when_the_run_began(lake: Lake) -> None:
    (lake.folder / "data").mkdir(parents=True)
    np.zeros(10, RECORD).tofile(lake.folder / "data" / "a.rec")
    lake.write_model()
    (lake.folder / "readings.py").write_text(EXAMPLE)
    lake.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["id"])
    spec = lake.worker_spec()
    opened = open_scorers(spec)
    (lake.folder / "readings.py").write_text("raise ImportError('not any more')")
    folder = Path(opened.reading(spec).job.folder)
    assert (folder / "readings.py").read_text() == EXAMPLE
    (lake.folder / "data" / "a.rec").unlink()
    plain = lake.ready().worker_spec()
    assert open_scorers(plain).reading(plain) is plain


def test_a_file_that_the_predictor_misses_is_explained(lake: Lake) -> None:
    """Also where the predictor itself raises, and not the import of its module."""
    lake.write_model(
        "class Predictor:\n    def __init__(self):\n        open('words' + '.json')\n"
        "    def __call__(self, batch): pass\n"
    )
    (lake.folder / "words.json").write_text("{}")
    spec = replace(lake.ready(model__uses="model:Predictor").worker_spec(), own_process=True)
    try:
        with pytest.raises(JobError) as failed:
            open_scorers(spec)
    finally:
        witness.watch(None)
    assert str(failed.value) == (
        "model.uses: loading model:Predictor failed with FileNotFoundError: [Errno 2] No such file or directory: "
        "'words.json' (model.py:3, in __init__). words.json lies beside the job and is not part of what scores; add it "
        "to model.code"
    )


@pytest.mark.parametrize(("features", "gpus", "rows"), [(["x"], 0, 16384), (None, 0, 8192), (["x"], 1, 65536)])
def test_rows_of_a_micro_batch_are_chosen_by_what_the_model_sees(
    lake: Lake, features: list[str] | None, gpus: int, rows: int
) -> None:
    """x alone is narrow, and id, x and name together are not; a GPU takes more."""
    job = {"model__batch_size": "auto", "carry": [], "resources": {"actors": 1, "gpus": gpus}}
    if features is None:
        lake.write_model("def score(batch):\n    return {'score': batch['x']}\n")
    spec = lake.ready(**job, model__features=features).worker_spec()
    assert batch_size(model_job(spec.job), spec.schema).most == rows


def test_a_number_of_rows_is_taken_as_it_is(lake: Lake) -> None:
    spec = lake.ready(model__batch_size=77).worker_spec()
    assert batch_size(model_job(spec.job), spec.schema).most == 77


@pytest.mark.parametrize(
    ("uses", "size", "gpus", "rows"),
    [
        ("embed", "auto", 0, 2048),
        ("embed", "auto", 1, 16384),
        ("embed", 77, 0, 77),
        ("object-detection", "auto", 0, 4),
        ("object-detection", "auto", 1, 16),
    ],
)
def test_models_that_pack_rows_themselves_get_thousands_of_them_and_those_of_images_few(
    lake: Lake, uses: str, size: int | str, gpus: int, rows: int
) -> None:
    """However long the texts are; a number of rows is taken as it is."""
    spec = lake.ready(resources={"actors": 1, "gpus": gpus}).worker_spec()
    model = spec.job.models[0].model_copy(update={"uses": uses, "batch_size": size})
    job = spec.job.model_copy(update={"models": (model,)})
    assert batch_size(model_job(job), spec.schema).most == rows


def test_what_is_read_is_what_the_model_sees_what_is_carried_and_the_label(lake: Lake) -> None:
    """Nothing else, in the order of the file."""
    schema = pa.schema([("other", pa.int8()), ("late", pa.bool_()), ("x", pa.float32()), ("id", pa.int64())])
    job = lake.ready(carry=["id"]).request().job
    assert read_schema(job, schema).names == ["x", "id"]
    assert read_schema(job.model_copy(update={"label": "late"}), schema).names == ["late", "x", "id"]
