"""Every command in the README and the docs is run as it stands there, in a folder like the one they speak of."""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from forked import forked
from pages import ON_RAY, PAGES, ROOT, Shown, shown
from ports import quiet_ports
from service import service
from support import Lake, wait_until

NIGHTS = [f"2026-11-{day:02d}" for day in range(1, 20)]

ELSEWHERE = {
    "make": "make and its targets are what runs these tests",
    "pip": "the installation is what these tests run in (test_packaging.py)",
    "docker": "there is no container engine here (test_docker.py, test_hosts.py)",
    "cp": "before a container is started",
}
"""Commands that are not run here, and where they are."""

SERVING = {
    "nightjar serve": "Ctrl-C ends",
    "prefect server start": "Check out the dashboard",
    "prefect worker start": "started!",
}
"""Commands that go on until they are ended, and what they say when they are up."""

MODEL = """
def score(batch):
    if 18500 in batch["x"]:
        raise ValueError("this row cannot be scored")
    return {"score": batch["x"]}
"""


@dataclass
class Place:
    """The folder that the pages speak of: `job.yaml`, `jobs/`, a run with a quarantined row, an API."""

    lake: Lake
    env: dict[str, str]
    values: dict[str, str]

    def words(self, given: Shown) -> list[str]:
        """The command with its placeholders filled in."""
        words = [self.values.get(word, word) for word in given.words if not word.startswith("[")]
        return [word for word in words if word != "N]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, api_env: dict[str, str]) -> Iterator[Place]:
    """Nights of input from 2026-11-01, two of them published; one row of the last cannot be scored."""
    folder = tmp_path_factory.mktemp("docs")
    lake = Lake(folder)
    for index, night in enumerate(NIGHTS):
        lake.write_file(f"{night}/part.parquet", index * 1000, 1000)
    # So that "tonight" has input, even if midnight comes.
    for ahead in range(2):
        day = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=ahead)
        lake.write_file(f"{day}/part.parquet", 100_000, 1000)
    lake.write_model(MODEL)
    for name in ("2026/part", "more"):
        lake.write_file(f"../train/{name}.parquet", 0, 1000)
    (folder / "truth").mkdir()
    (folder / "truth" / "labels.csv").write_text("id,late\n17000,1\n17001,0\n17002,\n")
    late = {"key": ["id"], "label": "late"}
    lake.write_job(name="docs", input__uri="data/{date}/", profile="all", retry__max_quarantined=0.01, late_labels=late)
    job = yaml.safe_load(lake.job_path.read_text())
    shutil.copytree(folder, folder / "jobs" / "docs", ignore=shutil.ignore_patterns("jobs"))
    (folder / "jobs" / "docs" / "job.yaml").write_text(yaml.safe_dump({**job, "name": "docs-served"}, sort_keys=False))
    for night in ("2026-11-18", "2026-11-19"):
        done = forked("run", lake.job_path, "--date", night, "--engine", "local", env=api_env)
        assert done.returncode == 0, done.stderr
    line = lake.quarantined(run_id="2026-11-19")["replay"][0]
    words = shlex.split(line)
    shard, row = words[words.index("--shard") + 1], words[words.index("--row") + 1]
    values = {"JOB": "job.yaml", "S": shard, "R": row, "10.0.0.5:6379": "auto"}
    yield Place(lake, api_env, values)


def test_the_pages_have_commands_and_each_is_accounted_for() -> None:
    """A program that nobody runs here would be a promise nobody keeps."""
    programs = {each.words[0] for each in shown()}
    assert programs <= {"nightjar", "prefect", *ELSEWHERE}
    assert len(shown()) > 25
    assert ON_RAY in {shlex.join(each.words) for each in OURS}


OURS = [s for s in shown() if s.words[0] == "nightjar" and s.words[1] != "serve" and "--ray" not in s.words]
COMMANDS = list({tuple(each.words): each for each in reversed(OURS) if shlex.join(each.words) != ON_RAY}.values())[::-1]
"""Each once, though several pages may show it, and told to score without Ray.

test_remote.py has a cluster, and runs those with an address of one; test_secrets.py runs `ON_RAY`.
"""

SCORE = ("run", "baseline", "retry", "check", "backfill")
"""Commands that start Ray if they are not told otherwise."""


def short(each: Shown) -> str:
    return f"{each.page}: {each.text.partition('#')[0].strip()}"


@pytest.mark.parametrize("each", COMMANDS, ids=short)
def test_a_command_of_the_docs(place: Place, each: Shown) -> None:
    """It is understood, and does what it says: exit 0, or 1 for what says no (replay of a bad row, a doctor)."""
    words = place.words(each)[1:]
    local = ["--engine", "local"] if words[0] in SCORE and "--engine" not in words else []
    done = forked(*words, *local, env=place.env, cwd=place.lake.folder)
    expected = 1 if each.words[1] == "replay" else 0
    assert done.returncode == expected, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


GO_ON = {tuple(s.words): s for s in shown() if any(s.text.startswith(start) for start in SERVING)}
"""Each once, as above."""


@pytest.mark.parametrize("each", GO_ON.values(), ids=short)
def test_what_goes_on_until_it_is_ended(place: Place, each: Shown, tmp_path: Path, own_home: Path) -> None:
    """It comes up, says so, and ends with Ctrl-C."""
    ready = next(said for start, said in SERVING.items() if each.text.startswith(start))
    own = each.text.startswith("prefect server start")
    own_server = {"PREFECT_HOME": str(own_home), "PREFECT_SERVER_API_PORT": str(quiet_ports(1)[0])}
    env = {**place.env, **(own_server if own else {})}
    program, *words = each.words
    with service(tmp_path, *words, env=env, program=program, cwd=place.lake.folder) as up:
        wait_until(lambda: up.says(ready), 90, f"{each.text} says {ready}")


@pytest.mark.parametrize(
    "each",
    [s for s in shown() if s.words[0] == "prefect" and not any(s.text.startswith(start) for start in SERVING)],
    ids=short,
)
def test_prefect_s_own_commands(place: Place, each: Shown, tmp_path: Path) -> None:
    env = {**os.environ, **place.env, "PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")}
    prefect = str(Path(sys.executable).parent / "prefect")
    done = subprocess.run([prefect, *each.words[1:]], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


FOR_CONTRIBUTORS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("page", [*PAGES, *FOR_CONTRIBUTORS], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for file, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: {file}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {file}#{anchor}"


def test_files_that_contributors_are_told_of_exist() -> None:
    named = re.findall(r"`((?:inference|flows|tests)/[\w/]+\.py)`", FOR_CONTRIBUTORS[0].read_text())
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_job_file_in_the_docs_is_one(tmp_path: Path) -> None:
    """YAML that begins with a name is a whole job file; other blocks are keys of one, or of a prefect.yaml."""
    from nightjar.inference.job.file import parse_job, read_yaml
    from nightjar.inference.job.model import Job
    from nightjar.inference.predictors import check_keys

    seen, keys = 0, {field.alias or name for name, field in Job.model_fields.items()}
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            (tmp_path / "block.yaml").write_text(block)
            content = read_yaml(tmp_path / "block.yaml")
            if "name" in content:
                check_keys(parse_job(content, Path("/nowhere/job.yaml")))
                seen += 1
            else:
                assert set(content) <= {*keys, "triggers"}, page.name
    assert seen >= 2
