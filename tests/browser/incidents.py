"""Makes the pictures of docs/incidents.md: each incident happens, and its page is photographed.

    python tests/browser/incidents.py [--only NAME ...] [--lake /tmp/lake] [--pictures docs/pictures/incidents]

Each incident has a small lake of its own in a folder of that name, and is run by the installed command, on Ray only
where Ray is the point. The pages are kept there, too. It needs Chromium; `full-disk` needs the right to mount a disk.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "helpers")]  # as pytest does for its modules

from conftest import ARGUMENTS, CHROMIUM  # noqa: E402

from endpoints import Asked, Reply, endpoint, fault, said  # noqa: E402
from nightjar.flows.prefect_api import ownserver, server  # noqa: E402
from support import answering, nightjar, wait_until  # noqa: E402
from world import world  # noqa: E402

BEFORE, TONIGHT = "2026-11-18", "2026-11-19"
WIDTH, HEIGHT = 1040, 1100
"""Of a picture, in pixels; a page that is longer is cut off."""

COLOURS = 32
COMMAND_S = 300

PREDICT = '''"""How likely a passenger tips."""

import json
import os
import time
from pathlib import Path

import numpy as np


class Tips:
    def __init__(self, path):
        self.weights = json.loads(Path(path).read_text())

    def __call__(self, batch):
{trouble}
        known = self.weights
        logit = known["bias"] - known["distance"] * batch["distance"] + known["hour"] * batch["hour"]
        return {{"score": 1 / (1 + np.exp(-logit))}}
'''

WEIGHTS = '{"bias": 0.4, "distance": 0.55, "hour": 0.06}'
DRIFT = {"drift": ["distance", "hour", "score"], "against": "last", "psi": 0.2}


@dataclass
class Shot:
    """What is photographed. page: a file of HTML. sections: of a report, beside the verdict."""

    page: Path
    sections: tuple[str, ...] = ()


@dataclass
class Trips:
    """The lake of one incident: a folder with a job, its predictor and its nights."""

    folder: Path
    env: dict[str, str]
    said: list[str] = field(default_factory=list)

    def job(self, trouble: str = "", **keys: Any) -> None:
        """Write job, predictor and model. trouble: lines of the predictor's call. keys: of the job; None leaves out."""
        job: dict[str, Any] = {
            "name": "trips",
            "input": {"uri": "data/{date}/", "shard_rows": 500},
            "model": {
                "uses": "predict:Tips",
                "path": "tips.json",
                "features": ["distance", "hour"],
                "outputs": {"score": "float32"},
                "batch_size": 250,
            },
            "carry": ["trip_id", "distance", "hour", "borough"],
            "label": "tipped",
            "output": {"uri": "out/"},
            "resources": {"actors": 1},
            "retry": {"backoff_s": 0.1},
            "profile": "all",
        }
        job = {name: value for name, value in {**job, **keys}.items() if value is not None}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
        lines = "".join(f"        {line}\n" for line in trouble.splitlines())
        (self.folder / "predict.py").write_text(PREDICT.format(trouble=lines.rstrip("\n")))
        (self.folder / "tips.json").write_text(WEIGHTS)

    def night(self, date: str, files: int = 4, rows: int = 1000, **columns: Callable[[np.ndarray], Any]) -> Path:
        """Write a night's input, and return its folder. columns: what becomes of a column's values."""
        folder = self.folder / "data" / date
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(int(date.replace("-", "")))
        for index in range(files):
            distance, hour = rng.gamma(2.0, 1.6, rows), rng.integers(0, 24, rows)
            chance = 1 / (1 + np.exp(-(0.4 - 0.55 * distance + 0.06 * hour)))
            found = {
                "trip_id": np.arange(index * rows, (index + 1) * rows) + 1_000_000,
                "distance": distance.astype("float32"),
                "hour": hour.astype("int32"),
                "borough": rng.choice(["Bronx", "Brooklyn", "Manhattan", "Queens"], rows),
                "tipped": rng.random(rows) < chance,
            }
            found |= {name: change(found[name]) for name, change in columns.items()}
            pq.write_table(pa.table(found), folder / f"part-{index:02d}.parquet", row_group_size=500)
        return folder

    def run(self, date: str, *words: str, code: int = 0) -> None:
        """Score a night without Ray, unless the words say another engine."""
        engine = () if {"--engine", "--ray"} & set(words) else ("--engine", "local")
        self.command("run", "job.yaml", "--date", date, *engine, *words, code=code)

    def command(self, *words: str, code: int = 0) -> str:
        """Run `nightjar …` as a person would; returns what it printed.

        Raises:
            AssertionError: It ended with another exit code.
        """
        done = subprocess.run(
            [nightjar(), *words], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=COMMAND_S
        )
        self.said.append(done.stdout + done.stderr)
        assert done.returncode == code, f"nightjar {' '.join(words)}: {done.returncode}\n{self.said[-1]}"
        return done.stdout + done.stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command that goes on meanwhile."""
        return subprocess.Popen(
            [nightjar(), *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def report(self, *sections: str, date: str = TONIGHT, again: bool = False, revision: int = 0) -> Shot:
        """The report of a night. again: made again by the command."""
        if again:
            self.command("report", "job.yaml", date)
        revisions = self.folder / "out" / "runs" / date
        number = revision or max(int(path.name[1:]) for path in revisions.glob("r[0-9]*"))
        return Shot(revisions / f"r{number}" / "report.html", sections)

    def until(self, running: subprocess.Popen[str], condition: Callable[[], object], what: str) -> None:
        """Wait for something that a command does.

        Raises:
            AssertionError: The command ended before.
        """
        wait_until(lambda: running.poll() is not None or condition(), 120, what)
        if running.poll() is not None:
            self.said.append(running.communicate()[0])
            raise AssertionError(f"the command ended before {what}:\n{self.said[-1]}")

    def receipts(self, date: str = TONIGHT) -> int:
        """How many shards of a night have parts."""
        return len(list((self.folder / "out" / "runs" / date).glob("r*/data/*.parquet")))


def stretch(file: Path, rows: list[int], miles: float) -> None:
    """Change the distance of some rows."""
    table = pq.read_table(file)
    distance = table["distance"].to_numpy().copy()
    distance[rows] = miles
    at = table.column_names.index("distance")
    pq.write_table(table.set_column(at, "distance", pa.array(distance)), file, row_group_size=500)


def bad_file(lake: Trips) -> Shot:
    """A file of the input was cut off by a broken upload."""
    lake.job()
    file = lake.night(TONIGHT) / "part-02.parquet"
    file.write_bytes(file.read_bytes()[:9000])
    lake.run(TONIGHT, code=1)
    return lake.report("shards")


def killed_worker(lake: Trips) -> Shot:
    """A row ends the process that scores it."""
    lake.job('if (batch["distance"] > 9000).any():\n    os._exit(1)')
    stretch(lake.night(TONIGHT) / "part-01.parquet", [417], 9999)
    lake.run(TONIGHT, "--engine", "ray")
    return lake.report("quarantine")


def swapped_model(lake: Trips) -> Shot:
    """The model's file is replaced between two runs of a night."""
    lake.job()
    lake.night(TONIGHT)
    lake.run(TONIGHT)
    (lake.folder / "tips.json").write_text(WEIGHTS.replace("0.55", "0.45"))
    lake.run(TONIGHT)
    return lake.report("origin")


def zeroed_feature(lake: Trips) -> Shot:
    """A feature is 0 in every row."""
    lake.job(checks=[DRIFT])
    lake.night(BEFORE)
    lake.night(TONIGHT, hour=np.zeros_like)
    lake.run(BEFORE)
    lake.run(TONIGHT, code=1)
    return lake.report("different")


def drifted_column(lake: Trips) -> Shot:
    """Miles have become kilometres."""
    lake.job(checks=[DRIFT])
    lake.night(BEFORE)
    lake.night(TONIGHT, distance=lambda miles: miles * np.float32(1.609))
    lake.run(BEFORE)
    lake.run(TONIGHT, code=1)
    return lake.report("different")


def expired_key(lake: Trips) -> Shot:
    """The key of an endpoint ends in mid-run."""
    model = {
        "uses": "openai",
        "url": "http://127.0.0.1:8000/v1",
        "served_model": "small",
        "prompt": "Which borough, in capitals: {borough}",
        "outputs": {"answer": "string"},
    }

    def behave(asked: Asked) -> Reply:
        if asked.number > 700:
            return fault(401, "the API key has expired")
        return said(asked.text.upper())

    with endpoint(behave) as asked:
        model["url"] = asked.url
        lake.job(model=model, label=None, profile=None)
        lake.night(TONIGHT, rows=500)
        lake.run(TONIGHT, code=1)
    return lake.report("shards")


def full_disk(lake: Trips) -> Shot:
    """Something else fills the disk of the output while a night is scored: here a disk of 64 MiB, in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", lake.folder], check=True)
    try:
        lake.job("time.sleep(0.8)")
        lake.night(TONIGHT)
        running = lake.start("run", "job.yaml", "--date", TONIGHT, "--engine", "local")
        lake.until(running, lambda: lake.receipts() >= 2, "two shards are committed")
        # 2 % of the disk is the reserve below which a run stops.
        free = shutil.disk_usage(lake.folder).free
        (lake.folder / "dump.core").write_bytes(bytes(free - (1 << 20)))
        lake.said.append(running.communicate(timeout=COMMAND_S)[0])
        assert running.returncode == 1, lake.said[-1]
        shot = lake.report()
        kept = lake.folder.parent / f"{lake.folder.name}.html"
        shutil.copy(shot.page, kept)
        return Shot(kept, ("shards",))
    finally:
        subprocess.run(["umount", "--lazy", lake.folder], check=True)


def lost_node(lake: Trips) -> Shot:
    """One of the two nodes of a Ray cluster that score is gone in mid-run."""
    with world(lake.env["PREFECT_API_URL"], Path(lake.env["PREFECT_HOME"])) as cluster:
        lake.env |= cluster.env
        lake.job("time.sleep(1.5)", resources={"actors": {"min": 1, "max": 2}})
        lake.night(TONIGHT)
        running = lake.start("run", "job.yaml", "--date", TONIGHT, "--ray", cluster.address)
        lake.until(running, lambda: lake.receipts() >= 3, "three shards are committed")
        next(node for node in cluster.nodes if node.actors()).kill()
        lake.said.append(running.communicate(timeout=COMMAND_S)[0])
        assert running.returncode == 0, lake.said[-1]
    return lake.report("shards")


def slow_shard(lake: Trips) -> Shot:
    """One file's rows take much longer than the others'."""
    says = 'print("route of more than 90 miles: looked up stop by stop")'
    lake.job(f'if batch["distance"].max() > 90:\n    {says}\n    time.sleep(4)')
    stretch(lake.night(TONIGHT) / "part-03.parquet", [20, 270], 97)
    lake.run(TONIGHT)
    return lake.report("time")


def half_missing(lake: Trips) -> Shot:
    """Half of the input did not come."""
    lake.job(checks=[{"rows": {"against": "last", "change": 0.3}}])
    lake.night(BEFORE)
    lake.night(TONIGHT, files=2)
    lake.run(BEFORE)
    lake.run(TONIGHT, code=1)
    return lake.report("gates")


def duplicate_keys(lake: Trips) -> Shot:
    """A file was delivered twice, under two names."""
    lake.job(checks=[{"unique": ["trip_id"]}])
    folder = lake.night(TONIGHT)
    shutil.copy(folder / "part-01.parquet", folder / "part-01-retry.parquet")
    lake.run(TONIGHT, code=1)
    return lake.report("gates")


def late_label(lake: Trips) -> Shot:
    """The labels came a day later, and say that the model was wrong."""
    checks = [{"metric": "auroc", "min": 0.6}]
    lake.job(label=None, late_labels={"key": ["trip_id"], "label": "tipped"}, checks=checks)
    folder = lake.night(TONIGHT)
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.iterdir()))
    truth = lake.folder / "truth"
    truth.mkdir()
    tipped = np.random.default_rng(1).random(len(table)) < 0.5
    pq.write_table(pa.table({"trip_id": table["trip_id"], "tipped": tipped}), truth / "labels.parquet")
    lake.run(TONIGHT)
    lake.command("evaluate", "job.yaml", TONIGHT, "--labels", "truth/")
    return lake.report("metrics")


def rolled_back(lake: Trips) -> Shot:
    """A published night was wrong, and a person took it back."""
    lake.job()
    lake.night(BEFORE)
    lake.night(TONIGHT)
    lake.run(BEFORE)
    lake.run(TONIGHT)
    lake.command("rollback", "job.yaml")
    return lake.report("gates", again=True)


def rejected(lake: Trips) -> Shot:
    """A gate asked a person, who said no."""
    lake.job(checks=[{"column": "score", "max": 0.8, "on_fail": "ask"}])
    lake.night(TONIGHT)
    lake.run(TONIGHT, code=5)
    lake.command("reject", "job.yaml", TONIGHT, "--by", "on call", "--note", "the new fares are not in yet")
    return lake.report("gates")


INCIDENTS: tuple[Callable[[Trips], Shot], ...] = (
    bad_file,
    killed_worker,
    swapped_model,
    zeroed_feature,
    drifted_column,
    expired_key,
    full_disk,
    lost_node,
    slow_shard,
    half_missing,
    duplicate_keys,
    late_label,
    rolled_back,
    rejected,
)

SHORTEN = """sections => {
  document.querySelectorAll('header nav, footer').forEach(each => each.remove());
  document.querySelectorAll('main > section').forEach(each => {
    const name = each.getAttribute('aria-labelledby');
    if (name !== 'verdict' && !sections.includes(name)) each.remove();
  });
  const long = 'tbody tr:nth-child(n+4), main > section h3 + pre, #different ~ table';
  document.querySelectorAll(long).forEach(each => each.remove());
}"""
"""Leaves the verdict and the sections that are named, and the first rows of tables."""


def photograph(browser: Browser, shot: Shot, path: Path) -> None:
    """Write the top of a page as a PNG of few colours."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 400}, color_scheme="light")
    page.goto(shot.page.as_uri())
    if shot.sections:
        page.evaluate(SHORTEN, list(shot.sections))
    bottom = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom + 16")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(bottom, HEIGHT)}
    taken = page.screenshot(full_page=True, clip=clip)
    page.close()
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


@contextlib.contextmanager
def prefect_api() -> Iterator[dict[str, str]]:
    """The environment of commands: a Prefect server of their own, and the installed programs first on the path."""
    with tempfile.TemporaryDirectory(prefix="nightjar-incidents-", ignore_cleanup_errors=True) as home:
        os.environ["PREFECT_HOME"] = home
        os.environ.pop("PREFECT_API_URL", None)
        with patch.object(ownserver, "USUAL_PORT", 0):
            api = server.start_api(complete=True)
        with answering(api) as url:
            path = f"{Path(nightjar()).parent}:{os.environ['PATH']}"
            # Wide enough for one line each; no terminal says how wide it is.
            yield {**os.environ, "PATH": path, "PREFECT_API_URL": url, "OPENAI_API_KEY": "sk-night", "COLUMNS": "120"}


def main() -> None:
    """Make the pictures."""
    names = {each.__name__.replace("_", "-"): each for each in INCIDENTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    parser.add_argument("--lake", type=Path, default=Path("/tmp/lake"))
    parser.add_argument("--pictures", type=Path, default=TESTS.parent / "docs" / "pictures" / "incidents")
    asked = parser.parse_args()
    asked.pictures.mkdir(parents=True, exist_ok=True)
    failed = []
    with prefect_api() as env, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for number, name in enumerate(names, 1):
            if name not in asked.only:
                continue
            folder = asked.lake / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            lake, began = Trips(folder, dict(env)), time.monotonic()
            try:
                photograph(browser, names[name](lake), asked.pictures / f"{number:02d}-{name}.png")
                print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed.append(name)
                print(f"{name}: FAILED\n{error}", flush=True)
            (asked.lake / f"{name}.log").write_text("\n".join(lake.said))
        browser.close()
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
