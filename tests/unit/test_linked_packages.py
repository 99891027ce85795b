"""What links lead to in an installed package is part of it, as the package's code reads it there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.identity.packages import content_of, files_of


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package whose weights are shared, by links to folders that link to each other."""
    package = tmp_path / "site-packages" / "acme"
    for folder in (package / "deep" / "__pycache__", tmp_path / "shared" / "weights", tmp_path / "shared" / "words"):
        folder.mkdir(parents=True)
        (folder / "k.txt").write_text("2.0")
    (package / "__init__.py").write_text("")
    (package / "round").symlink_to(package)
    (package / "deep" / "round").symlink_to(package.parent)
    for name, other in (("weights", "words"), ("words", "weights")):
        (package / name).symlink_to(tmp_path / "shared" / name)
        (tmp_path / "shared" / name / other).symlink_to(tmp_path / "shared" / other)
    (package / "gone").symlink_to(tmp_path / "gone")
    (package / "loop").symlink_to("loop")
    monkeypatch.syspath_prepend(package.parent)
    return package


def test_files_behind_a_link_in_an_installed_package_count(acme: Path) -> None:
    before = content_of("acme")
    weights = acme / "weights" / "k.txt"
    assert weights in files_of("acme")
    weights.write_text("3.0")
    after = content_of("acme")
    assert after != before
    weights.write_text("2.0")
    assert content_of("acme") == before


def test_links_in_an_installed_package_are_followed_and_circles_end(acme: Path) -> None:
    """Each path is there once, as the code may name it."""
    found = sorted(path.relative_to(acme).as_posix() for path in files_of("acme"))
    linked = ["weights/k.txt", "weights/words/k.txt", "words/k.txt", "words/weights/k.txt"]
    assert found == sorted(["__init__.py", *linked])


def test_a_copy_of_what_a_link_leads_to_is_the_same_package(acme: Path, tmp_path: Path) -> None:
    """So another machine may have it in place."""
    for name in ("weights", "words"):
        (tmp_path / "shared" / name / {"weights": "words", "words": "weights"}[name]).unlink()
    before = content_of("acme")
    for name in ("weights", "words"):
        (acme / name).unlink()
        (tmp_path / "shared" / name).rename(acme / name)
    assert content_of("acme") == before
