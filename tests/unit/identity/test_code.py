"""What the code of a job is: the modules that it names, what these import, the files that these name (promise 4)."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.identity import code
from nightjar.inference.identity.code import explained, find_code, find_objects
from nightjar.inference.identity.snapshots import take_model
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def job_in(root: Path, **keys: Any) -> Job:
    model = {"uses": "predict:f", "outputs": {"score": "float32"}, **keys.pop("model", {})}
    content = {"name": "j", "input": {"uri": "data/"}, "model": model, "output": {"uri": "out/"}, **keys}
    return parse_job(content, root / "job.yaml")


def names(root: Path, files: dict[str, str], **keys: Any) -> set[str]:
    lay(root, files)
    return set(find_code(job_in(root, **keys)).files)


def test_only_what_the_code_imports_and_names_scores(tmp_path: Path) -> None:
    """A neighbour's script, a log, another job's model, an editor's file: none makes a night old."""
    files = {"predict.py": "import h\nopen('v.json')", "h.py": "", "v.json": ""}
    beside = {"train.py": "import h", "churn.joblib": "", "night.log": "", "b.yaml": "", ".gitignore": "*.json"}
    assert names(tmp_path, {**files, **beside}) == set(files)


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("import h", {"h.py"}),
        ("from h import W", {"h.py"}),
        ("def f():\n  import h", {"h.py"}),
        ("import pkg.deep", {"pkg/__init__.py", "pkg/deep.py", "pkg/words.txt", "pkg/inner/__init__.py"}),
        ("from pkg import deep", {"pkg/__init__.py", "pkg/deep.py", "pkg/words.txt", "pkg/inner/__init__.py"}),
        ("import loose.one", {"loose/one.py", "loose/two.py"}),
        ("from loose import one", {"loose/one.py", "loose/two.py"}),
        ("__import__('h')", {"h.py"}),
        ("import chain", {"chain.py", "h.py"}),
        ("import both", {"both.py", "both.so"}),
        ("import bytecode", {"bytecode.pyc"}),
        ("open('v.json')", {"v.json"}),
        ("Path(__file__).parent / 'v.json'", {"v.json"}),
        ("open(f'{HERE}/v.json')", {"v.json"}),
        ("open(HERE + '/v.json')", {"v.json"}),
        ("open(f'vocab_{lang}.json')", {"vocab_de.json", "vocab_en.json"}),
        ("open('vocab_%s.json' % lang)", {"vocab_de.json", "vocab_en.json"}),
        ("open('vocab_{}.json'.format(lang))", {"vocab_de.json", "vocab_en.json"}),
        ("open(f'{HERE}/vocab_{lang}.json')", {"vocab_de.json", "vocab_en.json"}),
        ("open('{}/v.json'.format(HERE))", {"v.json"}),
        ("open('%s/v.json' % HERE)", {"v.json"}),
        ("open(f'{HERE}/tables/{name}.csv')", {"tables/a.csv", "tables/deep/b.csv"}),
        ("open(os.fsencode(HERE) + b'/v.json')", {"v.json"}),
        ("HERE.glob('vocab_??.json')", {"vocab_de.json", "vocab_en.json"}),
        ("HERE.glob('vocab_[a-d]*.json')", {"vocab_de.json"}),
        ("open('notes[1].txt')", {"notes[1].txt"}),
        ("glob(str(HERE) + '/**/*.csv', recursive=True)", {"tables/a.csv", "tables/deep/b.csv"}),
        ("'**', '**/', '**/*', '**/**', '[', '**/[', '**/\\\\', '?', 'what?', b'\\xff.json'", set()),
        ("HERE.glob('*.json')", {"v.json", "vocab_de.json", "vocab_en.json"}),
        ("HERE / 'tables' / name", {"tables/a.csv", "tables/deep/b.csv"}),
        ("sys.path.append('tables/../libs')", {"libs/x.py"}),
        ("'.', '..', '*', '*.*', 'a/b', '', '/', '../..', 'x' * 9", set()),
        ("'no\\n', '\\0', '\\ud83d'", set()),
        ("f'{a}/{b}', '%s' % a, '{}'.format(b)", set()),
    ],
)
def test_a_line_of_code_adds_what_it_imports_and_names(line: str, files: set[str], tmp_path: Path) -> None:
    lie_there = {
        **dict.fromkeys(("h.py", "both.py", "both.so", "bytecode.pyc", "v.json", "vocab_de.json", "vocab_en.json"), ""),
        **dict.fromkeys(("pkg/__init__.py", "pkg/deep.py", "pkg/words.txt", "pkg/inner/__init__.py"), ""),
        **dict.fromkeys(("tables/a.csv", "tables/deep/b.csv", "tables/__pycache__/x.pyc", "libs/x.py"), ""),
        "notes[1].txt": "",
        "loose/one.py": "from . import two",
        "loose/two.py": "",
        "chain.py": "def f():\n    from h import W",
    }
    assert names(tmp_path, {**lie_there, "predict.py": line}) == {"predict.py", *files}


def test_a_module_names_files_beside_itself_and_in_the_folders_above(tmp_path: Path) -> None:
    files = {
        "lib/sub/m.py": "open('near'), open('middle'), open('top')",
        "lib/sub/near": "",
        "lib/middle": "",
        "top": "",
    }
    assert names(tmp_path, {"predict.py": "import lib.sub.m", **files}) == {"predict.py", *files}


def test_an_option_names_files_of_the_folder(tmp_path: Path) -> None:
    files = {"predict.py": "", "v.json": "", "words/de.txt": "", "other": ""}
    options = {"vocab": "v.json", "deep": [{"words": "words/"}], "threshold": 1, "mode": "fast"}
    assert names(tmp_path, files, model={"options": options}) == {"predict.py", "v.json", "words/de.txt"}


def test_each_file_says_why_it_counts(tmp_path: Path) -> None:
    lay(tmp_path, {"predict.py": "import os\nimport h\n", "h.py": "open('v.json')", "v.json": "", "w": "", "o.txt": ""})
    reasons = find_code(job_in(tmp_path, model={"code": ["w"], "options": {"o": "o.txt"}})).reasons
    assert reasons == {
        "predict.py": "model.uses",
        "h.py": "predict.py:2",
        "v.json": "h.py:1",
        "w": "model.code",
        "o.txt": "model.options",
    }


def test_model_code_adds_and_takes_away(tmp_path: Path) -> None:
    files = {"predict.py": "open('v.json')", **dict.fromkeys(("v.json", "a.txt", "deep/b.txt", "c"), "")}
    assert names(tmp_path, files, model={"code": ["*.txt"]}) == {"predict.py", "v.json", "a.txt", "deep/b.txt"}
    assert names(tmp_path, files, model={"code": ["*.txt", "!deep/"]}) == {"predict.py", "v.json", "a.txt"}
    assert names(tmp_path, files, model={"code": ["!v.json"]}) == {"predict.py"}
    assert names(tmp_path, files, model={"code": ["/a.txt"]}) == {"predict.py", "v.json", "a.txt"}
    assert names(tmp_path, files, model={"code": ["c"]}) == {"predict.py", "v.json", "c"}
    assert names(tmp_path, files, model={"code": ["*"]}) == set(files)


@pytest.mark.parametrize(
    "name", [".env", ".env.prod", "conf/tls.pem", "id_rsa", "service-account.json", "secrets.toml", "credentials.json"]
)
def test_a_key_is_only_published_by_a_job_that_names_its_file(name: str, tmp_path: Path) -> None:
    """The output is often a shared bucket."""
    files = {"predict.py": f"open('{name}'), open('.env.example')", name: "", ".env.example": ""}
    assert names(tmp_path, files) == {"predict.py", ".env.example"}
    assert name not in names(tmp_path, files, model={"code": ["*"]})
    assert name in names(tmp_path, files, model={"code": [name]})
    said = str(
        explained(JobError("no"), FileNotFoundError(2, "", str(tmp_path / "copy" / name)), str(tmp_path), "copy")
    )
    assert said == "no"
    copy = str(tmp_path / "copy")
    said = str(explained(JobError("no"), FileNotFoundError(2, "", f"{copy}/{name}"), str(tmp_path), copy))
    assert said.endswith("not part of what scores, because it may hold a key or a password; add it to model.code")


@pytest.mark.parametrize("uri", ["data/", "data/*.parquet", "data/{date}/*.parquet", "data/{date:%Y}/x-{date}.parquet"])
def test_input_output_and_model_are_no_code_on_any_date(uri: str, tmp_path: Path) -> None:
    """Although the code names the folder in which they lie. A file of another kind beside them is code."""
    data = ["data/2026-11-19/a.parquet", "data/2026/x-2026-11-19.parquet", "data/a.parquet", "out/runs/x", "m/w.pt"]
    files = {
        "predict.py": "'data', 'out', 'm', 'out2'",
        **dict.fromkeys(data, ""),
        "out2/2026-11-19/r": "",
        "data/v": "",
    }
    lay(tmp_path, files)
    job = job_in(tmp_path, input={"uri": uri}, model={"path": "m/w.pt"})
    taken = {name for name in data if name.startswith("data") and uri != "data/"} | {"data/v"}
    found = set(find_code(job).files)
    assert found <= {"predict.py", "out2/2026-11-19/r", *(taken if uri != "data/" else ())}
    assert ("data/v" in found) == (uri != "data/")
    lay(tmp_path, {"models/2026-11-18/m.pt": "", "models/2026-11-20/m.pt": "", "models/words": ""})
    lay(tmp_path, {"predict.py": "'models'"})
    of_a_date = job_in(tmp_path, model={"path": "models/{date}/m.pt"}).at("2026-11-18")
    assert set(find_code(of_a_date).files) == {"predict.py", "models/words"}
    lay(tmp_path, files)
    dated = job_in(tmp_path, output={"uri": "out2/{date}/"})
    assert set(find_code(dated).files) == {"predict.py", "m/w.pt", "out/runs/x"}


@pytest.mark.parametrize(
    ("uri", "data"),
    [
        ("{date}/", "2026-11-19/x.csv"),
        ("{date:%Y}/{date:%m}/", "2026/11/x.csv"),
        ("{date:%Y/%m}/x.csv", "2026/11/x.csv"),
        ("x{date:%b%d}.csv", "xNov19.csv"),
    ],
)
def test_code_lies_beside_folders_of_dates(uri: str, data: str, tmp_path: Path) -> None:
    code = {"predict.py": f"import features\nopen({data!r})", "features/__init__.py": "", "features/deep/x.csv": ""}
    lay(tmp_path, {data: ""})
    assert names(tmp_path, code, input={"uri": uri}) == set(code)


def test_names_of_digits_are_soon_told_from_dates(tmp_path: Path) -> None:
    """Six wildcards in a row were tried in all their lengths, which for 200 digits has no end."""
    digits = [f"data/{'0123456789' * 20}{number}.json" for number in range(20)]
    code = {"predict.py": "", **dict.fromkeys(digits, "")}
    keys = {"input": {"uri": "data/{date:%Y%m%d%H%M%S}.parquet"}, "model": {"code": ["data/*.json"]}}
    assert names(tmp_path, code, **keys) == set(code)


@pytest.mark.parametrize(
    ("folder", "keys"),
    [
        ("02_scoring", {"output": {"uri": "../{date}"}}),
        ("2026_jobs", {"output": {"uri": "../{date:%Y}_{date:%b}"}}),
        ("jobs", {"output": {"uri": "../{date:%B}"}}),
        ("2nd/job", {"model": {"path": "../../{date}"}}),
        ("jobs", {"input": {"uri": "../*", "format": "parquet"}}),
    ],
)
def test_a_folder_that_a_pattern_beside_it_matches_still_has_code(
    folder: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    assert names(tmp_path / folder, {"predict.py": "import h", "h.py": ""}, **keys) == {"predict.py", "h.py"}


@pytest.mark.parametrize("place", ["./", "../", "./*.csv"])
def test_a_folder_that_is_itself_input_still_has_code(place: str, tmp_path: Path) -> None:
    assert names(tmp_path, {"predict.py": "import h", "h.py": ""}, input={"uri": place}) == {"predict.py", "h.py"}


def test_what_an_editor_leaves_in_a_package_or_folder_is_no_code_unless_it_is_named(tmp_path: Path) -> None:
    code = {"predict.py": "import features\nopen('words'), '.env.example'", "features/__init__.py": "", "words/a": ""}
    code[".env.example"] = ""
    litter = ["features/.clean.py.swp", "features/clean.py~", "words/.ipynb_checkpoints/a", "words/a~", "words/.a.swp"]
    lay(tmp_path, dict.fromkeys([*litter, ".more/x", "more/x", "more/.x.swp"], ""))
    assert names(tmp_path, code) == set(code)
    assert set(find_code(job_in(tmp_path, model={"code": ["more/"]})).files) == {*code, "more/x"}
    assert set(find_code(job_in(tmp_path, model={"code": [".more/"]})).files) == {*code, ".more/x"}
    both = job_in(tmp_path, model={"code": [".more/x", "more/"]})
    assert set(find_code(both).files) == {*code, ".more/x", "more/x"}


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    lay(tmp_path, {"shared/x.py": "", "shared/__init__.py": "", "elsewhere/v": "1"})
    lay(tmp_path / "job", {"predict.py": "import pkg\nopen('v'), 'pipe', 'loop', 'socket'"})
    (tmp_path / "job/pkg").symlink_to("../shared")
    (tmp_path / "shared/up").symlink_to("..")
    (tmp_path / "job/v").symlink_to("../elsewhere/v")
    (tmp_path / "job/loop").symlink_to("loop")
    os.mkfifo(tmp_path / "job/pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "job/socket"))
        found = find_code(job_in(tmp_path / "job")).files
    assert {"predict.py", "pkg/__init__.py", "pkg/x.py", "v"} <= set(found)
    for path in ("loop", "pipe"):
        with pytest.raises(JobError, match=r"model\.path: there is no file or folder"):
            take_model(LakeStorage(), str(tmp_path / "job" / path))


def test_a_mounted_config_map_has_the_same_files_in_every_pod(tmp_path: Path) -> None:
    """Kubernetes lays them behind two links, the inner one with a new name at each mount."""
    for pod in ("a", "b"):
        root = tmp_path / pod
        lay(root / f"..2026_{pod}", {"predict.py": "open('v')", "v": ""})
        (root / "..data").symlink_to(f"..2026_{pod}")
        for name in ("predict.py", "v"):
            (root / name).symlink_to(f"..data/{name}")
        assert set(find_code(job_in(root, model={"code": ["*"]})).files) == {"predict.py", "v"}


def test_a_virtual_environment_beside_the_code_is_none(tmp_path: Path) -> None:
    files = {"env/pyvenv.cfg": "", "env/lib/theirs.py": "", "conda/conda-meta/history": "", "conda/x.py": ""}
    assert names(tmp_path, {"predict.py": "'env', 'conda'", **files}, model={"code": ["*.py"]}) == {"predict.py"}


def test_a_job_without_code_has_none(tmp_path: Path) -> None:
    assert names(tmp_path, {"predict.py": "", "m.pt2": ""}, model={"uses": "torch", "path": "m.pt2"}) == set()


def test_checks_and_accumulators_have_files_of_their_own(tmp_path: Path) -> None:
    """What only judges is no part of the code that scores; what both use is part of both."""
    lay(tmp_path, {"predict.py": "import common", "common.py": "", "rules.py": "import common\nopen('limits.json')"})
    lay(tmp_path, {"limits.json": "", "lift.py": "", "unused.py": ""})
    job = job_in(tmp_path, checks=[{"call": "rules:judge"}], accumulators={"lift": "lift:Lift"})
    assert set(find_code(job).files) == {"predict.py", "common.py"}
    assert set(find_objects(job, job.beside()).files) == {"rules.py", "common.py", "limits.json", "lift.py"}


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 2), ("MOST_BYTES", 20)])
def test_too_much_is_refused_by_the_folder_with_most_of_it(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"predict.py": "'weights'", "weights/a": "12345678" * 8, "weights/b": ""})
    monkeypatch.setattr(code, limit, most)
    with pytest.raises(JobError, match=r"^model\.code: .* is weights/ \(predict\.py:1\).*'!weights/'"):
        find_code(job_in(tmp_path))
    assert set(find_code(job_in(tmp_path, model={"code": ["!weights/"]})).files) == {"predict.py"}


@pytest.mark.parametrize("name", ["../key.txt", "deep/../../key.txt"])
def test_model_code_names_nothing_outside_the_folder(name: str, tmp_path: Path) -> None:
    """The file would be written outside the copy."""
    lay(tmp_path, {"job/predict.py": "", "job/deep/x": "", "key.txt": ""})
    with pytest.raises(JobError, match=f"model.code: {name} lies outside"):
        find_code(job_in(tmp_path / "job", model={"code": [name]}))


def test_texts_that_name_no_file_are_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated module may hold tens of thousands of them."""
    lay(tmp_path, {"predict.py": "\n".join(f"'word{i}', 'a{i}/%s.json', 'q%d.txt'" for i in range(50)), "q1.txt": ""})
    asked: list[str] = []
    search = code.glob.glob
    monkeypatch.setattr(code.glob, "glob", lambda pattern: [asked.append(pattern), *search(pattern)][1:])
    assert set(find_code(job_in(tmp_path)).files) == {"predict.py", "q1.txt"}
    assert set(asked) == {f"{tmp_path}/q*.txt"}


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^model\.code: vocab_de\.json, words/ matches no file of /"):
        names(tmp_path, {"predict.py": "", "a.txt": ""}, model={"code": ["vocab_de.json", "*.txt", "words/", "!b"]})
