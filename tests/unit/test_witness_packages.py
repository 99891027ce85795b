"""The installed packages that scored: recorded by version and by what was installed, and compared night by night."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path

import pytest

from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.ledger.lines import Packages
from nightjar.inference.witness import packages
from nightjar.inference.witness.packages import (
    Package,
    differences,
    installed_packages,
    loaded_packages,
)

SOURCE = {
    "mylib/__init__.py": "from mylib import deep\n",
    "mylib/deep.py": "WEIGHT = 2\n",
    "mylib/lazy.py": "X = 1\n",
    "mylib/void.py": "",
}


def install(site: Path, version: str, source: dict[str, str], record: bool = True) -> None:
    """Write a distribution `my-lib` as an installer does."""
    lines = []
    for name, text in source.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}")
    notes = site / "my_lib.dist-info"
    notes.mkdir(parents=True, exist_ok=True)
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-lib\nVersion: {version}\n")
    (notes / "top_level.txt").write_text("mylib\n")
    if record:
        (notes / "RECORD").write_text("\n".join([*lines, "my_lib.dist-info/RECORD,,", "../../../bin/my,sha256=x,1"]))


def recorded_at(site: Path, seconds: float) -> None:
    """Set the time at which the installer wrote its record."""
    os.utime(site / "my_lib.dist-info/RECORD", (seconds, seconds))


def load(monkeypatch: pytest.MonkeyPatch, *modules: str) -> dict[str, Package]:
    """What is recorded once these modules, and no older ones of the same name, are loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylib"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    for name in modules:
        importlib.import_module(name)
    # As it is kept in a ledger.
    kept = json.loads(json.dumps(to_json(Packages(loaded_packages()))))
    return dict(of_json(Packages, kept).loaded)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one on the path, with `my-lib` 1.0 in it."""
    site = tmp_path / "site-packages"
    install(site, "1.0", SOURCE)
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return site


def test_what_is_loaded_is_recorded(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By version; a module loaded later, or not, makes no difference."""
    before = load(monkeypatch, "mylib")
    (site / "mylib/void.py").unlink()  # as images of containers are stripped
    assert installed_packages(before) == before
    (site / "mylib/void.py").touch()
    assert before["my-lib"].version == "1.0"
    assert before["my-lib"].installed
    assert not before["my-lib"].edited
    assert differences(before, load(monkeypatch, "mylib", "mylib.lazy", "mylib.void")) == []


def test_what_is_not_loaded_is_not_recorded(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is installed and never imported no score depends."""
    assert "my-lib" not in load(monkeypatch)


def test_another_version_is_said(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both."""
    before = load(monkeypatch, "mylib")
    install(site, "1.1", SOURCE)
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 → 1.1"]
    assert differences(before, installed_packages(before)) == ["my-lib 1.0 → 1.1"]


def test_another_build_of_the_same_version_is_said(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the changed file is not among the loaded ones."""
    before = load(monkeypatch, "mylib")
    install(site, "1.0", {**SOURCE, "mylib/lazy.py": "X = 3\n"})
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 is another build of the same version"]


def test_notes_of_an_installer_are_read_again_when_they_changed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before: they are long, and there are hundreds of packages."""
    monkeypatch.setattr(packages, "_SETTLED_S", -1.0)  # they are known from the first time on
    before = load(monkeypatch, "mylib")
    assert {str(site / f"my_lib.dist-info/{name}") for name in ("METADATA", "RECORD")} <= packages._made.keys()
    install(site, "1.0", {**SOURCE, "mylib/lazy.py": "X = 3\n"})
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 is another build of the same version"]
    install(site, "1.1", SOURCE)
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 → 1.1"]
    assert packages.installed_version("my-lib") == "1.1"


def test_notes_that_were_just_changed_are_not_taken_for_known(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_SETTLED_S", 3600.0)
    load(monkeypatch, "mylib")
    assert str(site / "my_lib.dist-info/RECORD") not in packages._made


def test_files_older_than_their_record_are_not_read(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installer wrote the record last; so they are read only where the whole folder was copied later."""
    recorded_at(site, time.time() + 60)
    monkeypatch.setattr(packages, "_SETTLED_S", -1.0)
    before = load(monkeypatch, "mylib")
    assert not before["my-lib"].edited
    assert str(site / "mylib/deep.py") not in packages._made
    recorded_at(site, 0)
    assert load(monkeypatch, "mylib") == before
    assert str(site / "mylib/deep.py") in packages._made


def test_a_file_that_was_hashed_before_is_hashed_again_when_it_changed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its size is that of before, and somebody has set its time back."""
    recorded_at(site, 0)
    monkeypatch.setattr(packages, "_SETTLED_S", -1.0)  # the file is known from the first time on
    before, deep = load(monkeypatch, "mylib"), site / "mylib/deep.py"
    known = deep.stat()
    assert packages._made[str(deep)]
    deep.write_text("WEIGHT = 3\n")
    os.utime(deep, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert deep.stat().st_ctime_ns != known.st_ctime_ns
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]


def test_a_file_that_was_just_changed_is_not_taken_for_known(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change in the same tick of the file system's clock could not be told."""
    recorded_at(site, 0)
    monkeypatch.setattr(packages, "_SETTLED_S", 3600.0)
    load(monkeypatch, "mylib")
    assert str(site / "mylib/deep.py") not in packages._made


def test_a_package_edited_in_place_is_said(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is the old one, and so is the size of the file; edited once more, it is said once more."""
    before = load(monkeypatch, "mylib")
    (site / "mylib/deep.py").write_text("WEIGHT = 3\n")
    once = load(monkeypatch, "mylib")
    assert differences(before, once) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]
    assert differences(once, load(monkeypatch, "mylib")) == []
    assert differences(before, installed_packages(before)) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]
    assert differences(once, installed_packages(once)) == []
    (site / "mylib/deep.py").write_text("WEIGHT = 4\n")
    assert differences(once, load(monkeypatch, "mylib")) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]


def test_data_that_was_read_is_compared_where_the_package_brought_it_along(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all of its content; what was computed beside it, as a cache is, says nothing."""
    install(site, "1.0", {**SOURCE, "mylib/w.json": "1"})
    (site / "mylib/cache").write_text("1")
    read = [f"{site}/mylib/{name}" for name in ("w.json", "cache", "../mylib/w.json", "gone")]
    load(monkeypatch, "mylib")
    before = loaded_packages(read)
    assert list(before["my-lib"].read) == ["mylib/w.json"]
    assert of_json(Packages, to_json(Packages(before))).loaded == before
    assert installed_packages(before) == before
    (site / "mylib/cache").write_text("2")
    (site / "mylib/w.json").write_text("2")
    said = ["my-lib 1.0 was edited in place (mylib/w.json)"]
    assert differences(before, loaded_packages(read)) == differences(before, installed_packages(before)) == said
    assert differences(before, loaded_packages()) == [], "another time it is not read"


def test_a_package_without_a_record_is_told_by_its_files(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the packages of Linux distributions are: what is loaded is compared with what was."""
    (site / "my_lib.dist-info/RECORD").unlink()
    before = load(monkeypatch, "mylib")
    assert differences(before, load(monkeypatch, "mylib", "mylib.lazy")) == []
    (site / "mylib/deep.py").write_text("WEIGHT = 3\n")
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]


def test_an_editable_package_is_told_by_its_files(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies wherever it is worked on, and its version says nothing."""
    source = tmp_path / "work"
    install(site, "1.0", {})
    for name, text in SOURCE.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
        (site / name).unlink()
    (site / "mylib").rmdir()
    origin = {"url": f"file://{source}", "dir_info": {"editable": True}}
    (site / "my_lib.dist-info/direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(site), str(source)])
    before = load(monkeypatch, "mylib")
    assert set(before["my-lib"].own) == {"mylib/__init__.py", "mylib/deep.py"}
    assert installed_packages(before) == before
    (source / "mylib/deep.py").write_text("WEIGHT = 3\n")
    assert differences(before, installed_packages(before)) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]
    assert differences(before, load(monkeypatch, "mylib")) == ["my-lib 1.0 was edited in place (mylib/deep.py)"]


def test_what_only_one_of_them_loaded_is_no_difference() -> None:
    """Which rows preflight tries decides what is imported lazily."""
    assert differences({"a": Package("1")}, {"b": Package("1")}) == []
