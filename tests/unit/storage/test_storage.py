"""What `Storage` promises, on real local files."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import AlreadyExists, Denied, Missing, StorageError, Transient
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.local import storage_error
from nightjar.inference.storage.protocol import (
    Entry,
    Storage,
    at_once,
    beginning,
    is_local,
    join,
    local_version,
    same_version,
    untouched,
)
from nightjar.inference.storage.retrying import RetryingStorage

ODD = ["a b", "ünïcode 日本", "day=1", "50%", "a%20b", "#1", "a+b&c", "who?", "a:b", "[x]{y}*", 'it\'s "so"', "a\\b"]


@pytest.fixture
def storage() -> LakeStorage:
    return LakeStorage()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def listed(storage: Storage, folder: str, after: str = "") -> list[str]:
    return [entry.uri.removeprefix(folder.rstrip("/") + "/") for entry in storage.list(folder, after)]


def test_what_was_written_is_read(storage: LakeStorage, folder: str) -> None:
    """Both ways of writing make the folders they need and take any buffer."""
    storage.create(join(folder, "a/b/ledger"), b"one")
    storage.write(join(folder, "c/part"), pa.py_buffer(b"two"))
    assert storage.read(join(folder, "a/b/ledger")) == b"one"
    assert storage.read(join(folder, "c/part")) == b"two"


def test_write_replaces_and_create_does_not(storage: LakeStorage, folder: str) -> None:
    uri = join(folder, "x")
    storage.write(uri, b"first")
    storage.write(uri, memoryview(b"second"))
    with pytest.raises(AlreadyExists, match="x: exists"):
        storage.create(uri, b"third")
    assert storage.read(uri) == b"second"


@pytest.mark.parametrize("name", ODD)
def test_any_name_works(storage: LakeStorage, folder: str, name: str) -> None:
    """A local path is a path: nothing in it is decoded, escaped or globbed."""
    uri = join(folder, name, name)
    storage.create(uri, b"1")
    assert listed(storage, folder) == [f"{name}/{name}"]
    assert storage.subfolders(folder) == [name]
    assert storage.stat(uri).uri == uri
    with storage.open(uri) as file:
        assert file.read() == b"1"
    storage.copy(uri, uri + "2")
    storage.delete([uri])
    assert listed(storage, folder) == [f"{name}/{name}2"]


def test_the_longest_name_works(storage: LakeStorage, folder: str) -> None:
    """Temporary names do not grow with the object's."""
    uri = join(folder, "n" * 255)
    storage.create(uri, b"1")
    assert storage.read(uri) == b"1"


def test_one_of_16_creations_wins(storage: LakeStorage, folder: str) -> None:
    """And the object is the winner's, whole; nothing else is left behind."""
    uri = join(folder, "race")
    start = threading.Barrier(16)

    def contend(number: int) -> int | None:
        start.wait()
        try:
            storage.create(uri, bytes([number]) * 10_000)
        except AlreadyExists:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(contend, range(16)) if number is not None]
    assert len(winners) == 1
    assert storage.read(uri) == bytes(winners) * 10_000
    assert os.listdir(folder) == ["race"]  # noqa: PTH208 (hidden files too)


def test_a_reader_never_sees_a_half_written_object(storage: LakeStorage, folder: str) -> None:
    uri = join(folder, "part")
    storage.write(uri, b"a" * 1_000_000)
    done = threading.Event()
    seen = set()

    def watch() -> None:
        while not done.is_set():
            seen.add(storage.read(uri))

    reader = threading.Thread(target=watch)
    reader.start()
    for letter in b"bcdefgh":
        storage.write(uri, bytes([letter]) * 1_000_000)
    done.set()
    reader.join()
    assert all(len(data) == 1_000_000 and len(set(data)) == 1 for data in seen)


def test_listing_is_sorted_by_whole_uri_at_any_depth(storage: LakeStorage, folder: str) -> None:
    """'a-1/x' < 'a.b' < 'a/x' < 'a0': not the order in which folders would be walked."""
    names = ["a0", "a/x", "a.b", "a-1/x", "a/y/z", "b/c", "é"]
    for name in names:
        storage.write(join(folder, name), b"1")
    assert listed(storage, folder) == sorted(names)
    assert listed(storage, folder + "/") == sorted(names)
    for after in [*names, "a", "a/", "a/y", "", "zz", "a/y/zz"]:
        assert listed(storage, folder, join(folder, after)) == sorted(n for n in names if n > after), after


def test_only_what_begins_alike_is_listed(storage: LakeStorage, folder: str) -> None:
    """Sorted, at any depth, also in a folder whose name begins so."""
    for name in ["a.json", "b-", "b-1.json", "b-1.json.torn", "b-10.json", "b-2/x", "b.json", "b0", "c/b-3.json"]:
        storage.write(join(folder, name), b"1")
    found = [entry.uri.removeprefix(folder + "/") for entry in beginning(storage, join(folder, "b-"))]
    assert found == ["b-1.json", "b-1.json.torn", "b-10.json", "b-2/x"]
    assert list(beginning(storage, join(folder, "d"))) == list(beginning(storage, join(folder, "not there", "b"))) == []


def test_entries_tell_size_and_version(storage: LakeStorage, folder: str) -> None:
    """The version changes when the file does, even if its size does not."""
    uri = join(folder, "x")
    storage.write(uri, b"123")
    os.utime(uri, ns=(1, 1_700_000_000_123_456_789))
    before = storage.stat(uri)
    assert before == Entry(uri, 3, local_version(Path(uri).stat()))
    assert before.version.startswith(f"1700000000123456789+{Path(uri).stat().st_ctime_ns}+")
    assert list(storage.list(folder)) == [before]
    storage.write(uri, b"456")
    assert storage.stat(uri) != before


def test_a_file_written_over_with_its_times_kept_is_another(storage: LakeStorage, folder: str) -> None:
    """As some tools copy: size and modification time say nothing then, the change time does."""
    uri = join(folder, "x")
    storage.write(uri, b"123")
    before, times = storage.stat(uri), Path(uri).stat()
    Path(uri).write_bytes(b"456")
    os.utime(uri, ns=(times.st_atime_ns, times.st_mtime_ns))
    now = storage.stat(uri)
    assert now.size == before.size
    assert not same_version(now.version, before.version)
    assert not same_version(now.version, str(times.st_mtime_ns + 1))
    assert same_version(now.version, "+".join(now.version.split("+")[:2])), "as a later one has it"


def test_a_file_system_that_was_mounted_again_may_number_its_files_anew() -> None:
    assert same_version("7+8+101+1.100644.0.0", "7+8+55+1.100644.0.0")
    assert untouched("7+8+101+1.100644.0.0", "7+8+55+1.100644.0.0")


def test_an_etag_is_one_whatever_is_in_it() -> None:
    assert not same_version('"a+b"', '"a+c"')
    assert not untouched('"a+b"', '"a+c"')
    assert untouched('"a+b"', '"a+b"')


def test_the_quotes_around_an_etag_do_not_count() -> None:
    """Azure writes them in the answer about an object, and not in a list."""
    for check in (untouched, same_version):
        assert check("0x8DC4F3A2", '"0x8DC4F3A2"')
        assert check('"0x8DC4F3A2"', "0x8DC4F3A2")
        assert not check("0x8DC4F3A2", '"0x8DC4F3A3"')


def _moved_over(path: Path) -> None:
    other = path.with_name("y")
    other.write_bytes(b"456")
    other.replace(path)


TOUCHES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "replaced": (_moved_over, False),
    "written over": (lambda path: path.write_bytes(b"456"), False),
    "linked": (lambda path: path.with_name("z").hardlink_to(path), True),
    "given other permissions": (lambda path: path.chmod(0o400), True),
    "left alone": (lambda path: path.read_bytes(), True),
}


@pytest.mark.parametrize("how", TOUCHES)
def test_only_what_may_have_other_content_is_touched(storage: LakeStorage, folder: str, how: str) -> None:
    """Size and time of writing are kept each time. The time of change moves for other reasons, too."""
    uri, (touch, same) = join(folder, "x"), TOUCHES[how]
    storage.write(uri, b"123")
    before, times = storage.stat(uri).version, Path(uri).stat()
    touch(Path(uri))
    os.utime(uri, ns=(times.st_atime_ns, times.st_mtime_ns)) if not same else None
    assert Path(uri).stat().st_mtime_ns == times.st_mtime_ns
    assert untouched(storage.stat(uri).version, before) is same
    assert untouched(storage.stat(uri).version, str(times.st_mtime_ns)), "an older version planned it"


def test_our_temporary_files_are_not_objects(storage: LakeStorage, folder: str) -> None:
    """What a killed writer leaves is never listed; a user's hidden file is."""
    storage.write(join(folder, ".hidden"), b"1")
    Path(folder, f".nightjar-{'0' * 32}.tmp").write_bytes(b"half")
    Path(folder, f".nightjar-part-{'0' * 32}.tmp").write_bytes(b"half")
    assert listed(storage, folder) == [".hidden"]


@pytest.mark.parametrize("operation", ["write", "create", "copy"])
@pytest.mark.parametrize("name", ["part-000001-00c0ffee.parquet", "day=1 ünï", "n" * 255])
def test_what_a_killed_writer_left_names_its_object(
    storage: LakeStorage, folder: str, operation: str, name: str
) -> None:
    """So that it can be told from a living writer's, and deleted; only a very long name is not repeated."""
    storage.write(join(folder, "source"), b"1")
    call = f"copy({join(folder, 'source')!r}, uri)" if operation == "copy" else f"{operation}(uri, b'1')"
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from nightjar.inference.storage.lake import LakeStorage\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "Path.replace = die  # the temporary file is complete, and has not got its name\n"
        "link = Path.hardlink_to\n"
        "Path.hardlink_to = lambda self, to: link(self, to) if self.name.endswith('.tmp') else die()\n"
        f"uri = {join(folder, name)!r}\n"
        f"LakeStorage().{call}\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert listed(storage, folder) == ["source"]
    left = set(os.listdir(folder)) - {"source"}  # noqa: PTH208 (hidden files too)
    assert len(left) == 1
    begun = storage.leftovers(folder)
    assert begun == ({} if len(name) == 255 else {join(folder, left.pop()): join(folder, name)})
    storage.delete(begun)
    assert storage.leftovers(folder) == {}


def test_leftovers_are_ours_at_any_depth(storage: LakeStorage, folder: str) -> None:
    """Other files are left alone, whatever their names; where there is no folder there is nothing."""
    for name in (".hidden", "x.tmp", ".nightjar-x", f".nightjar-{'0' * 32}.tmp", f"below/.nightjar-x-{'0' * 32}.tmp"):
        storage.write(join(folder, name), b"1")
    assert storage.leftovers(join(folder, "none")) == {}
    assert list(storage.leftovers(folder).values()) == [join(folder, "below", "x")]


def test_a_folder_without_objects_lists_nothing(storage: LakeStorage, folder: str) -> None:
    storage.write(join(folder, "file"), b"")
    for name in ["none", "file"]:
        assert listed(storage, join(folder, name)) == []
        assert storage.subfolders(join(folder, name)) == []


def test_links_are_followed_once(storage: LakeStorage, folder: str, tmp_path: Path) -> None:
    """A linked folder is listed under the link; a link back up ends there; a link to nothing or itself is no object."""
    storage.write(join(folder, "a/x"), b"1")
    Path(folder, "a/up").symlink_to(folder)
    Path(folder, "b").symlink_to(Path(folder, "a"))
    Path(folder, "gone").symlink_to(tmp_path / "nowhere")
    Path(folder, "itself").symlink_to(Path(folder, "itself"))
    assert listed(storage, folder) == ["a/x", "b/x"]


def test_what_is_not_there_is_missing(storage: LakeStorage, folder: str) -> None:
    """Also a folder, and a file used as one: they are no objects."""
    storage.write(join(folder, "a/file"), b"1")
    for name in ["none", "a", "a/file/x"]:
        uri = join(folder, name)
        with pytest.raises(Missing, match=name):
            storage.stat(uri)
        with pytest.raises(Missing, match=name):
            storage.open(uri)
    with pytest.raises(Missing, match="none"):
        storage.read(join(folder, "none"))
    with pytest.raises(Missing, match="none"):
        storage.copy(join(folder, "none"), join(folder, "target"))
    assert listed(storage, folder) == ["a/file"]


@pytest.mark.parametrize("name", ["file/x", "file/a/x", "link/x"])
def test_what_is_to_lie_below_a_file_is_not_there_and_nobody_created_it(
    storage: LakeStorage, folder: str, name: str
) -> None:
    """Nor below a link to nothing. `AlreadyExists` would mean that another writer has won."""
    storage.write(join(folder, "file"), b"1")
    Path(folder, "link").symlink_to("nowhere")
    uri, said = join(folder, name), rf"^{folder}/{name.partition('/')[0]}: is no folder, so nothing can be written"
    for write in (storage.create, storage.write):
        with pytest.raises(Missing, match=said):
            write(uri, b"2")
    with pytest.raises(Missing, match=said):
        storage.copy(join(folder, "file"), uri)
    assert storage.read(join(folder, "file")) == b"1"


def test_deleting_what_is_gone_is_fine(storage: LakeStorage, folder: str) -> None:
    storage.write(join(folder, "x"), b"1")
    storage.delete(join(folder, name) for name in ["x", "x", "never/there"])
    storage.delete([])
    assert listed(storage, folder) == []


def test_copy_replaces_its_target_and_outlives_its_source(storage: LakeStorage, folder: str) -> None:
    source, target = join(folder, "source"), join(folder, "deep/target")
    storage.write(source, b"1")
    storage.write(target, b"old")
    storage.copy(source, target)
    storage.copy(source, target)
    storage.write(source, b"2")
    assert storage.read(target) == b"1"
    storage.delete([source])
    assert storage.read(target) == b"1"
    assert os.listdir(Path(target).parent) == ["target"]  # noqa: PTH208 (hidden files too)


def test_parquet_is_read_through_open(storage: LakeStorage, folder: str) -> None:
    table = pa.table({"x": range(1000)})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=100)
    storage.write(join(folder, "x.parquet"), out.getvalue())
    with storage.open(join(folder, "x.parquet")) as file:
        assert pq.ParquetFile(file, pre_buffer=True).read_row_group(3).equals(table.slice(300, 100))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_forbidden_folder_is_denied(storage: LakeStorage, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(Denied):
        storage.create(join(str(tmp_path), "x"), b"1")


def test_of_many_folders_the_forbidden_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of many files the one that cannot be looked at. Root may do everything, so here the system is told to."""
    for name in ("a/x", "b/c/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    scandir, stat = os.scandir, Path.stat

    def refuse(path: Any, wanted: str) -> None:
        if str(path).rstrip("/") == f"{tmp_path}/{wanted}":
            raise PermissionError(errno.EACCES, "Permission denied")

    def asked(folder: Any) -> Any:
        refuse(folder, "b/c")
        return scandir(folder)

    def looked_at(path: Path, **given: Any) -> os.stat_result:
        refuse(path, "b/c/x")
        return stat(path, **given)

    with monkeypatch.context() as here, pytest.raises(Denied, match=f"^{tmp_path}/b/c/: Permission denied; allow it"):
        here.setattr(os, "scandir", asked)
        list(LakeStorage().list(str(tmp_path)))
    with monkeypatch.context() as here, pytest.raises(Denied, match=f"^{tmp_path}/b/c/x: Permission denied; allow it"):
        here.setattr(Path, "stat", looked_at)
        list(LakeStorage().list(str(tmp_path)))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (OSError(errno.EIO, "I/O error"), Transient),
        (OSError(errno.ESTALE, "Stale file handle"), Transient),
        (OSError(errno.ETIMEDOUT, "timed out"), Transient),
        (OSError(errno.ECONNRESET, "reset"), Transient),
        (OSError(errno.EACCES, "denied"), Denied),
        (OSError(errno.ENOENT, "none"), Missing),
        (OSError(errno.EEXIST, "there"), AlreadyExists),
        (OSError(errno.ENAMETOOLONG, "too long"), StorageError),
    ],
)
def test_faults_of_the_system_have_a_type(fault: OSError, kind: type[StorageError]) -> None:
    """Decided by errno, never by the message, which names the file."""
    found = storage_error(fault, "/lake/x")
    assert type(found) is kind
    assert "/lake/x" in str(found)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_or_closed_disk_says_what_to_do(number: int) -> None:
    found = storage_error(OSError(number, os.strerror(number)), "/lake/x")
    assert type(found) is StorageError
    assert "output.uri" in str(found)


@pytest.mark.parametrize("uri", ["relative/x", "ftp://host/x", "s3://", "http//x"])
def test_what_is_no_place_is_refused(storage: LakeStorage, uri: str) -> None:
    with pytest.raises(StorageError, match="neither an absolute path"):
        storage.read(uri)


def test_a_copy_stays_in_one_place(storage: LakeStorage) -> None:
    with pytest.raises(StorageError, match="different places"):
        storage.copy("/x", "s3://bucket/x")


def test_names_are_joined_with_one_slash() -> None:
    assert join("/a/", "b", "c") == "/a/b/c"
    assert join("s3://bucket", "k") == "s3://bucket/k"
    assert join("/", "x") == "/x"
    assert is_local("/odd://path")
    assert not is_local("s3://bucket/x")


def test_storage_survives_pickling(folder: str) -> None:
    """With its settings, without its connections; the copy is equal and works."""
    storage = LakeStorage(StorageSettings(endpoint="http://x", access_key="a", secret_key="b"))
    storage.write(join(folder, "x"), b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert copy.read(join(folder, "x")) == b"1"
    assert pickle.loads(pickle.dumps(RetryingStorage(copy, attempts=7, backoff_s=0.1))).attempts == 7


def test_of_many_calls_a_few_are_made_at_once_and_their_results_come_in_order() -> None:
    both, begun = threading.Barrier(3, timeout=20), list[int]()

    def call(number: int) -> int:
        begun.append(number)
        if number < 3:
            both.wait()  # the first three are underway at the same time
        if number == 60:
            raise Missing("60 is not there")
        return number

    found = at_once(call, range(99), most=3)
    assert [next(found) for _ in range(50)] == list(range(50))
    assert max(begun) <= 50 + 3, "the others are not asked for before their time"
    with pytest.raises(Missing, match="60 is not there"):
        list(found)
    assert max(begun) <= 63
    assert list(at_once(call, range(10, 12))) == [10, 11]
    assert list(at_once(call, [])) == []


def test_secrets_are_not_printed() -> None:
    settings = StorageSettings(access_key="key", secret_key="hidden", session_token="hidden")
    assert "hidden" not in repr(LakeStorage(settings))


def test_local_files_load_no_sdk(folder: str) -> None:
    """Nor does importing the module load pyarrow, ray or prefect."""
    code = (
        "import sys\n"
        "from nightjar.inference.storage.lake import LakeStorage, probe_conditional_writes\n"
        "heavy = {'boto3', 'botocore', 'obstore', 'ray', 'torch', 'prefect'}\n"
        "assert not ({'pyarrow'} | heavy) & set(sys.modules)\n"
        f"assert probe_conditional_writes(LakeStorage.from_environment({folder!r}), {folder!r})\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
