"""Secrets that a run needs are left in nothing that it leaves: planted ones are looked for everywhere it writes."""

from __future__ import annotations

import base64
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import DATE
from forked import COMMAND_S, forked
from nightjar.inference.output import publications
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from pages import ON_RAY
from s3 import S3Server
from service import own_server
from support import Lake, command, leaves_nothing, marked

MARK = "a-mark-to-be-found"
"""Stands in the input, in what the model prints and in what it raises: a place where it is not was not searched."""

DAMAGED = "2026-11-20"
"""A night of which one file is damaged."""

NIGHTS = {"2026-11-01": "published", "2026-11-02": "damaged", "2026-11-03": "without input", "2026-11-04": "published"}
"""The nights of the command `ON_RAY`, and what becomes of them, or why nothing does."""

MODEL = f'''
def score(batch):
    """Twice x; one row cannot be scored."""
    print("scoring: {MARK}", flush=True)
    if 7 in batch["x"]:
        raise ValueError("{MARK}")
    return {{"score": batch["x"] * 2}}
'''


@dataclass
class Searched:
    """Everything that a command has left, by where it is, as bytes."""

    exit_code: int
    places: dict[str, dict[str, bytes]]

    def found(self, value: str) -> list[str]:
        """Where a value is, in any of the forms in which it may be written."""
        return [
            f"{place}: {name}"
            for place, things in self.places.items()
            for name, content in things.items()
            if any(form in content for form in forms(value))
        ]


def forms(value: str) -> set[bytes]:
    """As it is, in a URL, and in base64 wherever it begins in what is encoded."""
    plain = value.encode()
    encoded = {base64.b64encode(b"\0" * shift + plain)[4 * (shift > 0) : -4] for shift in range(3)}
    return {plain, quote(value).encode(), *encoded}


def test_the_search_finds_each_form() -> None:
    searched = Searched(
        0, {"here": {str(i): b"Basic " + base64.b64encode(b"x" * i + b"user:the-secret") for i in range(3)}}
    )
    assert len(searched.found("the-secret")) == 3
    assert searched.found("another-secret") == []


@contextmanager
def watching_command_lines(mark: dict[str, str]) -> Iterator[dict[str, bytes]]:
    """Collects the command lines of the processes with this environment: everybody on a machine may read them."""
    seen: dict[str, bytes] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            for process in marked(mark):
                with suppress(psutil.Error):
                    text = "\0".join(process.cmdline())
                    seen[text[:60]] = text.encode()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def files_below(folder: Path) -> dict[str, bytes]:
    """The regular files below a folder and what is in them."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def objects_of(storage: LakeStorage, bucket: str) -> dict[str, bytes]:
    """Every object of a bucket; of Parquet also its values and the metadata of its footer, decoded."""
    found = {}
    for entry in storage.list(bucket):
        found[entry.uri] = storage.read(entry.uri)
        if "/out/" in entry.uri and entry.uri.endswith(".parquet"):
            table = pq.read_table(pa.BufferReader(found[entry.uri]))
            footer = pq.read_metadata(pa.BufferReader(found[entry.uri])).metadata or {}
            found[f"{entry.uri} decoded"] = repr((table.to_pylist(), footer)).encode()
    return found


def records_of(database: Path) -> dict[str, bytes]:
    """Every row of a Prefect database, by table."""
    with sqlite3.connect(database) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: repr(connection.execute(f'SELECT * FROM "{name}"').fetchall()).encode() for name in names}


class Planted:
    """A lake on S3, and secrets of this test's own in the environment of what scores it."""

    def __init__(self, folder: Path, server: S3Server, home: Path) -> None:
        self.lake = Lake(folder)
        self.bucket = server.create_bucket(f"planted-{uuid.uuid4().hex[:8]}")
        self.storage = LakeStorage(
            StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key)
        )
        self.secrets = {
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "PREFECT_API_KEY": "pnu_planted-key-of-prefect-cloud",
            "RAY_AUTH_TOKEN": "planted-token-of-ray-0123456789abcdef",
        }
        self.env = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_DEFAULT_REGION": server.region,
            "AWS_ENDPOINT_URL": server.endpoint,
            "RAY_AUTH_MODE": "token",
            "PREFECT_API_URL": "",
            "PREFECT_HOME": str(home),
        }
        self.lake.write_model(MODEL)
        self.lake.write_job(
            name="planted",
            input__uri=f"{self.bucket}/in/{{date}}/",
            output__uri=f"{self.bucket}/out/",
            model__options={},
            retry__max_quarantined=0.1,
            # What stands still is ended, and named, before the test loses its patience.
            retry__stall_s=60,
        )
        nights = {DATE: "published", DAMAGED: "damaged", **NIGHTS}
        for index in range(2):
            part = self.lake.write_file("part.parquet", index * 1000, 1000).read_bytes()
            for night in (night for night, state in nights.items() if state != "without input"):
                self.storage.write(f"{self.bucket}/in/{night}/part-{index}.parquet", part)
        for night in (night for night, state in nights.items() if state == "damaged"):
            self.storage.write(f"{self.bucket}/in/{night}/part-9.parquet", b"PAR1 damaged PAR1")

    def run(self, *words: str, **env: str) -> Searched:
        """Run the command of these words on the job; everything that it said and left."""
        # Sockets lie in it, whose paths must be short.
        ray = Path(tempfile.mkdtemp(prefix="nj-", dir="/tmp"))
        try:
            with leaves_nothing() as mark, watching_command_lines(mark) as lines:
                keep = {"RAY_TMPDIR": str(ray), "NIGHTJAR_KEEP_RAY": "1"}
                full = {**self.env, **self.secrets, **keep, **EXPORTING, **env, **mark}
                # Of the four nights two are scored at once, so they take as long as two commands.
                limit_s = COMMAND_S * (2 if words[0] == "backfill" else 1)
                ended = command(words[0], self.lake.job_path, *words[1:], env=full, timeout_s=limit_s)
            return Searched(ended.returncode, self._left(ended, ray, lines))
        finally:
            shutil.rmtree(ray, ignore_errors=True)

    def _left(
        self, ended: subprocess.CompletedProcess[str], ray: Path, lines: dict[str, bytes]
    ) -> dict[str, dict[str, bytes]]:
        home = Path(self.env["PREFECT_HOME"])
        return {
            "terminal": {"output": ended.stdout.encode(), "errors": ended.stderr.encode()},
            "bucket": objects_of(self.storage, self.bucket),
            "Prefect's home": files_below(home),
            "Prefect's database": records_of(home / "prefect.db") if (home / "prefect.db").exists() else {},
            "Ray's session": files_below(ray),
            "command lines": lines,
        }


@pytest.fixture
def planted(tmp_path: Path, server: S3Server, own_home: Path) -> Planted:
    return Planted(tmp_path, server, own_home)


@pytest.fixture(scope="module")
def nights(
    tmp_path_factory: pytest.TempPathFactory, server: S3Server, empty_database: Path
) -> tuple[Planted, Searched]:
    """A command of the docs, as it stands: four nights, two at once, on a Ray of the command's own.

    Two are published; two fail, since failures are where programs say too much. Keys are S3's and Ray's. They are in
    the environment, as the password of its Prefect server is. Ray exports all that it knows.
    """
    home = tmp_path_factory.mktemp("home")
    shutil.copy(empty_database, home / "prefect.db")
    planted = Planted(tmp_path_factory.mktemp("nights"), server, home)
    del planted.secrets["PREFECT_API_KEY"]  # a server that asks for a password asks for no key
    words = shlex.split(ON_RAY)
    assert words[2] == "job.yaml"
    return planted, planted.run(words[1], *words[3:], **ASKING)


EXPORTING = {"RAY_enable_export_api_write": "1"}
"""Clusters may be set to write each dataset's operators, with the arguments they were given, to their logs."""

PASSWORD = "planted-password-of-prefect"
ASKING = {"PREFECT_SERVER_API_AUTH_STRING": f"admin:{PASSWORD}", "PREFECT_API_AUTH_STRING": f"admin:{PASSWORD}"}
"""The run's Prefect server asks for a password."""


def assert_clean(searched: Searched, secrets: dict[str, str], *, on_ray: bool = True) -> None:
    """None of the values is anywhere, and each place was looked into: the mark is found where it must be."""
    found = {name: searched.found(value) for name, value in secrets.items()}
    assert not any(found.values()), found
    marks = {where.partition(": ")[0] for where in searched.found(MARK)}
    assert {"bucket", "Prefect's database"} <= marks
    assert searched.places["command lines"]
    if on_ray:
        assert "Ray's session" in marks
        assert any("logs/raylet" in name for name in searched.places["Ray's session"])
        assert any("EXPORT" in name for name in searched.places["Ray's session"]), "Ray did export"


def test_nights_on_one_ray_and_failing_ones(nights: tuple[Planted, Searched]) -> None:
    """The nights of a backfill share one Ray. A damaged file costs its night, and so does a night without input.

    The others are published, and the exit code says that some are missing.
    """
    planted, searched = nights
    said, trouble = (searched.places["terminal"][which].decode() for which in ("output", "errors"))
    assert searched.exit_code == 1, said + trouble
    states = {night: "published" if state == "published" else "failed" for night, state in NIGHTS.items()}
    assert all(f"{night}: {state}" in said for night, state in states.items()), said
    published = publications.newest(planted.storage, f"{planted.bucket}/out")
    assert set(published.runs) == {night for night, state in states.items() if state == "published"}
    assert "2 of 4 nights not published: 2 failed" in trouble
    assert "part-9.parquet" in said
    assert "Traceback" not in said + trouble
    assert len({name.partition("/")[0] for name in searched.places["Ray's session"]}) == 1


def test_nights_on_ray_leave_no_secret(nights: tuple[Planted, Searched]) -> None:
    planted, searched = nights
    assert_clean(searched, {**planted.secrets, "password": PASSWORD})


@pytest.mark.long
@pytest.mark.parametrize("words", [("backfill", "--from", DATE, "--to", DAMAGED, "--verbose"), ("run", "--date", DATE)])
def test_other_commands_on_ray_leave_no_secret(planted: Planted, words: tuple[str, ...]) -> None:
    """One that says all it can, and one of which every row is published, which says least."""
    del planted.secrets["PREFECT_API_KEY"]
    searched = planted.run(*words, **ASKING)
    assert searched.exit_code == (1 if DAMAGED in words else 0), searched.places["terminal"]
    assert_clean(searched, {**planted.secrets, "password": PASSWORD})


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--verbose", "--engine", "local"), id="local"),
        pytest.param(("--verbose",), id="verbose", marks=pytest.mark.long),
        pytest.param((), id="quiet", marks=pytest.mark.long),
    ],
)
def test_a_run_that_fails_leaves_no_secret(planted: Planted, words: tuple[str, ...]) -> None:
    """The command says more of a failed run than a backfill says of a failed night. This one has a key of Prefect's."""
    searched = planted.run("run", "--date", DAMAGED, *words)
    assert searched.exit_code == 1, searched.places["terminal"]
    assert b"part-9.parquet" in searched.places["terminal"]["errors"]
    assert_clean(searched, planted.secrets, on_ray="local" not in words)


def test_a_secret_that_is_wrong_is_not_said_either(planted: Planted) -> None:
    """S3 refuses it, and its answer is passed on."""
    wrong = {"AWS_SECRET_ACCESS_KEY": "planted-wrong-key", "AWS_SESSION_TOKEN": "planted-wrong-token"}
    searched = planted.run("run", "--date", DATE, "--verbose", **wrong)
    assert searched.exit_code == 1
    assert b"check the credentials" in searched.places["terminal"]["errors"]
    assert searched.found("planted-wrong-key") == searched.found("planted-wrong-token") == []


SIGNATURE = "X-Amz-Signature="


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_signed_urls_are_in_nothing_that_commands_leave_or_say(
    engine: str, tmp_path: Path, server: S3Server, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list has signed URLs, one of a damaged file, and a wrong one. Whoever reads it all cannot read the input."""
    monkeypatch.setenv("PREFECT_HOME", str(own_home))
    lake, home = Lake(tmp_path / "job"), own_home
    bucket = server.create_bucket(f"signed-{uuid.uuid4().hex[:8]}")
    storage = LakeStorage(StorageSettings(server.endpoint, server.region, None, server.access_key, server.secret_key))
    for index in range(3):
        part = lake.write_file("part.parquet", index * 100, 100).read_bytes()
        storage.write(f"{bucket}/part-{index}.parquet", part if index < 2 else b"PAR1 damaged PAR1")
    signed = [server.sign(f"{bucket}/part-{index}.parquet") for index in range(3)]
    lake.write_model(MODEL)
    listed = {"list": "../names-{date}.txt", "within": [server.endpoint]}
    lake.write_job(input=listed, retry__max_quarantined=0.1, retry__backoff_s=0.01, notify=None)
    lists = {DATE: signed[:2], DAMAGED: signed[1:], "2026-11-21": [signed[0], f"{signed[1]}f"]}
    for night, urls in lists.items():
        (tmp_path / f"names-{night}.txt").write_text("\n".join(urls))
    shutil.rmtree(lake.folder / "data")
    with tempfile.TemporaryDirectory(prefix="nj-", dir="/tmp") as ray, leaves_nothing() as mark, own_server() as api:
        env = {"PREFECT_API_URL": api, "RAY_TMPDIR": ray, "NIGHTJAR_KEEP_RAY": "1", **mark}
        how = ["--engine", engine]
        said, codes = "", []
        for words in (
            ["check", lake.job_path, "--date", DATE, *how],
            *(["run", lake.job_path, "--date", night, "--verbose", *how] for night in lists),
            *(["status", lake.job_path, night, "--json"] for night in lists),
            *(["show", lake.job_path, night] for night in lists),
            ["runs", lake.job_path],
            ["files", lake.job_path, "--json"],
            ["report", lake.job_path, DATE],
            ["replay", lake.job_path, DATE, "--row", "7"],
        ):
            ended = (forked if engine == "local" else command)(*words, env=env)
            said += f"$ {words[0]}\n{ended.stdout}{ended.stderr}"
            codes.append(ended.returncode)
        places = {
            "terminal": {"all": said.encode()},
            "output": objects_of(LakeStorage(), str(lake.out)),
            "Prefect's home": files_below(home),
            "Prefect's database": records_of(home / "prefect.db"),
            "Ray's session": files_below(Path(ray)),
        }
    searched = Searched(0, places)
    assert (codes[:3], codes[3] != 0) == ([0, 0, 1], True), said
    assert {where.partition(": ")[0] for where in searched.found("part-0.parquet")} >= {"terminal", "output"}
    assert "its signature may have expired: sign it again" in said
    secrets = [SIGNATURE, *(url.partition(SIGNATURE)[2] for url in signed)]
    assert {secret: searched.found(secret) for secret in secrets} == {secret: [] for secret in secrets}
