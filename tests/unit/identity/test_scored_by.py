"""Results are kept under what really scores them: code, model, packages and job (promise 4)."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.flows.pages.estimate import described
from nightjar.inference.errors import Damaged, JobError, RunFailed
from nightjar.inference.identity.differences import differences
from nightjar.inference.identity.identity import Identity, ScoringSet, fix, identify, verify_packages
from nightjar.inference.identity.snapshots import File, Snapshot
from nightjar.inference.input.files import with_list
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import SOURCES
from nightjar.inference.jsonform import of_bytes
from nightjar.inference.ledger.ledger import State
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.output.revisions import identity_of_plan
from nightjar.inference.storage.lake import LakeStorage

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.float32()), ("late", pa.bool_())])
STORAGE = LakeStorage()
MakeJob = Callable[..., Job]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    def make(folder: str = "code", files: dict[str, str] | None = None, uses: str = "mine:P", **job: Any) -> Job:
        root = write(tmp_path / folder, {"mine.py": "", "prep.py": ""} if files is None else files)
        content = {
            "name": "t",
            "input": {"uri": "/in/"},
            "model": {"uses": uses, "outputs": {"score": "float32"}, **job.pop("model", {})},
            "output": {"uri": "/out"},
            "preprocess": "prep:p",
            **job,
        }
        return parse_job(content, root / "job.yaml")

    return make


def of(job: Job, schema: pa.Schema = COLUMNS) -> str:
    return identify(job, fix(STORAGE, job), schema).fingerprint


def test_the_same_code_in_another_folder_is_the_same(make_job: MakeJob) -> None:
    assert of(make_job("here")) == of(make_job("there"))


def test_a_link_that_points_elsewhere_is_another_file(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(files={"mine.py": "open('vocab.json')", "prep.py": ""})
    found = []
    for index in range(2):
        write(tmp_path, {f"v{index}.json": str(index)})
        (tmp_path / "code" / "vocab.json").unlink(missing_ok=True)
        (tmp_path / "code" / "vocab.json").symlink_to(tmp_path / f"v{index}.json")
        found.append(of(job))
    assert found[0] != found[1]


def test_nothing_of_the_users_is_executed_or_imported(make_job: MakeJob, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    hostile = f"open({str(proof)!r}, 'w')\n"
    before = set(sys.modules)
    fix(STORAGE, make_job(files={"mine.py": hostile, "prep.py": hostile, "pkg/__init__.py": hostile}))
    assert not proof.exists()
    assert not {"mine", "pkg", "prep"} & (set(sys.modules) - before)


def test_a_package_on_the_path_that_is_named_counts_by_content(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an editable installation: its version does not tell when it is edited."""
    site = write(tmp_path / "site", {"counted/__init__.py": "", "counted/m.py": "", "counted/words.txt": "a"})
    monkeypatch.syspath_prepend(str(site))
    job = make_job(uses="counted.m:P")
    before = of(job)
    write(site, {"other.py": "", "counted/__pycache__/m.pyc": ""})
    assert of(job) == before
    write(site, {"counted/words.txt": "b"})
    assert of(job) != before
    assert "counted" not in sys.modules


@pytest.mark.parametrize(("output", "file"), [("out/", "out/run.json"), ("out/{date}/", "out/2026-11-18/run.json")])
def test_what_a_run_writes_into_a_package_is_no_part_of_it(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, file: str
) -> None:
    """The job lies in the package that scores, and its output beside it."""
    site = write(tmp_path / "site", {"counted/__init__.py": "", "counted/m.py": "", "counted/jobs/data/x.csv": ""})
    monkeypatch.syspath_prepend(str(site))
    keys = {"uses": "counted.m:P", "preprocess": None, "input": {"uri": "data/"}, "output": {"uri": output}}
    keys["carry"], keys["late_labels"] = ["id"], {"key": "id", "label": "y", "input": {"uri": "labels/{date}.csv"}}
    job = make_job("site/counted/jobs", files={}, **keys).at("2026-11-19")
    before = fix(STORAGE, job)
    write(site / "counted/jobs", {"data/y.csv": "", "labels/2026-11-12.csv": "", file: ""})
    verify_packages(job, before)
    write(site, {"counted/m.py": "P = 1"})
    with pytest.raises(RunFailed):
        verify_packages(job, before)
    elsewhere = make_job(uses="counted.m:P", input={"uri": str(site)})
    before = fix(STORAGE, elsewhere)
    write(site, {"counted/m.py": "P = 2"})
    assert fix(STORAGE, elsewhere).packages != before.packages, "code in a folder of data is code"


def test_files_of_a_list_in_a_package_count_wherever_it_is_compared(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a run begins the list is read, and workers do not read it."""
    files = dict.fromkeys(("counted/__init__.py", "counted/m.py", "counted/jobs/data/x.csv"), "")
    site = write(tmp_path / "site", {**files, "counted/jobs/files.txt": "data/x.csv"})
    monkeypatch.syspath_prepend(str(site))
    keys = {"uses": "counted.m:P", "preprocess": None, "input": {"list": "files.txt"}}
    job = make_job("site/counted/jobs", files={}, **keys)
    listed = with_list(STORAGE, job)
    assert listed.input.uris
    verify_packages(job, fix(STORAGE, listed))


def test_an_installed_namespace_package_is_found_beside_a_folder_of_its_name(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on workers, which have the job's folder on their path."""
    site = write(tmp_path / "site", {"company/models.py": ""})
    job = make_job(files={"company/notes.txt": ""}, uses="company.models:P", preprocess=None)
    monkeypatch.syspath_prepend(str(site))
    before = of(job)
    monkeypatch.syspath_prepend(str(job.folder))
    assert of(job) == before


def test_modules_below_the_folder_are_found_where_the_path_says(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "code" / "src"))
    job = make_job(files={"src/deep/mine.py": "", "src/deep/__init__.py": ""}, uses="deep.mine:P", preprocess=None)
    assert fix(STORAGE, job).packages == {}


def test_packages_that_the_job_names_count(make_job: MakeJob) -> None:
    plain, counted = make_job(), make_job(identity={"packages": ["PyYAML"]})
    assert of(plain) != of(counted)
    assert fix(STORAGE, counted).packages["PyYAML"].startswith("6.")
    with pytest.raises(JobError, match=r"^identity\.packages: 'PyYAMLL' is not installed; did you mean"):
        fix(STORAGE, make_job(identity={"packages": ["PyYAMLL"]}))


def test_an_editable_package_whose_modules_cannot_be_found_does_not_count_silently(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are imported by a loader of their build tool. The modules of the installed folder count."""
    origin = json.dumps({"url": f"file://{tmp_path}/work", "dir_info": {"editable": True}})
    notes = {"METADATA": "Metadata-Version: 2.1\nName: odd-lib\nVersion: 1\n", "direct_url.json": origin}
    notes["RECORD"] = "_odd_lib_loader.py,,\nodd.pth,,\n"
    write(tmp_path / "site/odd_lib-1.dist-info", notes)
    write(tmp_path / "site", {"odd.pth": "import _odd_lib_loader\n", "_odd_lib_loader.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(
        JobError, match=r"^identity\.packages: 'odd-lib' is an editable installation of .*/work/, where no module lies"
    ):
        fix(STORAGE, make_job(identity={"packages": ["odd-lib"]}))
    write(tmp_path / "site", {"odd.pth": str(write(tmp_path / "work", {"odd.py": "", "night/out/part": ""}))})
    before = of(make_job(identity={"packages": ["odd-lib"]}))
    write(tmp_path / "work", {"night/out/part": "another run's", ".venv/lib/x.py": ""})
    assert of(make_job(identity={"packages": ["odd-lib"]})) == before, "what only lies there is no module"
    write(tmp_path / "work", {"odd.py": "W = 2"})
    assert of(make_job(identity={"packages": ["odd-lib"]})) != before


@pytest.mark.parametrize(
    ("files", "job", "message"),
    [
        ({"mine.py": ""}, {"uses": "mien:P"}, r"model\.uses: there is no module 'mien' in .*did you mean 'mine'"),
        ({"pkg/__init__.py": ""}, {"uses": "pkg.gone:P"}, r"model\.uses: there is no module 'pkg\.gone'"),
        (
            {"m/mine.py": ""},
            {"uses": "m.mine:P", "model": {"path": "m"}},
            r"model\.uses: .*/m/mine\.py lies in the job's model.*; move it beside the job",
        ),
        ({"mine.py": ""}, {"model": {"code": ["!mine.py"]}}, r"model\.uses: .*/mine\.py is left out by `!` in model"),
        ({"mine.py": ""}, {"preprocess": "gone_prep:p"}, r"preprocess: there is no module 'gone_prep'"),
        ({"mine.py": "x = 1\ndef f(:"}, {}, r"model\.uses: .*mine\.py, line 2: "),
        ({"mine.py": "\0"}, {}, r"model\.uses: .*mine\.py, line 1: "),
    ],
)
def test_code_that_cannot_be_read_names_key_file_and_line(
    make_job: MakeJob, files: dict[str, str], job: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        fix(STORAGE, make_job(files={"prep.py": "", **files}, **job))


def fixed(model: str = "m", code: str = "c", packages: dict[str, str] | None = None) -> ScoringSet:
    taken, of_model = (Snapshot((File("a", 1, each),) if each else ()) for each in (code, model))
    return ScoringSet(taken, (of_model,), packages=packages or {})


def test_whatever_can_change_an_output_changes_the_fingerprint(make_job: MakeJob) -> None:
    def of(scoring: ScoringSet | None = None, schema: pa.Schema = COLUMNS, **job: Any) -> str:
        return identify(make_job(**job), scoring or fixed(), schema).fingerprint

    different = [
        of(),
        of(fixed(model="m2")),
        of(fixed(code="c2")),
        of(fixed(model="c", code="m")),
        of(fixed(packages={"torch": "1"})),
        of(carry=["id"]),
        of(preprocess=None),
        of(label="late"),
        of(uses="mine:Q"),
        of(schema=COLUMNS.append(pa.field("y", pa.float32()))),
        of(schema=pa.schema(reversed(COLUMNS))),
        of(schema=COLUMNS.set(1, pa.field("x", pa.float64()))),
    ]
    assert len(set(different)) == len(different)
    assert of() == of(retry={"attempts": 9}) == of(name="other") == of(resources={"actors": 7})


def test_columns_that_neither_model_nor_job_names_are_no_part_of_it(make_job: MakeJob) -> None:
    """With features listed, what else is in the files, and where, does not matter."""

    def of(schema: pa.Schema) -> str:
        job = make_job(model={"features": ["x"]}, carry=["id"], preprocess=None)
        return identify(job, fixed(), schema).fingerprint

    assert of(COLUMNS) == of(COLUMNS.append(pa.field("y", pa.float32()))) == of(pa.schema(reversed(COLUMNS)))
    assert of(COLUMNS) != of(COLUMNS.set(0, pa.field("id", pa.int32())))
    # Whoever replays a row after the job was changed is told so, and need not mend the job first.
    assert of(COLUMNS) != of(COLUMNS.remove(0))


def test_options_that_yaml_reads_as_dates_are_no_text(make_job: MakeJob) -> None:
    def of(day: Any) -> str:
        return identify(make_job(model={"options": {"day": day}}), fixed(), COLUMNS).fingerprint

    assert len({of("2026-01-02"), of(dt.date(2026, 1, 2)), of({"2026-01-02"}), of(b"2026-01-02")}) == 4
    assert of({"a", "b"}) == of({"b", "a"})
    assert of({1: "a"}) != of({"1": "a"}) != of({dt.date(2026, 1, 2): "a"})


@pytest.mark.parametrize("one", [{"a": 1, "b": 2}, {"w": {"a": 1, "b": 2}}, {"w": [{"a": 1, "b": {"c": 1, "d": 2}}]}])
def test_the_order_of_options_is_part_of_what_scores(make_job: MakeJob, one: dict[str, Any]) -> None:
    """Predictors stack columns in it. It is named, and is kept where the identity is."""

    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(each) for each in value] if isinstance(value, list) else value

    first, second = (identify(make_job(model={"options": each}), fixed(), COLUMNS) for each in (one, turned(one)))
    assert first.fingerprint != second.fingerprint
    assert differences(of_bytes(Identity, second.to_bytes()), second) == []
    (said,) = differences(of_bytes(Identity, first.to_bytes()), second)
    assert re.fullmatch(r"model\.options(\.w)? (has another order|changed) in the job", said)


def test_what_differs_is_named(make_job: MakeJob) -> None:
    """File by file, key by key; and after the way through storage the same as before."""
    files = {"mine.py": "'vocab.json', 'old.txt', 'new.txt'", "prep.py": "", "vocab.json": "1", "old.txt": ""}
    job = make_job(files=files, model={"options": {"day": dt.date(2026, 1, 2)}})
    before = identify(job, fix(STORAGE, job), COLUMNS)
    assert differences(of_bytes(Identity, before.to_bytes()), before) == []
    (Path(job.folder) / "old.txt").unlink()
    write(Path(job.folder), {"vocab.json": "2", "new.txt": ""})
    options = {"day": dt.date(2026, 1, 3), "by": {"x": 1}}
    changed = make_job(files={}, model={"options": options}, carry=["id"])
    now = identify(changed, fix(STORAGE, changed), COLUMNS)
    assert differences(of_bytes(Identity, before.to_bytes()), now) == [
        "new.txt is new",
        "old.txt is gone",
        "vocab.json changed",
        "the carried columns changed",
        "model.options.by changed in the job",
        "model.options.day changed in the job",
    ]


ALONE = {"parquet", "delta", "iceberg", "lance", "sql"}
"""Formats whose files can be read in no other way."""


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (None, False),
        *[(name, name not in ALONE) for name in (*SOURCES, "prep:p")],
    ],
)
def test_the_format_that_the_job_names_counts_if_a_file_can_be_read_in_several_ways(
    make_job: MakeJob, given: str | None, counts: bool
) -> None:
    """A text may be JSON lines, too. Jobs that name no format, or Parquet, are scored as before there was such a rule.
    `check` says what counts, and a run says that it changed.
    """
    unnamed = make_job()
    before = identify(unnamed, fix(STORAGE, unnamed), COLUMNS)
    job = make_job(input={"uri": "/in/", "format": given})
    scoring = fix(STORAGE, job)
    now = identify(job, scoring, COLUMNS)
    assert (before.fingerprint != now.fingerprint) == counts
    assert (f"input.format: {given}" in described(job, scoring)) == counts
    assert differences(before, now) == ["input.format changed in the job"] * counts


def test_what_identity_is_made_of_is_listed(make_job: MakeJob) -> None:
    """For `check` and `plan`: what counts, and why."""
    files = {"mine.py": "import h", "h.py": "", "prep.py": "", "m.bin": "abc", "a.tmp": ""}
    job = make_job(files=files, model={"path": "m.bin", "version": "2"}, identity={"packages": ["PyYAML"]})
    assert described(job, fix(STORAGE, job)) == [
        "code: h.py (mine.py:1)",
        "code: mine.py (model.uses)",
        "code: prep.py (preprocess)",
        f"model.path: 1 file ({job.models[0].path})",
        "package PyYAML",
        "model.version: 2",
    ]


def test_what_scored_a_run_is_named_if_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "identity-000001.json").write_text("{")
    state = State()
    state.planned = Planned(file="plan", fingerprint="f", date="2026-11-19", identity="identity-000001.json")
    with pytest.raises(Damaged, match=r"identity-000001\.json: not what scored a run .* with --fresh"):
        identity_of_plan(STORAGE, str(tmp_path), state)
