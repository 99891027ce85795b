"""What tests build on: a small lake on disk, runs of it in this process or through the command line, and readers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import steps as run
from forked import COMMAND_S
from nightjar.inference.engine import RAY
from nightjar.inference.input.plan import Plan, discover
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.output import publications as publish
from nightjar.inference.output.nights import published
from nightjar.inference.process import environment
from nightjar.inference.run.request import RunRequest, fixed, make_request, to_begin
from nightjar.inference.scoring.assignment import WorkerSpec, read_schema
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from stacks import stacks

if TYPE_CHECKING:
    from nightjar.flows.prefect_api.ownserver import PrefectApi

ROOT = Path(__file__).parents[2]
HELPERS = Path(__file__).parent
FLIGHTS = ROOT / "examples" / "flights"

DOUBLE = '''
def score(batch):
    """Twice x."""
    return {"score": batch["x"] * 2}
'''
"""A predictor as plain as can be; the job of a fresh `Lake` uses it."""

SIGNS = (
    *("again", "calls*", "died", "go", "held", "killed", "later", "live", "loads", "memory", "nothing", "open"),
    *("permits", "prepared", "scored", "seen", "table", "told", "tried", "tries", "waiting"),
)
"""Files that models of the tests leave in the job's folder, and name. They are none of the code that scores."""

ONCE = '''
from pathlib import Path

def once(name):
    """Whether this is the first time, over all processes."""
    try:
        (Path(__LIVE__) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
'''
"""The beginning of a model's module, for models that do something once and then no more."""

HANGS_AT_A_ROW = '''
import threading

def score(batch):
    """Twice x, but one row is never answered."""
    if 5300 in batch["x"]:
        threading.Event().wait()
    return {"score": batch["x"] * 2}
'''

GATE = '''
import contextlib, time
from pathlib import Path


class Gate:
    """Takes one file out of a folder for each shard of 1000 rows, and waits while there is none."""

    def __init__(self, permits):
        self.permits = Path(permits)

    def permitted(self):
        for permit in self.permits.iterdir():
            with contextlib.suppress(FileNotFoundError):
                permit.unlink()
                return True
        return False

    def wait(self, rows):
        while rows == 1000 and not self.permitted():
            time.sleep(0.05)
'''
"""A module for models that score no faster than a test lets them."""


NIGHT = "2026-11-19"
"""The logical date of a request without one."""

SCHEMAS = ROOT / "docs" / "json"


def conforms(found: Any, command: str) -> None:
    """What a command printed with `--json` is what its schema in the docs says, and nothing else.

    Raises:
        AssertionError: it is not.
    """
    schema = _closed(json.loads((SCHEMAS / f"{command}.json").read_text()))
    problems = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(found)]
    assert not problems, problems


def _closed(schema: Any) -> Any:
    """The schema, with no other keys than those that it names: others may only come with a later release."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items()}
    return {**closed, "additionalProperties": False} if "properties" in closed else closed


def planned_line(file: str = "", fingerprint: str = "", date: str = NIGHT, shards: int = 0) -> Planned:
    """A ledger's line of a plan, of which nothing is done."""
    return Planned(file=file, fingerprint=fingerprint, date=date, shards=shards)


def permit(permits: Path, shards: int) -> None:
    """Let a gated model score so many more shards."""
    for _ in range(shards):
        (permits / uuid.uuid4().hex).touch()


BUSY = 3
"""How many times as long as on a quiet machine a wait may take."""

FREED_S = 10.0
"""Within this time after a command was stopped its actors have let go of what they held."""


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until the condition holds. A look that takes long is repeated less often: what is waited for needs the CPU.

    timeout_s: on a quiet machine; `BUSY` times as long is waited.

    Raises:
        AssertionError: it did not in this time.
    """
    timeout_s *= BUSY
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"after {timeout_s:g} s still not true: {what}"
        time.sleep(min(max(0.05, 9 * (now - began)), 0.5))


def is_true(condition: Callable[[], object], timeout_s: float) -> bool:
    """Whether it becomes true in this time, which is not longer where the machine is busy."""
    try:
        wait_until(condition, timeout_s / BUSY, "")
    except AssertionError:
        return False
    return True


class OneStep:
    """A scorer that prepares nothing: its call does all."""

    def prepare(self, table: pa.Table) -> pa.Table:
        return table

    def score(self, table: pa.Table) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = self(table)  # type: ignore[operator]
        return found


@contextmanager
def full_disk(most: int = 1 << 20) -> Iterator[None]:
    """No file of this process takes more bytes than this: a limit of the process in place of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class Lake:
    """A job folder: `data/*.parquet` (columns id, x, name), `model.py`, `job.yaml`; output in `out/`.

    engine: what its runs are scored by, unless they ask for another.
    """

    folder: Path
    engine: str = RAY

    @property
    def job_path(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def write_file(self, name: str, first: int, rows: int, row_group: int = 1000) -> Path:
        """One Parquet file with ids [first, first + rows) and x = id as float32."""
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = np.arange(first, first + rows)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "x": pa.array(ids, pa.float32()),
                "name": pa.array([f"row {i}" for i in ids], pa.string()),
            }
        )
        pq.write_table(table, path, row_group_size=row_group)
        return path

    def write_files(self, files: int = 4, rows: int = 2000, row_group: int = 1000) -> None:
        """Several files, ids running on from one to the next."""
        for index in range(files):
            self.write_file(f"part-{index:02d}.parquet", index * rows, rows, row_group)

    def write_texts(self, texts: Sequence[str | None], row_group: int) -> None:
        """One Parquet file of texts, with ids from 0 on."""
        path = self.folder / "data" / "texts.parquet"
        path.parent.mkdir(exist_ok=True)
        table = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts, pa.string())})
        pq.write_table(table, path, row_group_size=row_group)

    def to_json_lines(self, **packed: str) -> None:
        """Its Parquet files as JSON lines, blank lines among them. packed: file → `gzip` or `zstd`, for `part_01` …"""
        for path in sorted((self.folder / "data").glob("*.parquet")):
            rows = pq.read_table(path).to_pylist()
            content = "".join(json.dumps(row) + "\n" + "\n" * (row["id"] % 3 == 0) for row in rows).encode()
            end = ".jsonl"
            if codec := packed.get(path.stem.replace("-", "_")):
                content = pa.compress(content, codec, asbytes=True)
                end += {"gzip": ".gz", "zstd": ".zst"}[codec]
            path.with_suffix(end).write_bytes(content)
            path.unlink()

    def write_model(self, source: str = DOUBLE) -> None:
        """The module `model` beside the job file. `__LIVE__` in it is this folder, where tests leave it signs.

        The code itself is scored with from a snapshot; signs and logs are none of it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "model.py").write_text(source.replace("__LIVE__", repr(str(self.folder))))

    def write_job(self, **changes: Any) -> Path:
        """The job file; keys like `retry__attempts` change one nested key, None removes a key."""
        job: dict[str, Any] = {
            "name": "lake",
            "input": {"uri": "data/", "shard_rows": 1000},
            "model": {"uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}, "batch_size": 256},
            "carry": ["id", "name"],
            "output": {"uri": "out/"},
            "resources": {"actors": 1},
            "retry": {"backoff_s": 0.05},
        }
        for key, value in changes.items():
            target = job
            *path, last = key.split("__")
            for part in path:
                target = target.setdefault(part, {})
            if value is None:
                target.pop(last, None)
            else:
                target[last] = value
        for model in filter(None, [job.get("model"), *(job.get("models") or [])]):
            model.setdefault("code", [f"!/{sign}" for sign in SIGNS])
        self.job_path.write_text(yaml.safe_dump(job, sort_keys=False))
        return self.job_path

    def ready(self, **changes: Any) -> Lake:
        """Files, model and job in one go."""
        self.write_files()
        if not (self.folder / "model.py").exists():
            self.write_model()
        self.write_job(**changes)
        return self

    def request(self, *, storage: Storage | None = None, scores: bool = True, **options: Any) -> RunRequest:
        """A request for this job; date and engine are fixed unless given. scores: with code and model as they are."""
        options = {"date": NIGHT, "engine": self.engine, **options}
        request = make_request(self.job_path, storage=storage, **options)
        return fixed(to_begin(request)) if scores else request

    def run(self, *, storage: Storage | None = None, **options: Any) -> Ran:
        """All four steps in this process; on Ray they need the session's (fixture `ray_local`)."""
        return run_steps(self.request(storage=storage, **options))

    def published(self, run_id: str | None = None) -> pd.DataFrame:
        """What readers see, sorted by file and row."""
        return read_published(self.request(), run_id)

    def snapshot(self) -> publish.Snapshot:
        """The newest publication."""
        request = self.request()
        return publish.newest(request.storage, request.output)

    def revision(self, number: int = 1, run_id: str = "2026-11-19") -> Path:
        """The folder of one revision."""
        return self.out / "runs" / run_id / f"r{number}"

    def quarantined(self, number: int = 1, run_id: str = "2026-11-19") -> pd.DataFrame:
        """The rows in a revision's quarantine, sorted by file and row."""
        parts = sorted((self.revision(number, run_id) / "quarantine").glob("*.parquet"))
        frame = pd.concat([pq.read_table(part).to_pandas() for part in parts], ignore_index=True)
        return frame.sort_values(["_file", "_row"], ignore_index=True)

    def planned(self) -> Plan:
        """Tonight's shards, as a first run would plan them."""
        request = self.request()
        return run.plan(request, run.discover(request)).plan

    def worker_spec(self, storage: Storage | None = None) -> WorkerSpec:
        """What a worker of the first revision's first epoch is sent."""
        request = self.request(storage=storage)
        return WorkerSpec(
            job=request.job,
            job_path=request.job_path,
            run=(request.run_id,),
            revision=str(self.revision()),
            storage=request.storage,
            schema=read_schema(request.job, discover(LakeStorage(), request.job).schema),
            epoch=1,
            segment=0,
            budget=8,
            scoring=request.scoring,
            cache=str(self.folder / "cache"),
            own_process=False,
        )

    def records(self, number: int = 1, run_id: str = "2026-11-19") -> list[dict[str, Any]]:
        """Every record of a revision's ledger."""
        segments = sorted((self.revision(number, run_id) / "ledger").glob("*.jsonl"))
        return [json.loads(line) for path in segments for line in path.read_text().splitlines()[1:]]


class Measuring(LakeStorage):
    """Notes which bytes are read of each file, in this process: a footer that is read again counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.read_of: dict[str, np.ndarray] = {}

    def share(self, uri: str) -> float:
        """The part of a file's bytes that was read."""
        return float(self.read_of[uri].mean())

    def open(self, uri: str) -> pa.NativeFile:
        inner = super().open(uri)
        seen = self.read_of.setdefault(uri, np.zeros(inner.size(), dtype=bool))

        class File:
            closed = False

            def read(self, size: int | None = -1) -> bytes:
                return bytes(self.read_buffer(size))

            def read_buffer(self, size: int | None = -1) -> pa.Buffer:
                begin = inner.tell()
                data = inner.read_buffer(None if size is None or size < 0 else size)
                seen[begin : begin + data.size] = True
                return data

            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

        return pa.PythonFile(File(), mode="r")


@dataclass
class Ran:
    """What the four steps returned."""

    scored: run.Scored
    verdict: run.Verdict
    publication: run.Publication


def run_steps(request: RunRequest) -> Ran:
    """Discover, score, validate and publish in this process."""
    found = run.discover(request)
    scored = run.score(request, found)
    verdict = run.validate(request, scored, found)
    return Ran(scored, verdict, run.publish_run(request, scored, verdict))


def data_files(storage: Storage, output: str, run_id: str | None) -> Iterator[str]:
    """The exact data files of a published run (default: of the latest night), in input order."""
    return iter(published(storage, output, run_id).uris)


def read_published(request: RunRequest, run_id: str | None = None) -> pd.DataFrame:
    """The published rows of a run, sorted by source file and row."""
    names = list(data_files(request.storage, request.output, run_id))
    frame = pd.concat([pq.read_table(request.storage.open(name)).to_pandas() for name in names], ignore_index=True)
    return frame.sort_values(["_file", "_row"], ignore_index=True)


@contextmanager
def leaves_nothing() -> Iterator[dict[str, str]]:
    """Gives an environment for commands; fails when a process that has it outlives the block."""
    mark = {"NIGHTJAR_TEST": uuid.uuid4().hex}
    yield mark
    wait_until(lambda: not marked(mark), 30, f"no process is left behind, but {marked(mark)} are")


def marked(mark: dict[str, str]) -> list[psutil.Process]:
    """The processes that run with this environment: children inherit it, whatever becomes of their parents."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and mark.items() <= process.environ().items():
                found.append(process)
    return found


def command(
    *words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = COMMAND_S
) -> subprocess.CompletedProcess[str]:
    """Run `nightjar …` as a user would, in a process of its own."""
    process = subprocess.Popen(
        [nightjar(), *map(str, words)],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as error:
            if isinstance(error, subprocess.TimeoutExpired):
                print(stacks(process.pid), file=sys.stderr)  # what it waits for is known only as long as it waits
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def answering(api: PrefectApi) -> Iterator[str]:
    """The URL of a Prefect server that this process has started, once it answers. It ends with the block.

    Meanwhile this process and those that it starts are signed in there.
    """
    assert api.own
    with api, signed_in(api.password):
        api.wait()
        yield api.url


@contextmanager
def signed_in(password: str) -> Iterator[None]:
    """Give this password to Prefect servers, in this process and those that it starts."""
    from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

    with environment({"PREFECT_API_AUTH_STRING": password}), temporary_settings({PREFECT_API_AUTH_STRING: password}):
        yield


def nightjar() -> str:
    """The installed command."""
    return str(Path(sys.executable).parent / "nightjar")


def keys(found: object) -> Iterator[str]:
    """Every key, at any depth."""
    if isinstance(found, dict):
        yield from found
        for value in found.values():
            yield from keys(value)
    elif isinstance(found, list):
        for value in found:
            yield from keys(value)
