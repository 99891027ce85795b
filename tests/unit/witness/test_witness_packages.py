"""The installed packages that scored: recorded by version, and compared night by night."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from nightjar.inference.identity.packages import added, changes, installed_packages, loaded_packages


def install(site: Path, version: str, **notes: str) -> None:
    """Write a distribution `my-lib` as an installer does."""
    (site / "mylib").mkdir(parents=True, exist_ok=True)
    (site / "mylib/__init__.py").touch()
    info = site / "my_lib.dist-info"
    info.mkdir(exist_ok=True)
    about = {"METADATA": f"Metadata-Version: 2.1\nName: my-lib\nVersion: {version}\n", "top_level.txt": "mylib\n"}
    for name, text in {**about, **{f"{name}.json": text for name, text in notes.items()}}.items():
        (info / name).write_text(text)


def load(monkeypatch: pytest.MonkeyPatch, *modules: str) -> dict[str, str]:
    """The recorded packages once these modules, and no older ones of the same name, are loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] in {"mylib", "ours"}]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    for name in modules:
        importlib.import_module(name)
    return loaded_packages()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one on the path, with `my-lib` 1.0 in it."""
    site = tmp_path / "site-packages"
    install(site, "1.0")
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return site


def test_a_package_whose_metadata_are_gone_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it that was interrupted."""
    (tmp_path / "half_done-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_packages(["half-done"]) == {}


def test_a_loaded_package_is_recorded_by_its_version(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "my-lib" not in load(monkeypatch), "no score depends on a package that is never imported"
    before = load(monkeypatch, "mylib")
    assert before["my-lib"] == "1.0"
    install(site, "1.1")
    assert installed_packages(before)["my-lib"] == load(monkeypatch, "mylib")["my-lib"] == "1.1"
    states = added(added({}, before), load(monkeypatch, "mylib"))
    assert added(states, before) == states
    assert changes(states) == ["my-lib 1.0 → 1.1"]


def test_an_editable_package_is_recorded_if_a_module_of_its_folder_is_loaded(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "ours.py").touch()
    install(site, "1.0", direct_url=json.dumps({"url": f"file://{work}", "dir_info": {"editable": True}}))
    monkeypatch.setattr(sys, "path", [str(site), str(work)])
    assert "my-lib" not in load(monkeypatch)
    assert load(monkeypatch, "ours")["my-lib"] == "1.0"


def test_a_damaged_installation_stops_nobody(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "bad.dist-info").mkdir()
    (site / "bad.dist-info/METADATA").write_bytes(b"\xff\0")
    assert load(monkeypatch, "mylib")["my-lib"] == "1.0"
