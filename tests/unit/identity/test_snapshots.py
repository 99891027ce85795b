"""What scores is fixed by content when a run begins, and every process that scores loads that."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import faults
from faults import FaultyStorage
from nightjar.inference.errors import JobError, Missing, ModelChanged, RunFailed, StorageError
from nightjar.inference.identity import snapshots
from nightjar.inference.identity.snapshots import File, keep, read_kept, take, take_model, verify
from nightjar.inference.identity.unpacking import fetched, place_code, place_model
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from nightjar.inference.storage.retrying import RetryingStorage
from support import wait_until

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


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def digest(path: Path | str | None) -> str:
    return take_model(STORAGE, None if path is None else str(path)).digest


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of more than 10 bytes together are too many to copy."""
    monkeypatch.setattr(snapshots, "COPIED_BYTES", 10)


def test_a_model_is_its_content_wherever_it_lies(tmp_path: Path) -> None:
    files = {"config.json": "{}", "weights/0.bin": "abc"}
    one, two = write(tmp_path / "one", files), write(tmp_path / "two", files)
    assert digest(one) == digest(two) == digest(f"{two}/")
    bucket: Any = Bucket(str(tmp_path))
    assert take_model(bucket, "s3://b/one").digest == take_model(bucket, "s3://b/one/").digest == digest(one)
    assert take_model(bucket, "s3://b/one/config.json").digest == digest(two / "config.json")
    assert digest(None) == ""


@pytest.mark.usefixtures("small")
def test_how_files_travel_is_no_part_of_what_they_are(tmp_path: Path) -> None:
    """Copied, linked or remote: the digest is of names and contents."""
    write(tmp_path / "m", {"a": "1234", "b": "a larger one"})
    bucket: Any = Bucket(str(tmp_path))
    linked = take_model(STORAGE, str(tmp_path / "m"))
    assert [file.source for file in linked.files] == ["", str(tmp_path / "m" / "b")]
    assert linked.digest == take_model(bucket, "s3://b/m").digest


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
    found = [digest(write(tmp_path / str(index), files)) for index, files in enumerate(variants)]
    assert len(set(found)) == len(variants)


def test_no_model_at_the_path_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("gone.pt2", "empty"):
        with pytest.raises(JobError, match=rf"model\.path: there is no file or folder .*{path}"):
            digest(tmp_path / path)
    with pytest.raises(JobError, match=r"model\.path: there is no file or folder s3://b/gone"):
        take_model(Bucket(str(tmp_path)), "s3://b/gone")  # type: ignore[arg-type]  # the methods used


@pytest.mark.parametrize(("modes", "wanted"), [((0o644, 0o600), 0o600), ((0o755, 0o640), 0o640), ((0o400,), 0o600)])
def test_a_kept_snapshot_may_be_read_by_those_who_may_read_all_that_it_holds(
    tmp_path: Path, modes: tuple[int, ...], wanted: int
) -> None:
    model = write(tmp_path / "m", {f"{mode:o}": str(mode) for mode in modes})
    for mode in modes:
        (model / f"{mode:o}").chmod(mode)
    taken = take_model(STORAGE, str(model))
    storage = RetryingStorage(FaultyStorage(STORAGE, [faults.fail("create", "*.zip")]), backoff_s=0.001)
    keep(storage, str(tmp_path / "out"), taken)
    assert storage.retries == 1
    kept = tmp_path / "out" / "snapshots" / f"{taken.digest}.zip"
    assert kept.stat().st_mode & 0o777 == wanted
    assert read_kept(STORAGE, str(tmp_path / "out"), taken.digest) == taken


def test_a_local_model_is_placed_as_it_was_under_its_own_name(tmp_path: Path) -> None:
    model = write(tmp_path, {"m.pt2": "abc"}) / "m.pt2"
    taken = take_model(STORAGE, str(model))
    model.write_text("abd")
    placed, linked = place_model(STORAGE, taken, tmp_path / "cache", str(model))
    assert (Path(placed).name, Path(placed).read_text(), linked) == ("m.pt2", "abc", ())


def test_no_process_sees_what_another_wrote_into_its_model(tmp_path: Path) -> None:
    """Neither a changed file nor one more, as of a predictor that keeps what it derived beside its weights."""
    taken = take_model(STORAGE, str(write(tmp_path / "m", {"a": "1", "b": "2"})))
    placed = Path(place_model(STORAGE, taken, tmp_path / "cache", "m")[0])
    write(placed, {"b": "3", "derived": "x"})
    other = place_model(STORAGE, taken, tmp_path / "cache", "m")[0]
    assert digest(other) == taken.digest


def test_a_fetched_model_that_somebody_wrote_to_ends_who_uses_it_and_is_fetched_again(tmp_path: Path) -> None:
    """Its size and times kept, as by a predictor that maps it to write to it."""
    write(tmp_path / "bucket", {"m.bin": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, "s3://b/m.bin")
    placed, (linked,) = place_model(bucket, taken, tmp_path / "cache", "s3://b/m.bin")
    assert Path(placed).stat().st_mode & 0o777 == 0o444
    linked.check()
    before = Path(placed).stat()
    Path(placed).resolve().chmod(0o644)
    Path(placed).write_text("abd")
    os.utime(placed, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelChanged, match=r"m\.bin was changed while the run went on"):
        linked.check()
    again, (fresh,) = place_model(bucket, taken, tmp_path / "cache", "s3://b/m.bin")
    assert Path(again).read_text() == "abc"
    fresh.check()


@pytest.mark.usefixtures("small")
def test_a_large_local_model_is_read_where_it_lies_and_watched(tmp_path: Path) -> None:
    model = write(tmp_path, {"m.bin": "more than ten bytes"}) / "m.bin"
    taken = take_model(STORAGE, str(model))
    placed, (linked,) = place_model(STORAGE, taken, tmp_path / "cache", str(model))
    assert Path(placed).resolve() == model.resolve()
    linked.check()
    verify(STORAGE, taken)
    before = model.stat()
    model.write_text("MORE than ten bytes")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ModelChanged, match=r"m\.bin was changed while the run went on"):
        linked.check()
    with pytest.raises(RunFailed, match=r"m\.bin changed while the run went on"):
        verify(STORAGE, taken)
    with pytest.raises(JobError, match=r"model\.path: .*m\.bin changed after the run began"):
        place_model(STORAGE, taken, tmp_path / "cache", str(model))
    model.unlink()
    with pytest.raises(JobError, match=r"there is no .*m\.bin on .* that may be read.*too large to travel"):
        place_model(STORAGE, taken, tmp_path / "cache", str(model))


@pytest.mark.parametrize("path", ["s3://b/model/m.pt2", "s3://b/model", "s3://b/model/"])
def test_a_remote_model_is_fetched_whole_under_its_own_name(tmp_path: Path, path: str) -> None:
    write(tmp_path / "bucket", {"model/m.pt2": "abc", "model/sub/x": "y"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, path)
    placed, _ = place_model(bucket, taken, tmp_path / "cache", path)
    assert Path(placed).name == path.rstrip("/").rsplit("/", 1)[-1]
    followed = placed if Path(placed).is_file() else shutil.copytree(placed, tmp_path / "followed")
    assert digest(followed) == taken.digest


def test_a_downloaded_model_that_somebody_wrote_to_is_fetched_again(tmp_path: Path) -> None:
    """Its size and times tell nothing: one that maps it may write over it. One left as it is is fetched only once."""
    write(tmp_path / "bucket", {"m/a": "abc", "m/b": "def"})
    bucket: Any = Bucket(str(tmp_path / "bucket"), str(tmp_path / "log"))
    taken = take_model(Bucket(bucket.root), "s3://b/m")  # type: ignore[arg-type]  # the methods used

    def placed() -> Path:
        return Path(place_model(bucket, taken, tmp_path / "cache", "s3://b/m")[0])

    placed()
    spoilt = placed() / "b"
    before = spoilt.stat()
    spoilt.resolve().chmod(0o644)
    spoilt.write_text("dEf")
    os.utime(spoilt, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (placed() / "b").read_text() == "def"
    assert len((tmp_path / "log").read_text().split()) == 3


def test_a_model_is_hashed_while_it_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per node: neither the process that downloads it reads it again for that, nor another one."""

    def again(*_: Any) -> None:
        raise AssertionError("read again to be hashed")

    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, "s3://b/m.pt2")
    monkeypatch.setattr(hashlib, "file_digest", again)
    for _ in range(2):
        placed, (linked,) = place_model(bucket, taken, tmp_path / "cache", "s3://b/m.pt2")
        assert Path(placed).read_text() == "abc"
        linked.check()


def test_a_downloaded_model_whose_times_alone_changed_is_kept(tmp_path: Path) -> None:
    """As after a copy of the cache, or in one of an older version: its content is read once more."""
    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"), str(tmp_path / "log"))
    taken = take_model(Bucket(bucket.root), "s3://b/m.pt2")  # type: ignore[arg-type]  # the methods used
    path = place_model(bucket, taken, tmp_path / "cache", "s3://b/m.pt2")[0]
    os.utime(path, (1, 1))
    place_model(bucket, taken, tmp_path / "cache", "s3://b/m.pt2")
    assert len((tmp_path / "log").read_text().split()) == 1


def test_a_model_that_changed_is_not_left_in_the_cache(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, "s3://b/m.pt2")
    write(tmp_path / "bucket", {"m.pt2": "other"})
    with pytest.raises(JobError, match="changed after the run began"):
        place_model(bucket, taken, tmp_path / "cache", "s3://b/m.pt2")
    assert [path for path in (tmp_path / "cache" / "models").rglob("*") if path.is_file()] == []


def remote(tmp_path: Path, name: str, content: str) -> File:
    """A file of a bucket, as a night lists what it needs."""
    write(tmp_path / "bucket", {name: content})
    return File("", len(content), hashlib.sha256(content.encode()).hexdigest(), f"s3://b/{name}")


def test_a_file_that_changed_is_said_by_the_key_that_needs_it(tmp_path: Path) -> None:
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    needed = remote(tmp_path, "index", "abc")
    remote(tmp_path, "index", "other")
    with pytest.raises(JobError, match=r"^reuse: s3://b/index changed after the run began"):
        fetched("reuse", bucket, needed, tmp_path / "cache")


def test_what_a_night_fetched_is_removed_a_day_later(tmp_path: Path) -> None:
    """And that it was verified: of each night there would be files for ever."""
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    first, second, third = (remote(tmp_path, name, name) for name in ("first", "second", "third"))
    cache, two_days_ago = tmp_path / "cache/reuse", time.time() - 2 * 86400
    old = fetched("reuse", bucket, first, tmp_path / "cache")
    for each in (old.parent, *cache.glob("verified/*")):
        os.utime(each, (two_days_ago, two_days_ago))
    for file in (second, third):
        assert fetched("reuse", bucket, file, tmp_path / "cache").read_text() == file.source.removeprefix("s3://b/")
    assert {each.name for each in cache.glob("models/*")} == {second.sha256, third.sha256}
    assert len([*cache.glob("verified/*")]) == 2


def test_what_a_killed_download_left_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m.pt2": "abc"})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, "s3://b/m.pt2")
    write(tmp_path / "cache" / "models" / taken.files[0].sha256, {".partial-m.pt2": "half of it"})
    placed, _ = place_model(bucket, taken, tmp_path / "cache", "s3://b/m.pt2")
    assert Path(placed).read_text() == "abc"


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A full disk and a home that is no folder alike: what, where, and what to do."""
    write(tmp_path, {"bucket/m.pt2": "abc", "file": ""})
    bucket: Any = Bucket(str(tmp_path / "bucket"))
    taken = take_model(bucket, "s3://b/m.pt2")
    with pytest.raises(JobError, match=r"^model\.path: it cannot be stored in .*/file/cache on .*XDG_CACHE_HOME"):
        place_model(bucket, taken, tmp_path / "file" / "cache", "s3://b/m.pt2")


def test_of_many_processes_one_downloads_each_file(tmp_path: Path) -> None:
    write(tmp_path / "bucket", {"m/a": "abc", "m/b": "def"})
    bucket: Any = Bucket(str(tmp_path / "bucket"), str(tmp_path / "log"))
    silent: Any = Bucket(bucket.root)
    taken = take_model(silent, "s3://b/m")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([place_model.__module__])
    with ProcessPoolExecutor(4, processes) as pool:
        waiting = [pool.submit(place_model, bucket, taken, tmp_path / "cache", "s3://b/m") for _ in range(8)]
        assert len({each.result()[0] for each in waiting}) == 8, "each has a folder of its own"
    assert sorted((tmp_path / "log").read_text().split()) == ["s3://b/m/a", "s3://b/m/b"]


def test_a_snapshot_is_kept_once_and_read_back(tmp_path: Path) -> None:
    folder = write(tmp_path / "job", {"predict.py": "x = 1", "sub/vocab.json": "[]"})
    (folder / "predict.py").chmod(0o755)
    taken = take_model(STORAGE, str(folder))
    for _ in range(2):
        keep(STORAGE, str(tmp_path / "out"), taken)
    assert [path.name for path in (tmp_path / "out" / "snapshots").iterdir()] == [f"{taken.digest}.zip"]
    back = read_kept(STORAGE, str(tmp_path / "out"), taken.digest)
    assert back == taken
    placed, _ = place_code(back, tmp_path / "cache")
    assert Path(placed, "sub", "vocab.json").read_text() == "[]"
    assert Path(placed, "predict.py").stat().st_mode & 0o777 == 0o755


def test_a_kept_snapshot_that_was_damaged_is_named(tmp_path: Path) -> None:
    taken = take_model(STORAGE, str(write(tmp_path / "job", {"a": "1"})))
    keep(STORAGE, str(tmp_path / "out"), taken)
    kept = tmp_path / "out" / "snapshots" / f"{taken.digest}.zip"
    kept.write_bytes(kept.read_bytes()[:40])
    with pytest.raises(StorageError, match=rf"{kept}: not a snapshot"):
        read_kept(STORAGE, str(tmp_path / "out"), taken.digest)


def test_no_process_sees_what_another_wrote_beside_its_code(tmp_path: Path) -> None:
    taken = take("model.uses", STORAGE, [("predict.py", str(write(tmp_path, {"p": "x = 1"}) / "p"), 5)])
    mine, _ = place_code(taken, tmp_path / "cache")
    Path(mine, "learnt.json").write_text("{}")
    other, _ = place_code(taken, tmp_path / "cache")
    assert sorted(path.name for path in Path(other).iterdir()) == ["predict.py"]


PLACE = """
import sys
from pathlib import Path
from nightjar.inference.identity.snapshots import Snapshot
from nightjar.inference.identity.unpacking import place_code
print(place_code(Snapshot(), Path(sys.argv[1]))[0], flush=True)
sys.stdin.read()
"""


def next_process(cache: Path) -> None:
    """Another process that scores with this cache, and ends. A process looks only once for what others left."""
    subprocess.run([sys.executable, "-c", PLACE, str(cache)], stdin=subprocess.DEVNULL, check=True)


def test_the_code_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    """While it lives it is left alone."""
    child = subprocess.Popen(
        [sys.executable, "-c", PLACE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    theirs = Path(child.stdout.readline().strip())
    next_process(tmp_path)
    assert theirs.is_dir()
    child.kill()
    child.wait()
    child.stdout.close()
    assert child.stdin is not None
    child.stdin.close()

    def gone() -> bool:
        next_process(tmp_path)
        return not theirs.exists()

    wait_until(gone, 10, "the folder of the killed process is removed")


def test_the_code_of_a_process_of_another_node_is_left_alone_for_a_week(tmp_path: Path) -> None:
    """On a disk that nodes share and that keeps locks to each of them, a lock there looks free here."""
    theirs = write(tmp_path / "processes" / "another-node+1-abc", {"lock": "", "job/predict.py": ""})
    next_process(tmp_path)
    assert theirs.is_dir()
    week_ago = time.time() - 8 * 86400
    os.utime(theirs, (week_ago, week_ago))
    next_process(tmp_path)
    assert not theirs.exists()
