"""What a command that was killed, or came late, left in `latest/` and `dates/` is mended by the next one."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_latest_view import OBJECTS

import faults
from faults import FaultyStorage
from nightjar.inference.errors import Denied, StorageError
from nightjar.inference.output import latest_view, visibility
from nightjar.inference.output import publications as publish
from nightjar.inference.output.publications import Origin
from outputs import JOB, NIGHT, Placed


@pytest.fixture
def output(tmp_path: Path) -> Placed:
    return Placed(str(tmp_path / "out"))


PLACES = [f"*/{place}/{name}" for place in ("latest", f"dates/{NIGHT}") for name in OBJECTS]


@pytest.mark.parametrize("killed", PLACES)
@pytest.mark.parametrize("act", ["publish", "unpublish"])
def test_what_was_cut_off_is_mended_by_the_next_command(output: Placed, killed: str, act: str) -> None:
    """Before each single write of a publication, and of a night that is taken away; by a command of another night."""
    output.publish("2026-11-18")
    if act == "unpublish":
        output.publish(NIGHT)
    output.refresh()
    output.publish(NIGHT) if act == "publish" else visibility.unpublish(output.storage, output.uri, NIGHT)
    operation = "write" if act == "publish" or "latest" in killed else "delete"
    dying = faults.Fault(operation, killed, error=StorageError("killed here"))
    assert "killed here" in output.refresh(storage=FaultyStorage(output.storage, [dying]))
    assert output.refresh() == ""
    assert output.night("latest") == (f"{NIGHT} r1" if act == "publish" else "2026-11-18 r1")
    assert output.empty(f"dates/{NIGHT}") == (act == "unpublish")


def test_only_dates_that_changed_are_written(output: Placed) -> None:
    """Thousands of nights lie there: a publication costs what it changes."""
    nights = [f"2026-11-{day:02d}" for day in range(1, 19)]
    for night in nights:
        output.publish(night)
    output.refresh()
    output.publish(NIGHT)
    written: list[str] = []
    watching = FaultyStorage(output.storage, [faults.pause("write", "*", before=written.append, nth=None)])
    assert output.refresh(storage=watching) == ""
    assert {name.removeprefix(f"{output.uri}/").rsplit("/", 1)[0] for name in written} == {
        *(f"{place}{folder}" for place in ("latest", f"dates/{NIGHT}") for folder in ("", "/_symlink_format_manifest"))
    }
    written.clear()
    operations = ("write", "create", "delete")
    watching = FaultyStorage(
        output.storage, [faults.pause(o, "*", before=written.append, nth=None) for o in operations]
    )
    assert output.refresh(storage=watching) == ""
    assert not written


def test_an_output_that_was_copied_with_its_links_followed_names_a_folder_to_remove(
    output: Placed, tmp_path: Path
) -> None:
    """Its links are folders then. Nothing of them is deleted; who removes them gets the links."""
    days = [f"2026-11-{day}" for day in (15, 16, 17, 18)]
    for day in days:
        output.publish(day)
    output.refresh()
    copied = tmp_path / "copied"
    shutil.copytree(output.uri, copied, symlinks=False)
    copy = Placed(str(copied))
    copy.publish(NIGHT)
    for _ in range(2):
        said = copy.refresh(NIGHT)
        assert said.startswith("latest/ and dates/ could not be written, the next command does it: ")
        assert "data is a folder where a link belongs; remove it" in said
    kept = [path for path in copied.glob("*/**/data") if "runs" not in path.parts and not path.is_symlink()]
    assert len(kept) == 5
    for place in ("latest", "dates"):
        shutil.rmtree(copied / place)
    assert copy.refresh() == ""
    assert copy.night("latest") == copy.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    shown = [copied / "latest", copied / "dates" / NIGHT, *(copied / "dates" / day for day in days)]
    assert all((place / "data").is_symlink() and (place / "data").exists() for place in shown)


def test_a_date_that_cannot_be_written_is_written_by_the_next_command_that_can(output: Placed) -> None:
    """Also by one that finds nothing else to do: until then `latest/` does not say that it is up to date."""
    for day in ("2026-11-17", NIGHT):
        output.publish(day)
    refused = [faults.fail("write", "*/dates/2026-11-17/*", None, Denied("2026-11-17: not yours"))]
    for _ in range(2):
        said = output.refresh(storage=FaultyStorage(output.storage, refused))
        assert said == "latest/ and dates/ could not be written, the next command does it: 2026-11-17: not yours"
    assert not Path(output.uri, "dates/2026-11-17/files.json").exists()
    assert latest_view.refresh(output.storage, output.uri, JOB) == ""
    assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r1"
    assert output.night("dates/2026-11-17") == "2026-11-17 r1"


def test_a_folder_in_place_of_a_link_is_said_of_a_night_that_is_taken_away(output: Placed) -> None:
    """Readers of the folder still see that night."""
    output.publish("2026-11-18")
    output.publish(NIGHT)
    output.refresh()
    link = Path(output.uri, "dates/2026-11-18/data")
    link.unlink()
    link.mkdir()
    visibility.unpublish(output.storage, output.uri, "2026-11-18")
    assert f"{link} is a folder where a link belongs" in output.refresh()
    link.rmdir()
    assert output.refresh() == ""
    assert output.empty("dates/2026-11-18")


def test_one_that_comes_late_leaves_nothing_old(output: Placed) -> None:
    """It stood still before each write, while others published and wrote all of it: the newest state stands at last."""
    output.publish(NIGHT)
    output.refresh()
    for number, slow in enumerate(PLACES, 2):
        output.publish(NIGHT, number)

        def overtake(_: str, number: int = number) -> None:
            output.publish(NIGHT, 100 + number)
            output.publish("2026-11-20", number)
            visibility.unpublish(output.storage, output.uri, "2026-11-20")
            output.refresh()

        sleeper = FaultyStorage(output.storage, [faults.pause("write", slow, before=overtake)])
        assert output.refresh(storage=sleeper) == ""
        assert output.night("latest") == output.night(f"dates/{NIGHT}") == f"{NIGHT} r{100 + number}"
        assert json.loads(Path(output.uri, "latest/files.json").read_text())["publication"] == output.now().number
        assert output.empty("dates/2026-11-20")


def test_many_that_write_at_once_end_at_the_newest(output: Placed) -> None:
    """Eight commands publish a night each and take every other one back."""
    nights = [f"2026-11-{day}" for day in range(10, 18)]
    entries = {night: output.revision(night) for night in nights}

    def command(night: str) -> None:
        done = False
        while not done:
            now, origin = output.now(), Origin("publish", night, 1)
            after = {**now.runs, night: entries[night]}
            done = publish.add(output.storage, output.uri, now.number + 1, after, origin).origin == origin
        assert output.refresh(night) == ""
        if int(night[-2:]) % 2:
            visibility.unpublish(output.storage, output.uri, night)
            assert output.refresh(night) == ""

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(command, nights))
    assert output.night("latest") == "2026-11-16 r1"
    for night in nights:
        assert (
            output.empty(f"dates/{night}") if int(night[-2:]) % 2 else output.night(f"dates/{night}") == f"{night} r1"
        )
