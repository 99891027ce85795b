"""What is wrong with a job is said in one sentence, with exit code 2, before anything starts.

Each command has a process of its own. That nothing started is read from what the process imported: a run begins by
importing `nightjar.flows.launch`, and with it Ray and Prefect.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forked import forked_light
from support import Lake, command

STARTERS = {"ray", "prefect", "prefect_ray", "torch", "nightjar.flows.launch"} | {
    f"nightjar.inference.engine.{name}" for name in ("ray", "local")
}


class Refusal:
    """What the command said, and that it did nothing else."""

    def __init__(self, lake: Lake, *words: str | Path) -> None:
        before = sorted(lake.folder.rglob("*"))
        done = forked_light(*words, env={"COLUMNS": "80"})
        self.said, self.out = done.stderr.removesuffix("\n"), done.stdout
        assert done.returncode == 2, f"exit code {done.returncode}: {self.said}"
        assert "typer" in done.imported, "the imports are listed"
        assert not done.imported & STARTERS, "nothing is started for a job that cannot run"
        assert sorted(lake.folder.rglob("*")) == before, "nothing is written"


def refusal(lake: Lake, *options: str) -> str:
    """The one sentence that `nightjar run` says, without its prefix; nothing else is printed."""
    found = Refusal(lake, "run", lake.job_path, "--date", "2026-11-19", *options)
    assert found.out == ""
    assert found.said.startswith("nightjar: ")
    assert "\n" not in found.said, "one sentence"
    assert "Traceback" not in found.said
    return found.said.removeprefix("nightjar: ")


# ---- the job file -------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (
        {"model__bathc_size": 3},
        r"{job}: unknown key 'model\.bathc_size'; did you mean 'model\.batch_size'\?",
    ),
    "one model and several": (
        {"models": [{"name": "net", "uses": "model:score", "outputs": {"score": "float32"}}]},
        r"{job}: models: model is there, too; write one of the two",
    ),
    "wrong type": ({"retry__attempts": "three"}, r"{job}: retry\.attempts: must be a whole number, not 'three'"),
    "missing feature": (
        {"model__features": ["distance"]},
        r"model\.features: 'distance' is not a column of the input; it has id, x, name",
    ),
    "missing carried column": (
        {"carry": ["idd"]},
        r"carry: 'idd' is not a column of the input; did you mean 'id'\?",
    ),
    "missing label": ({"label": "late"}, r"label: 'late' is not a column of the input; it has id, x, name"),
    "label of another type": (
        {"label": "name"},
        r"label: 'name' is string; a label is bool, or 0 and 1 \(evaluation\.task: binary\)",
    ),
    "slices of numbers": (
        {"label": "id", "evaluation": {"slices": ["score"]}},
        r"evaluation\.slices: 'score' is float; name columns of text, integers, bools or dates",
    ),
    "label without a score": (
        {"label": "x", "model__outputs": {"score": "string"}},
        r"label: 'x' needs a score to be compared with, but no output of the model is a float; declare one in .*",
    ),
    "check of numbers on text": (
        {"checks": [{"column": "name", "min": 0}]},
        r"checks\[0\]\.min: asks for numbers, but 'name' is string; remove it, or check another column",
    ),
    "output clashes with a carried column": (
        {"model__outputs": {"id": "float32"}},
        r"{job}: carry: 'id' is also an output of model; rename one of the two, or leave it out",
    ),
    "no such module": (
        {"model__uses": "modle:score"},
        r"model\.uses: there is no module 'modle' in {folder} or among the installed packages; did you mean 'model'\?",
    ),
    "absent model": (
        {"model__uses": "torch", "model__path": "models/delay.pt2"},
        r"model\.path: there is no file or folder {folder}/models/delay\.pt2 on [\w.-]+",
    ),
    "model that is no .pt2": (
        {"model__uses": "torch", "model__path": "model.py"},
        r"model\.path: {folder}/model\.py is not a \.pt2 exported program; make one with torch\.export\.save\(.*\)",
    ),
    "absent input": (
        {"input__uri": "nowhere/"},
        r"input\.uri: no input files at {folder}/nowhere/: {folder}/nowhere does not exist",
    ),
    "absent input of a date": (
        {"input__uri": "in/{date:%Y/%m/%d}/"},
        r"input\.uri: no input files at {folder}/in/2026/11/19/: {folder}/in/2026/11/19 does not exist",
    ),
    "input inside output": (
        {"output__uri": "."},
        r"output\.uri: {folder} and input\.uri {folder}/data/ lie in each other, so that .*; keep them apart",
    ),
    "output inside input": (
        {"output__uri": "data/out"},
        r"output\.uri: {folder}/data/out and input\.uri {folder}/data/ lie in each other, so that .*",
    ),
    "output that the input's pattern takes in": (
        {"input__uri": "**/*.parquet"},
        r"output\.uri: {folder}/out and input\.uri {folder}/\*\*/\*\.parquet lie in each other, so that .*",
    ),
    "output that is a file": (
        {"output__uri": "model.py"},
        r"output\.uri: {folder}/model\.py is a file; write a folder",
    ),
    "place of another kind": (
        {"input__uri": "ftp://host/data/"},
        r"{job}: input\.uri: 'ftp://host/data/' is no place; write a path, or s3://, gs:// or az:// with a bucket; "
        r"or https:// with a file \(a host beyond ASCII as xn--…\)",
    ),
    "folder of a web server": (
        {"input__uri": "https://host/data/"},
        r"{job}: input\.uri: 'https://host/data/' is a folder of a web server, which lists no files; name each file",
    ),
    "pattern of a web server": (
        {"input__uri": "https://host/{date}/*.csv?x=1"},
        r"{job}: input\.uri: 'https://host/\{date\}/\*\.csv\?sha256=\w+' is a pattern of a web server, which .*",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_job_is_refused_with_one_sentence_before_anything_starts(lake: Lake, case: str) -> None:
    changes, sentence = WRONG[case]
    lake.write_file("a.parquet", 0, 10)
    lake.write_model()
    lake.write_job(**changes)
    names = {"job": re.escape(str(lake.job_path)), "folder": re.escape(str(lake.folder))}
    pattern = sentence.replace("{job}", names["job"]).replace("{folder}", names["folder"])
    said = refusal(lake)
    assert re.fullmatch(pattern, said), said


def empty(lake: Lake) -> str:
    lake.write_file("a.parquet", 0, 0)
    lake.write_file("b.parquet", 0, 0)
    return r"input\.uri: no rows in 2 files at .*/data/"


def without_parquet(lake: Lake) -> str:
    (lake.folder / "data" / "a.parquet").rename(lake.folder / "data" / "a.orc")
    return r"input\.uri: no input files at .*/data/, only other files, as .*\.orc; input\.format says what.*"


def unreadable(lake: Lake) -> str:
    (lake.folder / "data" / "a.parquet").write_text("a,b,c")
    return r"input\.uri: no file can be read; the first: .*/data/a\.parquet: not a readable Parquet file: .*"


def taken(lake: Lake) -> str:
    lake.out.mkdir()
    (lake.out / "job.json").write_text(json.dumps({"job": "somebody-else", "since": "2026-01-01"}))
    return r"output\.uri: .*/out belongs to the job 'somebody-else'; give 'lake' a place of its own"


def foreign(lake: Lake) -> str:
    lake.out.mkdir()
    (lake.out / "job.json").write_text("[]")
    return r"output\.uri: .*/out/job\.json was not written by Nightjar; give 'lake' a place of its own"


def broken_code(lake: Lake) -> str:
    lake.write_model("def score(batch:\n    return {}\n")
    return r"model\.uses: .*/model\.py, line 1: '\(' was never closed"


def no_yaml(lake: Lake) -> str:
    lake.job_path.write_text("name: lake\n\tinput: data/")
    return r".*/job\.yaml: line 2, column 1: not valid YAML: found character '\\t' that cannot start any token; text .*"


def unreadable_model(lake: Lake) -> str:
    (lake.folder / "model.pt2").write_bytes(b"not a model")
    lake.write_job(model__uses="torch", model__path="model.pt2")
    return r"model\.path: .*/model\.pt2 is not an exported program \(\.pt2\) that can be read: File is not a zip file"


def column_no_model_takes(lake: Lake) -> str:
    write_program(lake.folder / "model.pt2", b"")
    lake.write_job(model__uses="torch", model__path="model.pt2", model__trusted=True, model__features=["x", "name"])
    return r"model\.features: 'name' is string, and the torch adapter takes numbers only; list the columns .*"


def labels_of_three_classes(lake: Lake) -> str:
    lake.write_job(label="id")
    return r"label: label column 'id' holds 2; it must be 0, 1 or null \(in .*/data/a\.parquet\)"


SETUPS: list[Callable[[Lake], str]] = [
    empty,
    without_parquet,
    unreadable,
    taken,
    foreign,
    broken_code,
    no_yaml,
    unreadable_model,
    column_no_model_takes,
    labels_of_three_classes,
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.__name__)
def test_a_wrong_lake_is_refused_with_one_sentence_before_anything_starts(
    lake: Lake, setup: Callable[[Lake], str]
) -> None:
    """Whatever lies around the job file: input, output, code and model."""
    lake.write_file("a.parquet", 0, 10)
    lake.write_model()
    lake.write_job()
    sentence = setup(lake)
    said = refusal(lake)
    assert re.fullmatch(sentence, said), said


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


def write_program(path: Path, samples: bytes) -> None:
    """An archive like those `torch.export.save` writes, as far as it is looked at before loading."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/models/model.json", "{}")
        archive.writestr("model/data/sample_inputs/model.pt", samples)


def test_a_hostile_model_is_refused_without_being_loaded(lake: Lake) -> None:
    """Loading a .pt2 unpickles: this one would run code. It is looked at without torch."""
    proof = lake.folder / "proof"
    pickled = pickle.dumps(Hostile(proof), 2)
    pickle.loads(pickled)
    proof.unlink()
    write_program(lake.folder / "model.pt2", pickled)
    lake.write_file("a.parquet", 0, 10)
    lake.write_job(model__uses="torch", model__path="model.pt2")
    said = refusal(lake)
    assert not proof.exists()
    assert re.fullmatch(
        r"model\.path: .*/model\.pt2 is an exported program \(\.pt2\), a program: to load it is to run whatever its "
        r"maker put into it, as you; write model\.trusted: true if you trust its maker, or save its state dict .*",
        said,
    ), said


def test_the_installed_command_refuses_as_quickly(lake: Lake) -> None:
    """The same from the start of its own interpreter: exit code, sentence, and what it imports."""
    lake.write_job(retry__attempts="three")
    # Python then lists every import on standard error.
    done = command("run", lake.job_path, env={"PYTHONPROFILEIMPORTTIME": "1"})
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    said = [line for line in lines if not line.startswith("import time:")]
    assert (done.returncode, said, done.stdout) == (
        2,
        [f"nightjar: {lake.job_path}: retry.attempts: must be a whole number, not 'three'"],
        "",
    )
    assert "typer" in imported, "the imports are listed"
    assert not imported & STARTERS


def test_every_fault_of_a_job_file_is_named_at_once(lake: Lake) -> None:
    lake.write_job(carry="id", retry__attempts=0, output__tabels=[])
    said = Refusal(lake, "run", lake.job_path).said.removeprefix("nightjar: ").splitlines()
    assert [line.removeprefix(f"{lake.job_path}: ") for line in said] == [
        "carry: must be a list, not 'id'",
        "unknown key 'output.tabels'; did you mean 'output.tables'?",
        "retry.attempts: must be at least 1, not 0",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--date", "19.11.2026"], "--date '19.11.2026': write a date as 2026-11-19"),
        (["--date", "2026-02-30"], "--date '2026-02-30': there is no such day"),
        (
            ["--run-id", "../../etc"],
            "--run-id '../../etc': begin with a letter or digit; at most 100 letters, digits, dots, dashes, "
            "underscores",
        ),
        (["--limit", "0"], "--limit 0: must be at least 1 row"),
    ],
)
def test_a_bad_option_is_refused_with_one_sentence(lake: Lake, options: list[str], sentence: str) -> None:
    lake.write_file("a.parquet", 0, 10)
    lake.write_model()
    lake.write_job()
    assert refusal(lake, *options) == sentence


# ---- the other commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["run", "plan", "check"])
def test_each_command_refuses_a_wrong_job_the_same_way(lake: Lake, word: str) -> None:
    """`check` and `plan` say what `run` would say."""
    lake.write_file("a.parquet", 0, 10)
    lake.write_model()
    lake.write_job(carry=["idd"])
    assert (
        Refusal(lake, word, lake.job_path).said
        == "nightjar: carry: 'idd' is not a column of the input; did you mean 'id'?"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["files"], r"nothing is published in .*/out yet; `nightjar run JOB` publishes"),
        (["files", "x"], r"the run 'x' is not published in .*/out; published: none"),
        (["rollback"], r".*/out has no earlier publication to go back to; `nightjar unpublish JOB RUN` takes .*"),
        (["rollback", "--to", "7"], r"there is no publication 7 in .*/out; `nightjar publications JOB` lists them"),
        (["files", "--date", "tomorrow"], r"--date 'tomorrow': write a date as 2026-11-19"),
    ],
)
def test_asking_for_what_is_not_there_is_answered_in_one_sentence(lake: Lake, words: list[str], sentence: str) -> None:
    lake.write_job()
    found = Refusal(lake, words[0], lake.job_path, *words[1:])
    assert re.fullmatch(f"nightjar: {sentence}", found.said), found.said
    assert found.out == ""


# ---- --json -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["run", "plan"])
def test_with_json_a_refusal_is_json_on_standard_output(lake: Lake, word: str) -> None:
    """And the sentence is on standard error all the same, for the log."""
    lake.write_file("a.parquet", 0, 10)
    lake.write_model()
    lake.write_job(carry=["idd"])
    found = Refusal(lake, word, lake.job_path, "--date", "2026-11-19", "--json")
    message = "carry: 'idd' is not a column of the input; did you mean 'id'?"
    assert json.loads(found.out) == {
        "state": "failed",
        "error": "JobError",
        "message": message,
    }
    assert found.said == f"nightjar: {message}"


@pytest.mark.parametrize("word", ["run", "plan", "status"])
def test_with_json_even_a_missing_job_file_is_json(lake: Lake, word: str) -> None:
    found = Refusal(lake, word, lake.job_path, "--json")
    assert json.loads(found.out)["message"] == f"{lake.job_path}: no such job file"


def test_with_json_a_misused_command_line_is_json(lake: Lake) -> None:
    found = Refusal(lake, "run", "--json", lake.job_path, "--bogus")
    assert json.loads(found.out)["error"] == "UsageError"


# ---- the command line itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "usage"),
    [
        (["frobnicate"], "No such command 'frobnicate'", "nightjar [OPTIONS] COMMAND [ARGS]..."),
        (["--frobnicate"], "No such option: --frobnicate", "nightjar [OPTIONS] COMMAND [ARGS]..."),
        (["run"], "Missing argument 'JOB'", "nightjar run [OPTIONS] "),
        (["run", "job.yaml", "--dat", "x"], "No such option: --dat", "nightjar run [OPTIONS] "),
        (["run", "job.yaml", "--limit", "many"], "Invalid value for '--limit'", "nightjar run [OPTIONS] "),
        (["replay", "job.yaml", "2026-11-19"], "Missing option '--shard'", "nightjar replay [OPTIONS] "),
    ],
)
def test_a_misused_command_line_is_answered_with_its_usage(
    lake: Lake, words: list[str], message: str, usage: str
) -> None:
    found = Refusal(lake, *words)
    first, second, third = found.said.splitlines()
    assert first.startswith(f"nightjar: {message}")
    assert second.startswith(f"Usage: {usage}")
    assert re.fullmatch(r"Try `nightjar( \w+)? --help`\.", third)
    assert found.out == ""


def test_the_bare_command_shows_what_there_is() -> None:
    done = forked_light()
    assert done.returncode == 0
    for word in ("run", "plan", "check", "status", "files", "rollback", "replay"):
        assert re.search(rf"^  {word} ", done.stdout, re.MULTILINE)


# ---- reading goes on ----------------------------------------------------------------------------------------


def test_what_is_published_stays_readable_while_the_users_code_is_broken(lake: Lake) -> None:
    """Somebody's half-edited predictor must not stand between the person on call and a rollback."""
    lake.write_job()
    lake.write_model("def score(batch:\n")
    part = lake.revision() / "data" / "a.parquet"
    part.parent.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), part)
    (lake.out / "publications").mkdir()
    (lake.out / "publications" / "00000001.json").write_text(
        json.dumps({"number": 1, "runs": {}, "at": "", "note": "run x revision 1"})
    )
    (lake.out / "publications" / "00000002.json").write_text(
        json.dumps({"number": 2, "runs": {}, "at": "", "note": "run y revision 1"})
    )
    back = forked_light("rollback", lake.job_path)
    assert (back.returncode, back.stderr) == (0, "")
    assert back.stdout == "publication 3: rollback to publication 1. Readers now see nothing. Nothing changed.\n"
    assert forked_light("status", lake.job_path).returncode == 0
