"""What workers print is kept: whose it is, how much of it, without secrets, and whatever ends the process."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from faults import FaultyStorage, fail
from nightjar.flows.cli import tables
from nightjar.flows.cli.looking import logs as logs_command
from nightjar.inference.errors import JobError, Transient
from nightjar.inference.history.run_tables import RunReport
from nightjar.inference.jsonform import to_bytes
from nightjar.inference.ledger.epochs import open_epoch
from nightjar.inference.ledger.holders import this_holder
from nightjar.inference.ledger.lines import Planned
from nightjar.inference.logs import capture
from nightjar.inference.logs.capture import Capture, keep_rest
from nightjar.inference.logs.keeping import LINE_CHARS, PART_CHARS, SPAN_CHARS, Book, Masks, Position, keep, marker
from nightjar.inference.logs.printed import NOTE, Line, all_lines, last_lines, write
from nightjar.inference.messages import HIDDEN
from nightjar.inference.records import Failed, Started
from nightjar.inference.storage.credentials import StorageSettings
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Storage
from support import Lake, conforms, wait_until

WORKER = """
import os, sys, time
from nightjar.inference.logs.capture import Capture
from nightjar.inference.records import Started
from nightjar.inference.storage.lake import LakeStorage

logs = Capture(LakeStorage(), sys.argv[1], 7)
print(":job_id:01", flush=True)
print("loading", flush=True)
logs.turn_to(Started("aaaa", 1, "w"))
print("scoring a", flush=True)
logs.turn_to(Started("bbbb", 2, "w"))
print("scoring b", flush=True)
os.write(2, b"said by C")
"""
"""A worker's process that prints for two shards, and then ends as a test wants."""


BEGIN = Position(0), Position(0)


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notes of this test's processes lie apart from those of others."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(capture.tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def revision(tmp_path: Path) -> str:
    return str(tmp_path / "r1")


def parts(revision: str) -> list[Path]:
    return sorted(Path(revision, "logs").glob("*.jsonl"))


def kept(revision: str) -> list[Line]:
    return list(all_lines(LakeStorage(), revision))


def said(revision: str) -> list[tuple[str, str, str]]:
    return [(line.shard, line.stream, line.text) for line in kept(revision)]


@contextmanager
def capturing(tmp_path: Path, revision: str, storage: Storage | None = None) -> Iterator[tuple[Capture, int, int]]:
    """A capture of two files, which tests write to as a process writes to its standard output and error."""
    fds = [os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for name in ("out", "err")]
    try:
        yield Capture(storage or LakeStorage(), revision, 1, fds=(fds[0], fds[1])), fds[0], fds[1]
    finally:
        for fd in fds:
            os.close(fd)


def test_what_is_printed_is_kept_by_shard_and_stream(tmp_path: Path, revision: str) -> None:
    """Before the first shard it is the model's; then each line belongs to what was being scored."""
    with capturing(tmp_path, revision) as (logs, out, err):
        os.write(out, b"loading the model\n")
        logs.turn_to(Started("aaaa", 1, "w"))
        os.write(out, b"row 1\n")
        os.write(err, b"a warning\n")
        logs.turn_to(Started("bbbb", 3, "w"))
        os.write(out, b"row 2\n")
        wait_until(lambda: len(kept(revision)) == 4, 10, "the lines are kept while the process lives")
    assert sorted(said(revision)) == [
        ("", "out", "loading the model"),
        ("aaaa", "err", "a warning"),
        ("aaaa", "out", "row 1"),
        ("bbbb", "out", "row 2"),
    ]
    assert {line.attempt for line in kept(revision) if line.shard == "bbbb"} == {3}
    assert all(abs(line.at - time.time()) < 60 for line in kept(revision))


def test_nothing_is_written_of_a_process_that_prints_nothing(tmp_path: Path, revision: str) -> None:
    with capturing(tmp_path, revision) as (logs, _, _):
        for number in range(100):
            logs.turn_to(Started(f"{number:04d}", 1, "w"))
        logs.close()
    keep_rest(LakeStorage(), revision)
    assert not Path(revision).exists()


def notes_of(revision: str) -> list[Path]:
    """The notes of a revision's processes on this machine."""
    return sorted(capture._folder().glob(f"{capture._beginning(revision)}*"))


def test_processes_that_end_in_order_leave_no_note_behind(tmp_path: Path, revision: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with capturing(tmp_path / "a", revision) as (first, _, _), capturing(tmp_path / "b", revision) as (last, _, _):
        assert first.close()
        assert len(notes_of(revision)) == 1
        assert last.close()
        assert notes_of(revision) == []


def test_a_note_that_a_killed_process_had_half_written_is_removed(revision: str) -> None:
    half = capture._own_path(revision, "new")
    half.write_bytes(b"{")
    keep_rest(LakeStorage(), revision)
    assert notes_of(revision) == []


def test_processes_that_begin_and_end_at_once_each_have_a_note(revision: str) -> None:
    """Processes begin and end at any time, and each of them has its note."""

    def begin_and_end(_: int) -> None:
        for _ in range(200):
            fds = capture.copies(revision)
            assert min(fds) >= 0
            capture.close_copies(fds, left=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin_and_end, range(4)))
    assert notes_of(revision) == []


def test_many_lines_cost_few_parts(tmp_path: Path, revision: str) -> None:
    """Parts come seldom, however often is printed."""
    with capturing(tmp_path, revision) as (logs, out, _):
        until, printed = time.monotonic() + 1.5, 0
        while time.monotonic() < until:
            os.write(out, b"again\n")
            printed += 1
            time.sleep(0.01)
        logs.close()
    assert 1 <= len(parts(revision)) <= 3
    assert len(kept(revision)) == printed


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)", -signal.SIGSEGV),
    ],
    ids=["exit", "kill", "segfault"],
)
def test_the_last_words_of_a_process_that_died_are_found(tmp_path: Path, revision: str, end: str, code: int) -> None:
    """What it printed until the end is kept by whoever comes after, also what C code wrote, and once only."""
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = subprocess.run([sys.executable, "-c", WORKER + end, revision], stdout=out, stderr=err)
    assert done.returncode == code, (tmp_path / "err").read_text()
    keep_rest(LakeStorage(), revision)
    found = said(revision)
    assert {("", "out", "loading"), ("aaaa", "out", "scoring a"), ("bbbb", "out", "scoring b")} <= set(found)
    assert any(text.startswith("said by C") and shard == "bbbb" for shard, _, text in found)
    assert not any(":job_id:" in text for _, _, text in found)
    if code == -signal.SIGSEGV:
        assert any("Segmentation fault" in text for _, _, text in found)
    keep_rest(LakeStorage(), revision)
    assert said(revision) == found


def test_a_shard_that_prints_much_keeps_its_first_and_last_lines(tmp_path: Path, revision: str) -> None:
    """And says how many are between them; the others' lines are not displaced."""
    with capturing(tmp_path, revision) as (logs, out, _):
        os.write(out, b"loading\n")
        logs.turn_to(Started("loud", 1, "w"))
        os.write(out, b"".join(b"line %06d\n" % number for number in range(100_000)))
        logs.turn_to(Started("calm", 1, "w"))
        os.write(out, b"last words\n")
        wait_until(lambda: kept(revision)[-1:] and kept(revision)[-1].text == "last words", 10, "they are kept")
        logs.close()
    loud = [line for line in kept(revision) if line.shard == "loud"]
    assert (loud[0].text, loud[-1].text) == ("line 000000", "line 099999")
    assert sum(len(line.text) for line in loud) <= SPAN_CHARS
    left = next(line for line in loud if line.stream == NOTE)
    assert left.text == f"… {100_000 - (len(loud) - 1):,} lines left out"
    assert [line.text for line in kept(revision) if line.shard != "loud"] == ["loading", "last words"]


def test_a_part_is_bounded_however_many_shards_print(tmp_path: Path, revision: str) -> None:
    """Its first and its last lines stay."""
    path = tmp_path / "out"
    lines = (marker(Started(f"{number:04d}", 1, "w")) + b"x" * 100 + b"\n" for number in range(1000))
    path.write_bytes(b"".join(lines))
    book = Book("host:1", 1, (str(path), str(tmp_path / "none")), BEGIN)
    keep(LakeStorage(), revision, book, Masks(LakeStorage()), final=True)
    kept_lines = kept(revision)
    assert 5000 < sum(len(line.text) for line in kept_lines) <= PART_CHARS + 100
    assert any("lines left out" in line.text for line in kept_lines)
    assert any(line.shard == "0999" for line in kept_lines)


def test_each_line_that_is_printed_is_kept_or_counted(tmp_path: Path, revision: str) -> None:
    """Also where a note of one shard is left out with lines of other shards."""
    path = tmp_path / "out"
    with path.open("wb") as out:
        for number in range(10):
            out.write(marker(Started(f"{number:04d}", 1, "w")))
            out.writelines(b"line %04d %s\n" % (index, b"x" * 60) for index in range(1000))
    book = Book("host:1", 1, (str(path), str(tmp_path / "none")), BEGIN)
    keep(LakeStorage(), revision, book, Masks(LakeStorage()), final=True)
    notes = [line for line in kept(revision) if line.stream == NOTE]
    assert len(kept(revision)) - len(notes) + sum(line.left_out for line in notes) == 10_000
    assert [line.text for line in notes] == [f"… {line.left_out:,} lines left out" for line in notes]


def test_a_secret_is_kept_by_no_means(revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of variables that are secret by their name, the storage's keys, and passwords in URLs."""
    monkeypatch.setenv("CHURN_API_KEY", "plän-ted/secret")
    storage = LakeStorage(StorageSettings(access_key="AKIA", secret_key="the-storage's-key"))
    encoded = base64.b64encode("user:plän-ted/secret".encode())
    with capturing(tmp_path, revision, storage) as (logs, out, _):
        os.write(out, f"plän-ted/secret the-storage's-key pl%C3%A4n-ted%2Fsecret {os.environ}\n".encode())
        os.write(out, b"Basic %b\npostgres://me:hush-hush@db/x and more\n" % encoded)
        logs.close()
    text = "".join(path.read_text() for path in parts(revision))
    for form in ("plän-ted", "pl\\u00e4n", "ted%2Fsecret", "storage's-key", "hush-hush", encoded.decode()[8:-4]):
        assert form not in text
    assert HIDDEN in text
    assert f"postgres://{HIDDEN}@db/x and more" in text


@pytest.mark.parametrize(
    "secret", ["CORP\\svc-päss", "wJalr/XUt nF+EMI/K7", "quote\"in-'it", "tab\tin-it", "~~~???>>>ÿÿÿ"]
)
@pytest.mark.parametrize(
    "encoded",
    [
        repr,
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        quote,
        quote_plus,
        lambda value: quote(value, safe=""),
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    ],
)
def test_a_secret_is_masked_as_libraries_write_it(secret: str, encoded: Callable[[str], str]) -> None:
    text = encoded(secret)
    assert text[1:-4] not in Masks(LakeStorage(), {"MY_TOKEN": secret})(f"sent {text} to the host")


def test_of_a_line_that_is_cut_no_half_of_a_secret_stays(tmp_path: Path, revision: str) -> None:
    """Whole lines are kept or left out."""
    path, secret = tmp_path / "out", "0123456789abcdef" * 4
    path.write_bytes(b"before\n" + (secret + " ").encode() * 1000 + b"\nafter\n")
    book = Book("host:1", 1, (str(path), str(tmp_path / "none")), BEGIN)
    masks = Masks(LakeStorage(), {"MY_TOKEN": secret})
    assert keep(LakeStorage(), revision, book, masks, final=True).is_complete
    assert [line.text for line in kept(revision)] == ["before", "… 1 line left out", "after"]


def test_a_marker_that_was_cut_is_an_ordinary_line(tmp_path: Path, revision: str) -> None:
    """A full disk cuts it anywhere, and the user's code may print the same words."""
    path, whole = tmp_path / "out", marker(Started("aaaa", 1, "w")).strip()
    cut = [whole[:-1], whole[:-15], whole[: whole.index(b"aaaa") + 2], whole + b" and more"]
    path.write_bytes(b"\n".join([*cut, b"before", whole, b"after"]) + b"\n")
    book = Book("host:1", 1, (str(path), str(tmp_path / "none")), BEGIN)
    assert keep(LakeStorage(), revision, book, Masks(LakeStorage()), final=True).is_complete
    assert [(line.shard, line.text) for line in kept(revision)] == [
        *(("", each.decode().rstrip()) for each in [*cut, b"before"]),
        ("aaaa", "after"),
    ]


def test_a_long_line_is_cut_behind_its_masks(tmp_path: Path, revision: str) -> None:
    path, secret = tmp_path / "out", "0123456789abcdef"
    path.write_bytes(b"x" * (LINE_CHARS - 8) + secret.encode() + b"y" * 3000 + b"\n")
    book = Book("host:1", 1, (str(path), str(tmp_path / "none")), BEGIN)
    assert keep(LakeStorage(), revision, book, Masks(LakeStorage(), {"MY_TOKEN": secret}), final=True).is_complete
    (line,) = kept(revision)
    assert line.text == ("x" * (LINE_CHARS - 8) + HIDDEN + "y" * 8)[:LINE_CHARS]


def test_words_that_are_no_secrets_stay() -> None:
    masks = Masks(LakeStorage(), {"RAY_AUTH_MODE": "token", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/it", "KEY": "abc"})
    assert masks("a token in /var/run/it, abc; see http://host:80/a@b") == (
        "a token in /var/run/it, abc; see http://host:80/a@b"
    )


def test_storage_that_is_away_delays_what_is_kept(tmp_path: Path, revision: str) -> None:
    """Scoring does not notice, and what was printed meanwhile is kept later."""
    faulty = FaultyStorage(LakeStorage(), [fail("create", "*/logs/*", error=Transient("away"))])
    with capturing(tmp_path, revision, faulty) as (logs, out, _):
        os.write(out, b"first\n")
        logs.close()
        assert kept(revision) == []
        os.write(out, b"second\n")
        logs.close()
    assert [line.text for line in kept(revision)] == ["first", "second"]


def test_what_is_written_over_in_place_is_its_last_state(tmp_path: Path, revision: str) -> None:
    """As a terminal would show it: bars of progress are one line."""
    with capturing(tmp_path, revision) as (logs, _, err):
        os.write(err, b"".join(b"\r%d%%" % share for share in range(101)) + b"\n\nnot \xff UTF-8\r\n")
        logs.close()
    assert [line.text for line in kept(revision)] == ["100%", "not \ufffd UTF-8"]


def test_what_cannot_be_kept_is_said(revision: str) -> None:
    """A worker whose output is a pipe, as where Ray rotates its files."""
    read, write_end = os.pipe()
    Capture(LakeStorage(), revision, 1, fds=(write_end, write_end)).close()
    assert "is not kept" in kept(revision)[0].text
    os.close(read)
    os.close(write_end)


def test_the_last_lines_of_failed_shards(revision: str) -> None:
    """Of the worker that it failed on: another one's attempt says nothing of this one."""
    lines = [Line(float(at), "out", f"line {at}", "aaaa", 2) for at in range(9)]
    write(LakeStorage(), revision, 1, "host:1", lines)
    write(LakeStorage(), revision, 1, "host:2", [Line(1.0, "out", "elsewhere", "aaaa", 1)])
    failures = {
        "aaaa": [Failed("aaaa", 1, "ProcessDied", "", worker="host:2"), Failed("aaaa", 2, "E", "", worker="host:1")],
        "bbbb": [Failed("bbbb", 1, "E", "", worker="host:1")],
    }
    assert last_lines(LakeStorage(), revision, failures, 3) == {"aaaa": ["line 6", "line 7", "line 8"]}


def test_a_worker_whose_name_comes_again_is_another_one(revision: str) -> None:
    """The next command's, in a container or after a restart: what it says at the same place is no repetition."""
    for epoch in (1, 5):
        write(LakeStorage(), revision, epoch, "host:77", [Line(epoch, "out", f"loading {epoch}")])
        for attempt in (1, 2):
            line = Line(epoch, "err", f"cause {epoch}.{attempt}", "aaaa", attempt)
            write(LakeStorage(), revision, epoch, "host:77", [line])
    assert {text for _, _, text in said(revision)} == {
        *("loading 1", "cause 1.1", "cause 1.2"),
        *("loading 5", "cause 5.1", "cause 5.2"),
    }
    failures = {"aaaa": [Failed("aaaa", 1, "E", "", worker="host:77"), Failed("aaaa", 2, "E", "", worker="host:77")]}
    assert last_lines(LakeStorage(), revision, failures) == {"aaaa": ["cause 5.2"]}
    assert last_lines(LakeStorage(), revision, {"aaaa": failures["aaaa"][:1]}) == {"aaaa": ["cause 5.1"]}


def test_a_stranger_s_note_is_not_followed(tmp_path: Path, revision: str, notes: Path) -> None:
    """Nor one that is damaged: neither ends a run."""
    (folder := capture._folder()).mkdir()
    (folder / f"{capture._beginning(revision)}1-damaged.json").write_text('{"worker"')
    (tmp_path / "secret").write_text("theirs\n")
    book = Book("host:1", 1, (str(tmp_path / "secret"), str(tmp_path / "secret")), BEGIN)
    note = folder / f"{capture._beginning(revision)}2-foreign.json"
    note.write_bytes(to_bytes(book))
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(note, 65534, 65534)
    keep_rest(LakeStorage(), revision)
    assert kept(revision) == []
    assert json.loads(note.read_text())["worker"] == "host:1"


@pytest.mark.parametrize("kind", ["link", "file", "theirs"])
def test_a_folder_that_somebody_planted_is_not_used(tmp_path: Path, revision: str, notes: Path, kind: str) -> None:
    """Everybody may write into the folder for temporary files. Nothing is written or read there; the run goes on."""
    planted = capture._folder()
    inside = tmp_path / "inside"
    inside.mkdir()
    if kind == "link":
        planted.symlink_to(inside)
    elif kind == "file":
        planted.write_text("")
    else:
        if os.getuid() != 0:
            pytest.skip("only root can give a folder to another user")
        planted.mkdir()
        os.chown(planted, 65534, 65534)
    before = sorted(tmp_path.rglob("*"))
    assert capture.copies(revision) == (-1, -1)
    fds = os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY)
    Capture(LakeStorage(), revision, 1, fds=fds).close()
    keep_rest(LakeStorage(), revision)
    new = [path for path in tmp_path.rglob("*") if path not in before]
    assert [path for path in new if not path.is_relative_to(revision)] == []


def test_a_folder_of_an_earlier_version_is_closed(revision: str, notes: Path) -> None:
    """It let everybody look into it."""
    place = capture._folder()
    place.mkdir()
    place.chmod(0o777)
    capture.close_copies(copied := capture.copies(revision), left=True)
    assert min(copied) > 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


# ---- what a person is shown ----------------------------------------------------------------------------------

DATE = "2026-11-19"


@pytest.fixture
def failed(lake: Lake) -> tuple[Lake, str]:
    """A run that stopped: one shard failed, whose worker printed something; and that shard."""
    request, plan = lake.ready().request(), lake.planned()
    shard, other = plan.ids()[:2]
    uri = str(lake.revision())
    writer = open_epoch(request.storage, uri, this_holder("score"))
    request.storage.create(f"{uri}/plan-1.parquet", plan.to_bytes())
    writer.append([Planned(file="plan-1.parquet", fingerprint="f", date=DATE, shards=8, rows=8000)])
    writer.append([Failed(shard, 1, "ValueError", "refused", worker="host:1")])
    said = [Line(1e9, "out", "loading"), Line(1e9 + 1, "err", "\x1b[2Jlast words", shard, 1)]
    write(request.storage, uri, 1, "host:1", said)
    write(request.storage, uri, 1, "host:2", [Line(1e9, "out", "of another", other, 1)])
    writer.stop(release=True)
    return lake, shard


def test_the_command_prints_who_said_what_when(failed: tuple[Lake, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, with control characters spelled out; --shard chooses, --json is for machines."""
    lake, shard = failed
    logs_command(str(lake.job_path), DATE)
    shown = capsys.readouterr().out.splitlines()
    assert sorted(line.split(" ")[0] for line in shown) == ["2001-09-09T01:46:40.000Z"] * 2 + [
        "2001-09-09T01:46:41.000Z"
    ]
    assert f"2001-09-09T01:46:41.000Z host:1 {shard} err  \\x1b[2Jlast words" in shown
    logs_command(str(lake.job_path), DATE, shard=shard[:8], as_json=True)
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "time": "2001-09-09T01:46:41.000Z",
        "worker": "host:1",
        "shard": shard,
        "attempt": 1,
        "stream": "err",
        "text": "\x1b[2Jlast words",
    }
    conforms(json.loads(line), "logs")


def test_the_command_names_its_run_as_others_do(failed: tuple[Lake, str], capsys: pytest.CaptureFixture[str]) -> None:
    """By its name or by its date; none is too few."""
    job = str(failed[0].job_path)
    logs_command(job, DATE)
    by_place = capsys.readouterr().out
    logs_command(job, date=DATE)
    assert capsys.readouterr().out == by_place
    with pytest.raises(JobError, match="which run"):
        logs_command(job)


def test_the_command_says_that_nothing_was_printed(
    failed: tuple[Lake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    lake, _ = failed
    silent = lake.planned().ids()[2]
    logs_command(str(lake.job_path), DATE, shard=silent)
    assert capsys.readouterr().out == f"lake {DATE} r1: nothing was printed while shard {silent} was scored.\n"
    with pytest.raises(
        JobError, match=r"--shard none: no shard of this run begins so; `.*nightjar show \S+ 2026-11-19`"
    ):
        logs_command(str(lake.job_path), DATE, shard="none")
    with pytest.raises(JobError, match=r"there is no run '2026-11-01' of lake yet; `.*nightjar runs .*` lists them"):
        logs_command(str(lake.job_path), "2026-11-01")


def test_a_failed_shard_has_its_last_lines_beside_it(failed: tuple[Lake, str]) -> None:
    """In `show` and on the pages; and what cannot be read of them hides nothing else."""
    lake, shard = failed
    request = lake.request()
    [first, *others] = RunReport(request, 1).shards(300)
    assert (first.shard, first.printed_last) == (shard, ("\x1b[2Jlast words",))
    assert not any(each.printed_last for each in others)
    assert tables.printed([first, *others]) == (
        f"Last printed lines of shards without a result\n  shard {shard}\n    \\x1b[2Jlast words"
    )
    parts(str(lake.revision()))[0].write_text("damaged")
    parts(str(lake.revision()))[1].write_text("damaged")
    assert RunReport(request, 1).shards(300)[0].printed_last == ()
