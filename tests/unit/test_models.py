"""What scores a shard is known by content: the model's bytes, the user's source, the job."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightjar.inference.errors import JobError, Missing
from nightjar.inference.job import Job
from nightjar.inference.jobfile import parse_job
from nightjar.inference.models import fetch_model, model_fingerprint, scoring_fingerprint
from nightjar.inference.predictors.source import code_fingerprint, folder_fingerprint
from nightjar.inference.storage import Entry, LakeStorage

STORAGE = LakeStorage()


@dataclass
class Bucket:
    """An object store whose bucket `s3://b/` is a local folder; each object opened leaves a line in `log`."""

    root: str
    log: str = ""

    def stat(self, uri: str) -> Entry:
        path = Path(self.root, uri.removeprefix("s3://b/"))
        if not path.is_file():
            raise Missing(uri)
        return Entry(uri, path.stat().st_size, "v")

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        for path in sorted(Path(self.root, folder.removeprefix("s3://b/")).rglob("*")):
            if path.is_file():
                yield Entry(f"s3://b/{path.relative_to(self.root).as_posix()}", path.stat().st_size, "v")

    def open(self, uri: str) -> io.BytesIO:
        if self.log:
            with Path(self.log).open("a") as log:
                log.write(uri + "\n")
            time.sleep(0.05)  # time enough for the others to come in
        return io.BytesIO(Path(self.root, uri.removeprefix("s3://b/")).read_bytes())

    def read(self, uri: str) -> bytes:
        return self.open(uri).read()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def fingerprint(path: Path | str | None) -> str:
    return model_fingerprint(STORAGE, None if path is None else str(path))


# ---- the model ----------------------------------------------------------------------------------------------


def test_a_model_is_its_content_wherever_it_lies(tmp_path: Path) -> None:
    files = {"config.json": "{}", "weights/0.bin": "abc"}
    one, two = write(tmp_path / "one", files), write(tmp_path / "two", files)
    assert fingerprint(one) == fingerprint(two) == fingerprint(f"{two}/")
    bucket: Any = Bucket(str(tmp_path))
    assert model_fingerprint(bucket, "s3://b/one") == model_fingerprint(bucket, "s3://b/one/") == fingerprint(one)
    assert model_fingerprint(bucket, "s3://b/one/config.json") == fingerprint(two / "config.json")
    assert fingerprint(None) == ""


def test_any_change_of_bytes_or_names_is_another_model(tmp_path: Path) -> None:
    base = {"a": "1", "b": "23"}
    variants = [
        base,
        {"a": "1", "b": "24"},
        {"a": "12", "b": "3"},
        {"a": "1", "c": "23"},
        {"a": "1"},
        {**base, "c": ""},
    ]
    found = [fingerprint(write(tmp_path / str(index), files)) for index, files in enumerate(variants)]
    assert len(set(found)) == len(variants)


def test_no_model_at_the_path_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("gone.pt2", "empty"):
        with pytest.raises(JobError, match=rf"model\.path: there is no file or folder .*{path}"):
            fingerprint(tmp_path / path)
    with pytest.raises(JobError, match=r"model\.path: there is no file or folder s3://b/gone"):
        model_fingerprint(Bucket(str(tmp_path)), "s3://b/gone")  # type: ignore[arg-type]  # the four methods used


def test_a_local_model_is_used_in_place_and_must_be_the_one_fingerprinted(tmp_path: Path) -> None:
    model = write(tmp_path, {"m.pt2": "abc"}) / "m.pt2"
    known = fingerprint(model)
    assert fetch_model(STORAGE, str(model), known, tmp_path / "cache") == str(model)
    assert fetch_model(STORAGE, None, "", tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    model.write_text("abd")
    with pytest.raises(JobError, match=r"model\.path: .*m\.pt2 changed after the run began"):
        fetch_model(STORAGE, str(model), known, tmp_path / "cache")


@pytest.mark.parametrize("path", ["s3://b/model/m.pt2", "s3://b/model", "s3://b/model/"])
def test_a_remote_model_is_fetched_whole_under_its_own_name(tmp_path: Path, path: str) -> None:
    write(tmp_path / "bucket", {"model/m.pt2": "abc", "model/sub/x": "y"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    known = model_fingerprint(bucket, path)
    local = fetch_model(bucket, path, known, tmp_path / "cache")
    assert local is not None
    assert Path(local).name == path.rstrip("/").rsplit("/", 1)[-1]
    assert fingerprint(local) == known


def test_a_model_that_changed_is_not_left_in_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    known = model_fingerprint(bucket, "s3://b/m.pt2")
    write(tmp_path / "bucket", {"m.pt2": "other"})
    with pytest.raises(JobError, match="changed after the run began"):
        fetch_model(bucket, "s3://b/m.pt2", known, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [f"{known}.lock"]


def test_what_a_killed_download_left_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    known = model_fingerprint(bucket, "s3://b/m.pt2")
    write(tmp_path / "cache" / known, {".partial-m.pt2/half": "x"})
    local = fetch_model(bucket, "s3://b/m.pt2", known, tmp_path / "cache")
    assert Path(str(local)).read_text() == "abc"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A full disk and a home that is no folder alike: what, where, and what to do."""
    write(tmp_path, {"bucket/m.pt2": "abc", "file": ""})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    known = model_fingerprint(bucket, "s3://b/m.pt2")
    with pytest.raises(JobError, match=r"^model\.path: .*m\.pt2 cannot be kept in .*/file/cache on .*XDG_CACHE_HOME"):
        fetch_model(bucket, "s3://b/m.pt2", known, tmp_path / "file" / "cache")


def test_of_many_processes_one_downloads(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m/a": "abc", "m/b": "def"})
    bucket: Any = Bucket(str(tmp_path / "bucket"), str(tmp_path / "log"))
    known = model_fingerprint(Bucket(bucket.root), "s3://b/m")  # type: ignore[arg-type]  # the four methods used
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(fetch_model, bucket, "s3://b/m", known, tmp_path / "cache") for _ in range(8)]
        paths = {each.result() for each in waiting}
    assert len(paths) == 1
    assert sorted((tmp_path / "log").read_text().split()) == ["s3://b/m/a", "s3://b/m/b"]


# ---- the user's source --------------------------------------------------------------------------------------

CODE = {
    "mine.py": "import helper\nimport pkg.deep\nclass P:\n def __call__(self, b):\n  from late import x\n  return x",
    "helper.py": "import importlib, numpy\nimportlib.import_module('dynamic')",
    "dynamic.py": "",
    "late.py": "x = 1",
    "pkg/__init__.py": "from . import sibling",
    "pkg/sibling.py": "from ..nothing import gone",
    "pkg/deep/__init__.py": "from ..far import thing as t",
    "pkg/far.py": "thing = 1",
    "prep.py": "from space.inner import f\ndef p(b): return b",
    "space/inner.py": "def f(): pass",
    "unrelated.py": "1/0",
    "pkg/unused.py": "1/0",
}

MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    def make(folder: str = "code", files: dict[str, str] = CODE, uses: str = "mine:P", **job: Any) -> Job:
        root = write(tmp_path / folder, files)
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


@pytest.mark.parametrize("changed", sorted(set(CODE) - {"unrelated.py", "pkg/unused.py"}))
def test_a_change_in_any_imported_module_is_seen(make_job: MakeJob, changed: str) -> None:
    """Imports in functions, of packages' __init__, relative, of namespace packages, by a literal name."""
    before = code_fingerprint(make_job())
    assert code_fingerprint(make_job(files={changed: CODE[changed] + "\n# changed"})) != before


@pytest.mark.parametrize("changed", ["unrelated.py", "pkg/unused.py", "data.json"])
def test_a_change_anywhere_else_is_not(make_job: MakeJob, changed: str) -> None:
    before = code_fingerprint(make_job())
    assert code_fingerprint(make_job(files={changed: "# changed"})) == before


def test_the_same_code_in_another_folder_is_the_same(make_job: MakeJob) -> None:
    assert code_fingerprint(make_job("here")) == code_fingerprint(make_job("there"))


def test_nothing_of_the_users_is_executed_or_imported(make_job: MakeJob, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    hostile = f"open({str(proof)!r}, 'w')\n"
    before = set(sys.modules)
    code_fingerprint(make_job(files={name: hostile + text for name, text in CODE.items()}))
    assert not proof.exists()
    assert not {"mine", "helper", "pkg", "prep"} & (set(sys.modules) - before)


def test_no_code_has_no_fingerprint(make_job: MakeJob) -> None:
    assert code_fingerprint(make_job(uses="torch", preprocess=None, model={"path": "m.pt2"})) == ""
    assert code_fingerprint(make_job(uses="torch", model={"path": "m.pt2"})) != ""


def test_an_installed_package_that_is_named_is_followed_within_itself(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "theirs/__init__.py": "",
        "theirs/m.py": "from .n import P\nimport other",
        "theirs/n.py": "",
        "other.py": "",
    }
    site = write(tmp_path / "site", files)
    monkeypatch.syspath_prepend(str(site))
    job = make_job(files={"prep.py": "import theirs.o"}, uses="theirs.m:P")
    before = code_fingerprint(job)
    write(site, {"other.py": "# not of the package", "theirs/unused.py": ""})
    assert code_fingerprint(job) == before
    write(site, {"theirs/n.py": "# changed"})
    assert code_fingerprint(job) != before
    assert "theirs" not in sys.modules


def test_an_installed_namespace_package_is_found_beside_a_folder_of_its_name(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster's workers, where the job's folder stands first on the path."""
    site = write(tmp_path / "site", {"company/models.py": ""})
    job = make_job(files={"company/notes.txt": ""}, uses="company.models:P", preprocess=None)
    monkeypatch.syspath_prepend(str(site))
    before = code_fingerprint(job)
    monkeypatch.syspath_prepend(str(job.folder))
    importlib.invalidate_caches()
    assert code_fingerprint(job) == before


def test_a_standard_library_function_can_be_named(make_job: MakeJob) -> None:
    assert code_fingerprint(make_job(files={}, uses="json:dumps", preprocess=None)) != ""


@pytest.mark.parametrize(
    ("files", "job", "message"),
    [
        ({"mine.py": ""}, {"uses": "mien:P"}, r"model\.uses: there is no module 'mien' in .*did you mean 'mine'"),
        ({"pkg/__init__.py": ""}, {"uses": "pkg.gone:P"}, r"model\.uses: there is no module 'pkg\.gone'"),
        ({"mine.py": ""}, {"preprocess": "gone_prep:p"}, r"preprocess: there is no module 'gone_prep'"),
        ({"mine.py": "x = 1\ndef f(:"}, {}, r"model\.uses: .*mine\.py, line 2: "),
        ({"mine.py": "import helper", "helper.py": "a b"}, {}, r"model\.uses: .*helper\.py, line 1: "),
        ({"mine.py": "\0"}, {}, r"model\.uses: .*mine\.py, line 1: "),
    ],
)
def test_code_that_cannot_be_read_names_key_file_and_line(
    make_job: MakeJob, files: dict[str, str], job: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        code_fingerprint(make_job(files={"prep.py": "", **files}, **job))


# ---- all of it ----------------------------------------------------------------------------------------------


COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.float32()), ("late", pa.bool_())])


def test_whatever_can_change_an_output_changes_the_scoring_fingerprint(make_job: MakeJob) -> None:
    def of(model: str = "m", code: str = "c", schema: pa.Schema = COLUMNS, **job: Any) -> str:
        return scoring_fingerprint(make_job(**job), model, code, schema)

    different = [
        of(),
        of(model="m2"),
        of(code="c2"),
        of(model="c", code="m"),
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
        return scoring_fingerprint(job, "m", "c", schema)

    assert of(COLUMNS) == of(COLUMNS.append(pa.field("y", pa.float32()))) == of(pa.schema(reversed(COLUMNS)))
    assert of(COLUMNS) != of(COLUMNS.set(0, pa.field("id", pa.int32())))
    # Whoever replays a row after the job was changed is told so, and need not mend the job first.
    assert of(COLUMNS) != of(COLUMNS.remove(0))


def test_the_folders_code_changes_with_the_folder_alone(make_job: MakeJob) -> None:
    """What a worker compares with what it is about to load: quick, whatever is installed."""
    job = make_job(files={"mine.py": "import helper\nP = 1\n", "helper.py": "A = 1\n", "other.py": "B = 1\n"})
    before = folder_fingerprint(job)
    (Path(job.folder) / "other.py").write_text("B = 2\n")
    assert folder_fingerprint(job) == before
    (Path(job.folder) / "helper.py").write_text("A = 2\n")
    assert folder_fingerprint(job) != before
    assert folder_fingerprint(make_job(uses="polars:DataFrame", preprocess=None)) == ""


def test_options_that_yaml_reads_as_dates_are_no_text(make_job: MakeJob) -> None:
    import datetime as dt

    def of(day: Any) -> str:
        return scoring_fingerprint(make_job(model={"options": {"day": day}}), "m", "c", COLUMNS)

    assert len({of("2026-01-02"), of(dt.date(2026, 1, 2)), of({"2026-01-02"}), of(b"2026-01-02")}) == 4
    assert of({"a", "b"}) == of({"b", "a"})
