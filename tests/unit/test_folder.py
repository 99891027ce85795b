"""Which files of a job's folder score: what a cluster would be sent, read as git reads ignore files."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.identity import folder
from nightjar.inference.identity.folder import list_checks, list_code
from nightjar.inference.identity.snapshots import take_model
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage

JOB = "name: {name}\ninput: {{uri: {input}}}\nmodel: {{uses: 'predict:f', path: {model}}}\noutput: {{uri: {output}}}\n"


def lay(root: Path, *names: str, **texts: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(texts.get(name, name))


def job_in(root: Path, **keys: Any) -> Job:
    model = {"uses": "predict:f", "outputs": {"score": "float32"}, **keys.pop("model", {})}
    content = {"name": "j", "input": {"uri": "data/"}, "model": model, "output": {"uri": "out/"}, **keys}
    return parse_job(content, root / "job.yaml")


def names(job: Job) -> set[str]:
    return set(list_code(job).files)


def test_all_that_lies_there_scores(tmp_path: Path) -> None:
    """Code, compiled code, data files, archives, hidden ones and those without a suffix."""
    files = {
        "predict.py",
        "vocab.json",
        "pkg/__init__.py",
        "pkg/deep/table.csv",
        "h.pyc",
        "x.so",
        "lib.zip",
        ".hidden",
        "W",
    }
    lay(tmp_path, *files)
    assert names(job_in(tmp_path)) == files


def test_keys_do_not_score_unless_the_job_names_each_by_its_whole_path(tmp_path: Path) -> None:
    """Whatever an ignore file or a pattern says. A file with a key is known by its name, or by its permissions."""
    keys = {".env", ".env.prod", "conf/tls.pem", "id_rsa", "account.json"}
    lay(
        tmp_path,
        "predict.py",
        ".env.example",
        "vocab.json",
        "job.yaml",
        *keys,
        **{"job.yaml": JOB.format(name="j", input="data/", model="x", output="out/")},
    )
    lay(tmp_path, ".rayignore", **{".rayignore": "!.env\n!*.pem\n"})
    for name in ("account.json", "predict.py"):
        (tmp_path / name).chmod(0o600)
    code = {"predict.py", ".env.example", "vocab.json"}
    assert names(job_in(tmp_path)) == code
    assert set(list_code(job_in(tmp_path)).left_out) >= keys
    assert names(job_in(tmp_path, model={"code": ["*"]})) >= code
    assert not names(job_in(tmp_path, model={"code": ["*", "conf/*.pem"]})) & keys
    assert names(job_in(tmp_path, model={"code": ["predict.py", ".env", "account.json"]})) == {
        "predict.py",
        ".env",
        "account.json",
    }
    (tmp_path / "job.yaml").chmod(0o600)
    assert names(job_in(tmp_path)) == code | {"account.json"}, "here each file is its owner's alone"


def test_links_to_themselves_pipes_and_what_may_not_be_read_end_with_a_sentence_or_do_not_count(tmp_path: Path) -> None:
    lay(tmp_path, "predict.py", "pkg/x.py")
    for link, to in {
        "loop": "loop",
        "one": "two",
        "two": "one",
        "gone": "nothing",
        "pkg/up": "..",
        "zero": "/dev/zero",
    }.items():
        (tmp_path / link).symlink_to(to)
    os.mkfifo(tmp_path / "pipe.yaml")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "socket"))
        assert names(job_in(tmp_path)) == {"predict.py", "pkg/x.py"}
        assert names(job_in(tmp_path, model={"code": ["**", "loop", "pipe.yaml"]})) == {"predict.py", "pkg/x.py"}
    for path in ("loop", "gone", "pipe.yaml", "pkg/up/loop"):
        with pytest.raises(JobError, match=r"model\.path: there is no file or folder"):
            take_model(LakeStorage(), str(tmp_path / path))


def test_what_only_lies_there_does_not(tmp_path: Path) -> None:
    lay(tmp_path, "predict.py", "data/a.parquet", "out/runs/x", "models/m.pt2", ".git/HEAD", "__pycache__/predict.pyc")
    lay(tmp_path, "env/pyvenv.cfg", "env/lib/x.py", ".venv/lib/y.py", "pkg/__pycache__/z.pyc")
    assert names(job_in(tmp_path, model={"path": "models/m.pt2"})) == {"predict.py"}


def test_input_and_output_of_any_date_are_left_out(tmp_path: Path) -> None:
    lay(tmp_path, "predict.py", "in/2026-11-19/a.parquet", "in/2026-11-20/a.parquet", "to/2026-11-19/r")
    job = job_in(tmp_path, input={"uri": "in/{date}/"}, output={"uri": "to/{date}/"})
    assert names(job) == {"predict.py"}


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("*.parquet", {"b.pq", "lookup/c.parquet"}),
        ("a-*.parquet", {"b.pq", "lookup/c.parquet", "airports.parquet"}),
        ("a-{date}.parquet", {"b.pq", "lookup/c.parquet", "airports.parquet"}),
        ("a-{date:%Y-%m-%d}.p*", {"b.pq", "lookup/c.parquet", "airports.parquet"}),
        ("a-{date:%Y}-{date:%-m-%d}.parquet", {"b.pq", "lookup/c.parquet", "airports.parquet"}),
        ("**/*.parquet", {"b.pq"}),
        ("./", set()),
        ("../", set()),
    ],
)
@pytest.mark.parametrize("patterns", [None, ["**"]])
def test_data_beside_the_code_is_no_code(tmp_path: Path, uri: str, code: set[str], patterns: list[str] | None) -> None:
    """Of any date; other Parquet files are what a predictor may read. What is of another date is said."""
    root = tmp_path / "job[1]"
    nights = {f"a-2026-11-{day}.parquet" for day in (18, 19)}
    lay(root, "predict.py", "airports.parquet", "b.pq", "lookup/c.parquet", "dates/__init__.py", *nights)
    job = job_in(root, input={"uri": uri}, model={"code": patterns} if patterns else {})
    listing = list_code(job.at(dt.date(2026, 11, 19)))
    assert set(listing.files) == {"predict.py", "dates/__init__.py", *code}
    assert listing.left_out == ({"a-2026-11-18.parquet": "input.uri"} if "{" in uri else {})


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"uri": "./"}, {"vocab.txt"}),
        ({"uri": "./", "format": "parquet"}, {"vocab.txt", "rates.csv"}),
        ({"uri": "*", "format": "csv"}, {"vocab.txt", "a.parquet"}),
        ({"uri": "*.txt"}, {"rates.csv", "a.parquet"}),
    ],
)
def test_a_file_of_another_format_than_the_input_is_what_a_predictor_may_read(
    tmp_path: Path, keys: dict[str, str], code: set[str]
) -> None:
    """And a text beside the code is more often a vocabulary than input."""
    lay(tmp_path, "predict.py", "vocab.txt", "rates.csv", "a.parquet")
    assert names(job_in(tmp_path, input=keys)) == {"predict.py", *code}


@pytest.mark.parametrize("uri", ["{date}/", "in-{date}", "{date:%Y/%m}/d{date:%d}/"])
def test_a_folder_of_each_date_beside_the_code_is_no_code(tmp_path: Path, uri: str) -> None:
    """As input and as output, markers and manifests in it included."""
    for day in (18, 19):
        lay(tmp_path, *(f"{uri.format(date=dt.date(2026, 11, day))}/{name}" for name in ("_SUCCESS", "a.parquet")))
    lay(tmp_path, "predict.py", "lib/h.py", "lib/c.parquet", "2026/notes.json")
    for keys in ({"input": {"uri": uri}}, {"output": {"uri": uri}}):
        listing = list_code(job_in(tmp_path, **keys).at(dt.date(2026, 11, 19)))
        assert set(listing.files) == {"predict.py", "lib/h.py", "lib/c.parquet", "2026/notes.json"}
        assert listing.left_out == {}


def test_results_beside_the_code_are_named(tmp_path: Path) -> None:
    """A package may have such a name. In a job whose results lie elsewhere it scores."""
    results = {"runs/n/r1/plan.json", "dates/__init__.py", "job.json"}
    lay(tmp_path, "predict.py", "lib/runs/x", "table.parquet", *results)
    for patterns in ({}, {"code": ["**"]}):
        listing = list_code(job_in(tmp_path, output={"uri": "./"}, model=patterns))
        assert set(listing.files) == {"predict.py", "lib/runs/x", "table.parquet"}
        assert listing.left_out == dict.fromkeys(("dates/", "job.json", "runs/"), "output.uri")


@pytest.mark.parametrize("uri", ["shop-2026-11-19.db", "sqlite:///shop-2026-11-19.db", "shop-{date}.db"])
def test_what_sqlite_writes_beside_a_database_is_no_code(tmp_path: Path, uri: str) -> None:
    """Whoever opens a database: this job, another one that lies there, or a program that has it open."""
    ends = ("", "-wal", "-shm", "-journal")
    lay(tmp_path, "predict.py", "words-wal", *(f"shop-2026-11-19.db{end}" for end in ends))
    given = {"uri": uri, "format": "sql", "options": {"table": "t", "key": "k"}}
    assert names(job_in(tmp_path, input=given)) == {"predict.py", "words-wal"}
    assert names(job_in(tmp_path, input=given, model={"code": ["*"]})) == {"predict.py", "words-wal"}
    other = f"name: other\ninput: {{uri: '{uri}', format: sql}}\nmodel: {{uses: 'm:f'}}\noutput: {{uri: elsewhere}}\n"
    (tmp_path / "other.yaml").write_text(other)
    assert names(job_in(tmp_path)) == {"predict.py", "words-wal"}


def test_what_another_job_reads_and_writes_among_the_code_is_its_own(tmp_path: Path) -> None:
    """Each night there is more of it."""
    weather = JOB.format(name="w", input="'weather-{date}.parquet'", output="'{date:%Y%m%d}'", model="m")
    broken = JOB.format(name="b", input="'{date'", output="'{x'", model="m")
    lay(tmp_path, "predict.py", "airports.parquet", "weather-2026-11-18.parquet", "20261118/job.json", "20261118x")
    lay(tmp_path, "weather.yaml", "broken.yaml", **{"weather.yaml": weather, "broken.yaml": broken})
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == {"predict.py", "airports.parquet", "20261118x"}
    theirs = str(tmp_path / "weather.yaml")
    assert listing.left_out == {"20261118/job.json": theirs, "weather-2026-11-18.parquet": theirs}


def test_what_belongs_to_other_jobs_is_left_out(tmp_path: Path) -> None:
    lay(tmp_path, "predict.py", "theirs/in/a", "theirs/out/b", "theirs/m.bin", "settings.yaml")
    lay(
        tmp_path,
        "other.yaml",
        **{"other.yaml": JOB.format(name="o", input="theirs/in/*", output="theirs/out", model="theirs/m.bin")},
    )
    lay(tmp_path, "job.yaml", **{"job.yaml": JOB.format(name="j", input="data", output="out", model="m")})
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == {"predict.py", "settings.yaml"}
    other = str(tmp_path / "other.yaml")
    assert listing.left_out == {"theirs/in/": other, "theirs/out/": other, "theirs/m.bin": other}


def test_every_place_that_another_job_names_is_its_own(tmp_path: Path) -> None:
    """Its tables, several models, its lists of any date, and what these name; other data is what a predictor may read.

    A list that cannot be read is the other job's error.
    """
    other = """
        name: other
        input: {list: "lists/{date}.txt"}
        models: [{name: a, uses: "m:f", path: a.bin}, {name: b, uses: "m:f", path: "b-{date}.bin"}]
        output: {uri: theirs/out, tables: [{delta: table}]}
    """
    lists = {
        "lists/2026-11-18.txt": "day/*.csv\nlone",
        "lists/2026-11-19.txt": "b{c}.parquet",
        "lists/x.txt": "s3a://x",
    }
    files = ["day/a.csv", "lone", "b{c}.parquet", "table/_delta_log/0.json", "a.bin", "b-2026-11-18.bin"]
    lay(
        tmp_path,
        "predict.py",
        "day/notes.json",
        "rates.csv",
        *files,
        *lists,
        "other.yaml",
        **lists,
        **{"other.yaml": other},
    )
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == {"predict.py", "day/notes.json", "rates.csv"}
    own = {"day/a.csv", "lone", "b{c}.parquet", "table/", "a.bin", "b-2026-11-18.bin", "lists/"}
    assert listing.left_out == dict.fromkeys(own, str(tmp_path / "other.yaml"))
    assert set(list_code(job_in(tmp_path, model={"code": ["*.py", "*.bin"]})).files) == {
        "predict.py",
        "a.bin",
        "b-2026-11-18.bin",
    }


def test_model_code_takes_in_what_another_job_names(tmp_path: Path) -> None:
    """A model by any pattern; of its data and results, which change each night, a file by its whole path."""
    theirs = JOB.format(name="o", input="theirs/in/*", output="theirs/out", model="theirs/m.json")
    lay(tmp_path, "predict.py", "theirs/in/a.json", "theirs/in/b.json", "theirs/out/job.json", "theirs/m.json")
    lay(tmp_path, "other.yaml", "data/c.json", "data/d.json", **{"other.yaml": theirs})
    listing = list_code(
        job_in(tmp_path, model={"code": ["*.py", "*.json", "/theirs/in/a.json", "data/c.json", "gone"]})
    )
    assert set(listing.files) == {"predict.py", "theirs/in/a.json", "theirs/m.json", "data/c.json"}


def test_yaml_that_is_no_whole_job_is_what_a_predictor_may_read(tmp_path: Path) -> None:
    lay(
        tmp_path,
        "predict.py",
        "net.yaml",
        "broken.yml",
        "config.yaml",
        **{"net.yaml": "model: x\ninput: y\n", "broken.yml": "a: !b [c"},
        **{"config.yaml": "name: net\ninput: {uri: w.json}\nmodel: {layers: 2}\noutput: {uri: y}\n"},
    )
    lay(tmp_path, "w.json")
    assert names(job_in(tmp_path)) == {"predict.py", "net.yaml", "broken.yml", "config.yaml", "w.json"}


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    """In the folder, below it and above it up to the repository's; the innermost decides."""
    lay(tmp_path, ".git/HEAD", ".gitignore", **{".gitignore": "*.log\njobs/churn/scratch/\n*.bin\n"})
    root = tmp_path / "jobs" / "churn"
    lay(root, "predict.py", "a.log", "scratch/x", "keep.bin", "sub/b.tmp", "sub/c.tmp", "big.raw")
    lay(root, ".gitignore", "sub/.gitignore", ".rayignore")
    (root / ".gitignore").write_text("!keep.bin\n*.tmp\n")
    (root / "sub" / ".gitignore").write_text("!c.tmp\n")
    (root / ".rayignore").write_text("/big.raw\n")
    listing = list_code(job_in(root))
    assert set(listing.files) == {"predict.py", "keep.bin", "sub/c.tmp"}
    assert listing.left_out == {
        "a.log": str(tmp_path / ".gitignore"),
        "scratch/": str(tmp_path / ".gitignore"),
        "sub/b.tmp": str(root / ".gitignore"),
        "big.raw": str(root / ".rayignore"),
    }


PRINTS = """
import sys
from pathlib import Path
from nightjar.inference.identity.folder import list_code
from nightjar.inference.job.file import parse_job
for code in ({}, {"code": ["*"]}, {"code": ["predict.py", "night.txt", "errors.txt"]}):
    model = {"uses": "predict:f", "outputs": {"s": "float32"}, **code}
    job = {"name": "j", "input": {"uri": "data/"}, "model": model, "output": {"uri": "out/"}}
    found = list_code(parse_job(job, Path(sys.argv[1], "job.yaml")))
    print(*found.files, "|", *found.left_out)
"""


def test_what_a_command_prints_into_is_no_code_of_its_own(tmp_path: Path) -> None:
    """As cron lets it: another file for each command, so that nothing would ever be continued."""
    lay(tmp_path, "predict.py", "errors.txt")
    with (tmp_path / "night.txt").open("w") as out, (tmp_path / "errors.txt").open("a") as err:
        subprocess.run([sys.executable, "-c", PRINTS, tmp_path], stdout=out, stderr=err, check=True)
    assert (tmp_path / "night.txt").read_text().splitlines() == ["predict.py | errors.txt night.txt"] * 3


def test_logs_are_no_code_unless_an_ignore_file_or_the_job_takes_them_in(tmp_path: Path) -> None:
    """So that a command without redirection, repeated by hand, finds the same code as cron's did."""
    lay(tmp_path, "predict.py", "night.log", "nohup.out", "rules.log", ".gitignore", **{".gitignore": "!rules.log"})
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == {"predict.py", "rules.log"}
    assert listing.left_out == {"night.log": "a log", "nohup.out": "a log"}
    assert names(job_in(tmp_path, model={"code": ["*.py", "n*"]})) == {"predict.py", "night.log", "nohup.out"}


def test_what_editors_and_tools_leave_beside_the_code_is_none(tmp_path: Path) -> None:
    """Or to look at predict.py in vim before a repeat would score the whole night again."""
    editors = {".predict.py.swp", ".predict.py.swo", "predict.py~", "lib/#h.py#", "lib/.#h.py"}
    tools = {".nfs0001", ".coverage", ".coverage.host.12"}
    lay(tmp_path, "predict.py", "keep~", ".names", "#1", *editors, *tools, ".rayignore", **{".rayignore": "!keep~"})
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == {"predict.py", "keep~", ".names", "#1"}
    expected = {**dict.fromkeys(editors, "an editor's own file"), **dict.fromkeys(tools, "a tool's own file")}
    assert listing.left_out == expected


def test_what_programs_keep_in_a_home_folder_is_no_code(tmp_path: Path) -> None:
    """Many containers have the job there. Hidden files are what a predictor may read, as are other hidden folders."""
    code = {"predict.py", ".names", ".weights/w", ".config/mine.json"}
    own = {".cache/huggingface/x", ".config/gcloud/tokens", ".local/lib/x.py", ".ssh/id_ed25519", ".aws/credentials"}
    lay(tmp_path, "lib/.cache/x", ".bash_history", "prefect.db-wal", *code, *own)
    listing = list_code(job_in(tmp_path))
    assert set(listing.files) == code
    folders = {".cache/", ".config/gcloud/", ".local/", ".ssh/", ".aws/", "lib/.cache/"}
    tools = dict.fromkeys((".bash_history", "prefect.db-wal"), "a tool's own file")
    assert listing.left_out == {**dict.fromkeys(folders, "a program's own folder"), **tools}
    (tmp_path / ".gitignore").write_text("!.cache/\n")
    assert names(job_in(tmp_path)) == {*code, ".cache/huggingface/x", "lib/.cache/x"}
    chosen = names(job_in(tmp_path, model={"code": ["*.py", "/.aws/*"]}))
    assert chosen == {"predict.py", ".local/lib/x.py", ".aws/credentials"}


@pytest.mark.parametrize("keys", [{}, {"code": ["**"]}])
def test_what_nightjar_prefect_and_ray_write_meanwhile_is_never_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """Or no command would find the same code as the one before; by whatever name the folder is reached."""
    job = tmp_path / "job"
    own = {"state/prefect.db", "njray-1/owner.json", "nightjar-logs-0/a/1", "ray/session_1/logs"}
    lay(job, "predict.py", "njray.py", "lib/ray/x", *own)
    (tmp_path / "home").symlink_to(job)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home" / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "home"))
    listing = list_code(job_in(job, model=keys))
    assert set(listing.files) == {"predict.py", "njray.py", "lib/ray/x"}
    folders = {f"{name.partition('/')[0]}/" for name in own}
    assert listing.left_out == dict.fromkeys(folders, "Nightjar, Prefect or Ray write there")
    lay(job / "ray", "predict.py")
    assert "predict.py" in names(job_in(job / "ray", model=keys))


def test_a_folder_that_is_ignored_as_a_whole_still_scores(tmp_path: Path) -> None:
    lay(tmp_path, ".git/HEAD", ".gitignore", "scratch/predict.py", **{".gitignore": "scratch/\n"})
    assert names(job_in(tmp_path / "scratch")) == {"predict.py"}


def test_model_code_names_the_files_whatever_is_ignored(tmp_path: Path) -> None:
    lay(
        tmp_path,
        ".gitignore",
        "predict.py",
        "lib/a.py",
        "lib/deep/b.py",
        "other/c.py",
        "w.bin",
        **{".gitignore": "*.bin"},
    )
    job = job_in(tmp_path, model={"code": ["/predict.py", "lib/**", "*.bin", "!lib/deep/**"]})
    assert names(job) == {"predict.py", "lib/a.py", "w.bin"}


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    lay(tmp_path, "job/predict.py", "elsewhere/vocab.json", "elsewhere/more/x")
    root = tmp_path / "job"
    (root / "vocab.json").symlink_to(tmp_path / "elsewhere" / "vocab.json")
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "more")
    (root / "round").symlink_to(root)
    (root / "nowhere").symlink_to(root / "gone")
    assert names(job_in(root)) == {"predict.py", "vocab.json", "linked/x"}


def mount(root: Path, stamp: str, *names: str) -> None:
    """As a node mounts a ConfigMap: a folder of this mount, a link to it, and links through that one."""
    lay(root / f"..{stamp}", *names)
    (root / "..data").unlink(missing_ok=True)
    (root / "..data").symlink_to(f"..{stamp}")
    for top in {name.partition("/")[0] for name in names}:
        if not (root / top).is_symlink():
            (root / top).symlink_to(f"..data/{top}")


@pytest.mark.parametrize("keys", [{}, {"code": ["**"]}])
def test_a_mounted_config_map_has_the_same_files_in_every_pod(tmp_path: Path, keys: dict[str, Any]) -> None:
    mount(tmp_path, "2026_11_22_05_00_00.1", "predict.py", "lib/h.py")
    before = list_code(job_in(tmp_path, model=keys))
    shutil.rmtree(tmp_path / "..2026_11_22_05_00_00.1")
    mount(tmp_path, "2026_11_23_05_00_00.2", "predict.py", "lib/h.py")
    assert list_code(job_in(tmp_path, model=keys)) == before
    assert (set(before.files), before.left_out) == ({"predict.py", "lib/h.py"}, {})


def test_a_job_without_code_has_none(tmp_path: Path) -> None:
    lay(tmp_path, "README.md", "m.pt2")
    assert list_code(job_in(tmp_path, model={"uses": "torch", "path": "m.pt2"})).files == {}


def test_only_the_modules_of_a_check_are_left_out_and_no_data_of_its_name(tmp_path: Path) -> None:
    """What is named as a module is, and is no module, may be read by what scores."""
    data = {"churn.joblib", "churn.vocab.json", "churn.py.bak", "src/churn.csv", "churned.py"}
    own = {"churn.py", "churn.pyc", f"churn{EXTENSION_SUFFIXES[0]}"}
    lay(tmp_path, "predict.py", *data, *own)
    listing = list_code(job_in(tmp_path, model={"uses": "predict:Churn"}, checks=[{"call": "churn:ok"}]))
    assert set(listing.files) == {"predict.py", *data}
    assert listing.left_out == dict.fromkeys(own, "it judges, and does not score")
    for name in own:
        (tmp_path / name).unlink()
    lay(tmp_path, "churn/__init__.py", "churn/limits.json")
    job = job_in(tmp_path, model={"uses": "predict:Churn"}, checks=[{"call": "churn:ok"}])
    assert names(job) == {"predict.py", *data}
    assert set(list_checks(job).files) == {"churn/__init__.py", "churn/limits.json"}


def test_too_many_files_are_told_how_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_FILES", 3)
    lay(tmp_path, "predict.py", "a", "b", "c")
    with pytest.raises(JobError, match=r"^model\.code: .* holds more than 3 files.*list the files that score in"):
        list_code(job_in(tmp_path))
    monkeypatch.setattr(folder, "MOST_FILES", 4)
    monkeypatch.setattr(folder, "MOST_BYTES", 10)
    with pytest.raises(JobError, match=r"^model\.code: .* holds more than 0 GiB"):
        list_code(job_in(tmp_path))
    monkeypatch.undo()
    assert names(job_in(tmp_path, model={"code": ["predict.py"]})) == {"predict.py"}


DATES = ("2026-11-18", "2026-11-19")


@pytest.mark.parametrize("keys", [{}, {"code": ["**"]}])
@pytest.mark.parametrize("date", ["", "/{date}"])
def test_a_link_to_input_or_output_is_no_code(tmp_path: Path, date: str, keys: dict[str, Any]) -> None:
    """Or each night would score everything again, because the results of the one before would be code of its own."""
    lay(tmp_path, *(f"big/{place}/{day}/a.parquet" for place in ("in", "out", "table") for day in DATES))
    lay(tmp_path, "job/predict.py", "shared/lookup.parquet", "shared/more/x", "out/runs/x")
    job = tmp_path / "job"
    links = {
        "data": "in",
        "results": "out",
        "lib/results": "out",
        "today": f"out/{DATES[1]}",
        "before": "out/2026-11-18",
    }
    for name, place in {**links, "one.parquet": "out/2026-11-18/a.parquet"}.items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).symlink_to(tmp_path / "big" / place)
    (job / "shared").symlink_to(tmp_path / "shared")
    output: dict[str, Any] = {"uri": f"{tmp_path}/big/out{date}"}
    if not date:
        (job / "table").symlink_to(tmp_path / "big" / "table" / DATES[0])
        output["tables"] = [{"delta": f"{tmp_path}/big/table"}]
    given = job_in(job, input={"uri": f"{tmp_path}/big/in{date}/"}, output=output, model=keys)
    assert names(given.at(dt.date(2026, 11, 19))) == {"predict.py", "shared/lookup.parquet", "shared/more/x"}


@pytest.mark.parametrize("through", ["job", "place"])
@pytest.mark.parametrize("uri", ["{}/in", "{}/in/{{date}}", "{}/{{date}}", "{}/a-{{date}}.parquet", "{}/*.parquet"])
def test_a_job_in_a_linked_folder_knows_its_places_by_either_path(tmp_path: Path, uri: str, through: str) -> None:
    """Whether the job is opened by the link, or the job names its places by it."""
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    data = {name for day in DATES for name in (f"in/{day}/a.parquet", f"{day}/a.parquet", f"a-{day}.parquet")}
    lay(real, "predict.py", "out/runs/r/x", "models/m.bin", "one.bin", "lib/b.txt", *data)
    opened, named = (link, real) if through == "job" else (real, link)
    fixed_uri = uri.format(named)
    model = {"path": f"{named}/models"}
    given = job_in(opened, input={"uri": fixed_uri}, output={"uri": f"{named}/out"}, model=model)
    before = job_in(opened, input={"uri": uri.format(opened)}, output={"uri": "out"}, model={"path": "models"})
    night = dt.date(2026, 11, 19)
    assert names(given.at(night)) == names(before.at(night)) >= {"predict.py", "one.bin", "lib/b.txt"}
    single = job_in(opened, model={"path": f"{named}/one.bin"}, output={"uri": f"{named}"})
    assert not names(single) & {"one.bin", "runs/x"}


def test_a_job_whose_folder_is_the_output_by_another_path_has_results_in_it(tmp_path: Path) -> None:
    lay(tmp_path / "job", "predict.py", "runs/n/plan.json", "job.json", "dates/runs/x.py")
    (tmp_path / "link").symlink_to("job")
    listing = list_code(job_in(tmp_path / "link", output={"uri": str(tmp_path / "job")}))
    assert set(listing.files) == {"predict.py"}
    assert listing.left_out == dict.fromkeys(("dates/", "job.json", "runs/"), "output.uri")
    lay(tmp_path / "job", "dates/job/predict.py")
    assert names(job_in(tmp_path / "job" / "dates" / "job", output={"uri": "../../"})) == {"predict.py"}


@pytest.mark.parametrize("keys", [{}, {"code": ["**"]}])
def test_a_link_to_what_belongs_to_another_job_is_no_code(tmp_path: Path, keys: dict[str, Any]) -> None:
    """What is named is the link, not where it leads."""
    lay(tmp_path, "big/out/runs/x", "big/in/a.json", "m/weights", "job/predict.py", "job/2026-11-18.txt")
    job = tmp_path / "job"
    theirs = {"input": f"{tmp_path}/big/in/*", "output": f"{tmp_path}/big/out", "model": f"{tmp_path}/m"}
    (job / "other.yaml").write_text(JOB.format(name="o", **theirs))
    night = {"input": f"'{tmp_path}/link/{{date}}.txt'", "output": "x", "model": "y"}
    (job / "night.yaml").write_text(JOB.format(name="n", **night))
    (tmp_path / "link").symlink_to(job)
    links = {"lib/results": "big/out", "latest": "big/out/runs", "x": "big/out/runs/x", "feed": "big/in", "model": "m"}
    for name, place in links.items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).symlink_to(tmp_path / place)
    listing = list_code(job_in(job, model=keys))
    assert set(listing.files) == {"predict.py", *({"model/weights"} if keys else ())}
    left = dict.fromkeys(("lib/results/", "latest/", "feed/", "x"), str(job / "other.yaml"))
    left |= {"2026-11-18.txt": str(job / "night.yaml")}
    assert listing.left_out == (left if keys else {**left, "model/": str(job / "other.yaml")})


MOUNTED = """
import sys
from pathlib import Path
from nightjar.inference.identity.folder import list_code
from nightjar.inference.job.file import parse_job
root = Path(sys.argv[1])
model = {"uses": "predict:f", "outputs": {"s": "float32"}}
job = {"name": "j", "input": {"uri": f"{root}/in/"}, "model": model, "output": {"uri": f"{root}/out/"}}
print(*list_code(parse_job(job, root / "job" / "job.yaml")).files)
"""


def test_a_mount_of_the_output_is_no_code(tmp_path: Path) -> None:
    """As in a container in which a folder of the host has two paths."""
    lay(tmp_path, "out/runs/x", "in/a.parquet", "job/predict.py", "job/results/.keep", "job/data/.keep")
    mount = f"mount --bind {tmp_path}/out {tmp_path}/job/results && mount --bind {tmp_path}/in {tmp_path}/job/data"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("this user may not mount anything")
    script = f"{mount} && exec {sys.executable} -c '{MOUNTED}' {tmp_path}"
    found = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["predict.py"]


def test_a_file_of_the_code_that_a_job_would_write_over_stays_code(tmp_path: Path) -> None:
    """So that the error is that of the output, and not of code that is missing."""
    lay(tmp_path, "predict.py", "table.py")
    job = job_in(tmp_path, output={"uri": "predict.py", "tables": [{"delta": "table.py"}]})
    assert names(job) == {"predict.py", "table.py"}
