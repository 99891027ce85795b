"""Input that means harm: job files, names, folders of models, files of data. Refused in one sentence, or harmless."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import yaml

from nightjar.inference.errors import InputCorrupt, JobError, SchemaMismatch, StorageError
from nightjar.inference.identity.snapshots import take_model
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.input.plan import discover
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.job.file import MAX_BYTES, load_job, parse_job
from nightjar.inference.records import UNKNOWN, Piece
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

JOB: dict[str, Any] = {
    "name": "lake",
    "input": {"uri": "data/"},
    "model": {"uses": "model:score", "outputs": {"score": "float32"}},
    "output": {"uri": "out/"},
}


def refusal(path: Path, text: str) -> str:
    """The one line that is said of this job file, without its path."""
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert len(said) < 1500, "the sentence stays one, however long what it is about"
    return said.removeprefix(f"{path}: ")


# ---- YAML ---------------------------------------------------------------------------------------------------


def beginning(text: str) -> str:
    """A job file with this text under its first key."""
    return f"x: {text}\n" + yaml.safe_dump(JOB)


CODE = [
    "!!python/object/apply:os.system [ls]",
    "!!python/object:builtins.object {}",
    "!!python/object/new:os.system [ls]",
    "!!python/name:os.system ''",
    "!!python/module:os ''",
    "!shell ls",
]


@pytest.mark.parametrize("text", CODE)
def test_no_tag_of_yaml_makes_an_object(tmp_path: Path, text: str) -> None:
    """Only plain values are made of a job file; any other tag is refused with its place."""
    said = refusal(tmp_path / "job.yaml", beginning(text))
    assert said.startswith("line 1, column 4: not valid YAML: could not determine a constructor for the tag ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 5000 + "]" * 5000, "it is nested too deeply"),
        ("[" * 5000, "it is nested too deeply"),
        ("{a: &a {b: 1}, c: {<<: 3}}", "expected a mapping or list of mappings for merging, but found scalar"),
        ("{a: {b: &m {k: 1, k: 2}}, c: {<<: *m}}", "key 'k' is written twice"),
        ("{a: &m {k: 1}, c: {<<: *m, k: 2, k: 3}}", "key 'k' is written twice"),
        ("{a: &m {1: 1}, c: {<<: *m}}", "key 1 must be text; write it in quotes"),
        ("{a: &m {k: 1}, b: &n {k: 2}, c: {<<: *m, <<: *n}}", "key '<<' is written twice"),
    ],
    ids=["deep", "open", "merge", "twice in merged", "twice", "no text", "merged twice"],
)
def test_yaml_that_is_nested_without_end_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    said = refusal(tmp_path / "job.yaml", beginning(text))
    assert said.endswith(problem)


@pytest.mark.parametrize("escape", ["FFFFFFFF", "00110000"])
def test_an_escape_of_no_character_is_refused(tmp_path: Path, escape: str) -> None:
    assert "not valid YAML: " in refusal(tmp_path / "job.yaml", beginning(f'"\\U{escape}"'))


def test_aliases_within_reason_are_taken(tmp_path: Path) -> None:
    """They are part of YAML, and a job file may use them."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB) + "carry: &ids [id, day]\n")
    assert load_job(path).carry == ("id", "day")
    shared = {"names": ["a", "b"]}
    path.write_text(yaml.safe_dump({**JOB, "model": {**JOB["model"], "options": {"one": shared, "two": shared}}}))
    assert "*id001" in path.read_text()
    assert load_job(path).models[0].options == {"one": shared, "two": shared}


def test_a_mapping_may_be_merged_into_others(tmp_path: Path) -> None:
    """Its own keys win, wherever it stands; merges of merges of a thousand mappings take no time."""
    path = tmp_path / "job.yaml"
    many = ", ".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}], k{i}: 1}}" for i in range(1, 1000))
    options = "{a: {b: &m {<<: &k {x: 1, y: 1}, x: 2}}, c: {<<: *m, z: 3}, d: {y: 4, <<: [*k, *m]}}"
    model = "{uses: 'm:f', outputs: {y: float32}, options: {m0: &m0 {k0: 1}, " + many + f", own: {options}}}}}"
    path.write_text(yaml.safe_dump({**JOB, "model": None}).replace("model: null", f"model: {model}"))
    found = load_job(path).models[0].options
    assert found["m999"] == {f"k{i}": 1 for i in range(1000)}
    assert found["own"] == {
        "a": {"b": {"x": 2, "y": 1}}, "c": {"x": 2, "y": 1, "z": 3}, "d": {"x": 1, "y": 4}
    }  # fmt: skip


def test_a_file_larger_than_any_job_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path / "job.yaml", yaml.safe_dump(JOB) + "#" * MAX_BYTES)
    assert said == "is no job file: it is larger than 1 MiB"


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-30",
        "!!timestamp soon",
        "2026-01-01T00:00:00+99:00",
        "!!int many",
        "!!float x",
        "!!bool maybe",
        "0b_",
        "9" * 5000,
        "!!map word",
        "!!map [1, 2]",
        "!!binary 'a'",
    ],
    ids=lambda text: text[:30],
)
def test_a_value_that_is_not_what_it_looks_like_is_named(tmp_path: Path, text: str) -> None:
    """A date that never was, a number that is none: one sentence with line and column, no traceback."""
    said = refusal(tmp_path / "job.yaml", beginning(f"{{version: {text}}}"))
    assert said.startswith("line 1, column 14: not valid YAML: ")


# ---- names and places ---------------------------------------------------------------------------------------

PLACES = [
    ("out/{date:..}/x", "no part of it may be empty, '.' or '..'"),
    ("s3://lake/out/../../x", "no part of it may be empty, '.' or '..'"),
    ("s3://lake/out/{date:../../..}/x", "no part of it may be empty, '.' or '..'"),
    ("s3://lake{date:/../}other/x", "no part of it may be empty, '.' or '..'"),
    ("s3://lake/out//x", "no part of it may be empty, '.' or '..'"),
    ("out/{date:%n}", "it holds a control character"),
    ("out\0/x", "it holds a control character"),
    ("out\x1b[2J", "it holds a control character"),
    ("s3://lake/\r\nHost: evil/", "it holds a control character"),
]


@pytest.mark.parametrize(("place", "problem"), PLACES, ids=lambda text: repr(text)[:40])
@pytest.mark.parametrize("key", ["input.uri", "model.path", "output.uri"])
def test_a_place_that_is_not_what_it_says_is_refused(tmp_path: Path, key: str, place: str, problem: str) -> None:
    """Whatever a date is turned into: the place a person reads in the job file is the place that is used."""
    section, name = key.split(".")
    job = {**JOB, section: {**JOB[section], name: place}}
    with pytest.raises(JobError) as caught:
        parse_job(job, tmp_path / "job.yaml")
    said = str(caught.value).removeprefix(f"{tmp_path}/job.yaml: ")
    assert said.startswith(f"{key}: ")
    assert said.endswith(f" is no place: {problem}")
    assert said.isprintable(), "control characters are named, not written"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "field",
    [
        "date.__class__",
        "date.__class__.__init__.__globals__",
        "date[0]",
        "date!r",
        "0",
        "",
        "date:{date.__class__}",
        "date:{date.__class__.__mro__[1].__subclasses__}",
        "date:%Y{x}",
        "folder",
        "self",
    ],
)
def test_a_placeholder_reaches_nothing_but_the_date(tmp_path: Path, field: str) -> None:
    """No attribute, no index, no conversion, no field inside a format: none is evaluated."""
    job = {**JOB, "output": {"uri": f"out/{{{field}}}/"}}
    with pytest.raises(JobError) as caught:
        parse_job(job, tmp_path / "job.yaml")
    assert str(caught.value).endswith(f"output.uri: {{{field}}} is unknown; write {{date}} or {{date:%Y/%m/%d}}")


@pytest.mark.parametrize("name", ["a[x]", "{date}", "{x}", "*?[!a]**", "[", "%Y #1", "dt=1"])
def test_the_name_of_a_jobs_folder_is_no_pattern(tmp_path: Path, name: str) -> None:
    """What is relative lies in it, whatever it is called; only what the job file says is a pattern."""
    lake = Lake(tmp_path / name)
    lake.write_files(2)
    lake.write_model()
    lake.write_job()
    files = [str(lake.folder / "data" / f"part-0{index}.parquet") for index in range(2)]
    for uri, wanted in [
        ("data/", files),
        ("data", files),
        ("data/*-01.*", files[1:]),
        ("data/part-00.parquet", files[:1]),
    ]:
        lake.write_job(input__uri=uri)
        job = lake.request().job
        assert discover(LakeStorage(), job).files["uri"].to_pylist() == wanted
        assert job.output.uri == str(lake.out)
    (lake.out / "runs" / "x").mkdir(parents=True)
    (lake.out / "runs" / "x" / "run.json").write_text('{"date": "2026-01-02", "limit": null}')
    assert lake.request(run_id="x", date=None).date == "2026-01-02"


RUNS = ["../x", "..", ".", "", "/etc", "a/b", "a\\b", "a\0b", "a\nb", "\x1b[2J", "-rf", "é", "{date}", "a b", "x" * 101]


@pytest.mark.parametrize("run_id", RUNS, ids=lambda text: repr(text)[:30])
def test_the_name_of_a_run_stays_inside_the_output(lake: Lake, run_id: str) -> None:
    lake.ready()
    with pytest.raises(JobError) as caught:
        lake.request(run_id=run_id)
    assert (
        str(caught.value)
        == f"--run-id {run_id!r}: begin with a letter or digit; at most 100 letters, digits, dots, dashes, underscores"
    )
    assert caught.value.exit_code == 2
    assert not lake.out.exists()


@pytest.mark.parametrize("name", ["..", "a/b", "a.b", "-a", "a\nb", "é", "A"])
def test_the_name_of_a_job_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobError, match=r"name: .* must be lower case letters, digits and dashes"):
        parse_job({**JOB, "name": name}, tmp_path / "job.yaml")


@pytest.mark.parametrize("key", ["name", "model.uses", "preprocess.uses"])
def test_a_name_without_end_is_refused(tmp_path: Path, key: str) -> None:
    """Names become names of files and of pages."""
    job = {**JOB, "name": "a" * 5000} if key == "name" else {**JOB, "preprocess": "a" * 5000 + ":f"}
    if key == "model.uses":
        job = {**JOB, "model": {**JOB["model"], "uses": "a" * 5000 + ":f"}}
    with pytest.raises(JobError, match=rf"{key}: is longer than \d+ characters$"):
        parse_job(job, tmp_path / "job.yaml")


# ---- models -------------------------------------------------------------------------------------------------


class HostileStore(BaseHTTPRequestHandler):
    """An S3 endpoint that lists a model folder of one object, whatever its key. Each object holds `evil`."""

    key: str

    def do_HEAD(self) -> None:
        self._answer(b"evil", 404 if urlsplit(self.path).path.rstrip("/") == "/lake/m" else 200)

    def do_GET(self) -> None:
        listing = f"""<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>{self.key}
            </Key><LastModified>2026-11-20T10:00:00.000Z</LastModified><ETag>x</ETag><Size>4</Size></Contents>
            </ListBucketResult>""".replace("\n            ", "")
        self._answer(listing.encode() if "list-type" in self.path else b"evil")

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(206 if "Range" in self.headers else status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 10:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@contextmanager
def store_of(key: str) -> Iterator[LakeStorage]:
    """A storage whose S3 endpoint lists this key."""
    handler = type("Handler", (HostileStore,), {"key": key})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield LakeStorage(
            StorageSettings(f"http://127.0.0.1:{server.server_port}", "us-east-1", None, "key", "secret", retry_s=2)
        )
    finally:
        server.shutdown()
        server.server_close()


def test_a_model_of_that_store_is_fetched(tmp_path: Path) -> None:
    """What the next test's store would do with a key that is in order."""
    with store_of("m/weights/a.bin") as storage:
        taken = take_model(storage, "s3://lake/m/")
        fetched, _ = place_model(storage, taken, tmp_path / "cache", "s3://lake/m/")
    assert (Path(fetched) / "weights" / "a.bin").read_bytes() == b"evil"


@pytest.mark.parametrize(
    "key",
    [
        "m/../../escaped",
        "m/..",
        "m/a/../../../escaped",
        "m//etc/escaped",
        "/m/escaped",
        "m/./a",
        "m/%2e%2e/a",
        "m/..%2f..%2fescaped",
        "m/..\\..\\escaped",
    ],
)
def test_no_key_of_a_model_leads_out_of_its_cache(tmp_path: Path, key: str) -> None:
    """It is refused, or it is the name of a file below the model's own folder."""
    cache = tmp_path / "deep" / "cache"
    with store_of(key) as storage:
        try:
            taken = take_model(storage, "s3://lake/m/")
            place_model(storage, taken, cache, "s3://lake/m/")
            placed = True
        except (StorageError, JobError) as error:
            placed = False
            assert "s3://lake/m/" in str(error)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "lock" not in path.name]
    homes = models, *_ = [cache / name for name in ("models", "processes", "verified")]
    assert all(any(path.is_relative_to(home) for home in homes) for path in written)
    links = [path for path in (cache / "processes").rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(models) for path in links)
    assert len(links) == placed


# ---- data ---------------------------------------------------------------------------------------------------


def parquet_of(table: pa.Table, **how: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **how)
    return buffer.getvalue()


def whole() -> pa.Table:
    n = range(200)
    return pa.table(
        {
            "number": pa.array(n),
            "word": pa.array([f"word {i % 5}" for i in n]),
            "list": pa.array([[i] * (i % 3) for i in n]),
            "kind": pa.array([f"kind {i % 5}" for i in n]).dictionary_encode(),
            "record": pa.array([{"a": i, "b": f"{i}"} for i in n]),
        }
    )


def look(path: Path) -> str:
    """What becomes of a file that is discovered and read: its fault in words, or nothing."""
    storage, job = LakeStorage(), parse_job(dict(JOB), path.parent / "job.yaml")
    try:
        entry = storage.stat(str(path))
        found = describe(storage, job, entry)
        rows = UNKNOWN if UNKNOWN in found.rows else sum(found.rows)
        piece = Piece(str(path), entry.size, entry.version, 0, rows, (0, len(found.rows)))
        read_piece(storage, job, piece, found.schema)
    except (InputCorrupt, SchemaMismatch) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_whatever_bytes_are_changed_a_file_costs_itself(tmp_path: Path, seed: int) -> None:
    """Three hundred damaged files a seed, in footer and pages: each is read or is corrupt, by name; none crashes."""
    change = random.Random(seed)
    path = tmp_path / "a.parquet"
    raw = parquet_of(whole(), row_group_size=100, compression=("zstd", "snappy", "none", "gzip")[seed])
    footer = len(raw) - int.from_bytes(raw[-8:-4], "little") - 8
    corrupt = 0
    for _ in range(300):
        damaged = bytearray(raw)
        low, high = change.choice([(footer, len(raw)), (4, footer)])
        for _ in range(change.choice([1, 2, 5, 20])):
            damaged[change.randrange(low, high)] = change.choice([0, 127, 128, 255, change.randrange(256)])
        path.write_bytes(damaged)
        said = look(path)
        corrupt += bool(said)
        assert not said or said.startswith(f"{path}: ")
    assert corrupt > 150


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_whatever_bytes_are_changed_an_arrow_file_costs_itself(
    tmp_path: Path, stream: bool, compression: str | None
) -> None:
    """As for Parquet. Lengths and offsets are numbers in the file, and no checksum covers them."""
    change, path, out = random.Random(f"{stream} {compression}"), tmp_path / "a.arrow", io.BytesIO()
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(out, whole().schema, options=options) as writer:
        writer.write_table(whole(), max_chunksize=100)
    raw, corrupt = out.getvalue(), 0
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(change.choice([1, 2, 5, 20])):
            damaged[change.randrange(len(raw))] = change.choice([0, 127, 128, 255, change.randrange(256)])
        path.write_bytes(damaged)
        said = look(path)
        corrupt += bool(said)
        assert not said or said.startswith(f"{path}: ")
    assert corrupt > 150


def test_a_column_whose_name_is_no_text_costs_that_file_only(tmp_path: Path) -> None:
    """Found while the lake is listed: the files beside it are scored."""
    lake = Lake(tmp_path)
    lake.ready()
    path = lake.folder / "data" / "part-00.parquet"
    path.write_bytes(parquet_of(whole(), store_schema=False).replace(b"number", b"num\xff\xfer"))
    found = discover(LakeStorage(), lake.request().job)
    assert (found.unreadable, found.rows) == (1, 6000)
    assert "part-00.parquet: not a readable Parquet file" in found.files["error"][0].as_py()


def test_a_footer_that_contradicts_itself_costs_that_file_only(tmp_path: Path) -> None:
    """Counts come from it before a row is read: the run's budget of bad rows, for one."""
    path = tmp_path / "a.parquet"
    raw = parquet_of(pa.table({"x": pa.array([1] * 60)}), store_schema=False)
    # In Parquet's thrift the file's count of rows is a zigzag varint behind the field's header.
    assert raw.count(b"\x16\x78") >= 1
    at = len(raw) - int.from_bytes(raw[-8:-4], "little") - 8
    found = raw.index(b"\x16\x78", at)
    path.write_bytes(raw[:found] + b"\x16\x77" + raw[found + 2 :])
    assert look(path) == f"{path}: not a readable Parquet file: its footer contradicts itself on how many rows"


@pytest.mark.parametrize("others", [True, False], ids=["beside others", "alone"])
def test_a_file_name_that_is_no_text_is_refused_by_name(tmp_path: Path, others: bool) -> None:
    """It could stand neither in an output nor in a report."""
    lake = Lake(tmp_path)
    if others:
        lake.ready()
    lake.write_file("odd.parquet", 0, 10)
    lake.write_model()
    lake.write_job()
    (lake.folder / "data" / "odd.parquet").rename(lake.folder / "data" / "odd\udcff.parquet")
    with pytest.raises(JobError, match=r"^input\.uri: the name of b'.*/data/odd\\xff\.parquet' is not UTF-8; rename"):
        discover(LakeStorage(), lake.request().job)
