"""`identity.packages`: a package counts by its version, and by its content where it is worked on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.identity.packages import distribution, package_of

Site = dict[str, str]


def install(site: Path, name: str, files: Site, version: str = "1") -> None:
    """Install a distribution as pip does. Files of its `.dist-info` have no folder."""
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "RECORD": "".join(f"{each},,\n" for each in files),
    }
    info = f"{name.replace('-', '_')}.dist-info"
    for each, text in {**files, **{f"{info}/{each}": text for each, text in about.items()}}.items():
        (site / each).parent.mkdir(parents=True, exist_ok=True)
        (site / each).write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.parametrize("name", ["acme.odd-lib", "acme-odd-lib", "acme_odd_lib", "ACME.Odd--Lib"])
def test_a_package_counts_by_its_version_however_its_name_is_written(name: str, site: Path) -> None:
    install(site, "acme.odd-lib", {"acmeodd/__init__.py": "W = 1"})
    assert distribution(name).content == "1"
    assert package_of("acmeodd.deep").content == "acme.odd-lib 1"
    install(site, "acme.odd-lib", {"acmeodd/__init__.py": "W = 2"}, "2")
    assert distribution(name).content == "2"


def test_a_package_without_a_version_counts_by_its_content(site: Path, tmp_path: Path) -> None:
    """A folder on the path, also one behind a link."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "w").write_text("1")
    (site / "loose").mkdir()
    (site / "loose" / "__init__.py").touch()
    (site / "loose" / "data").symlink_to(tmp_path / "theirs")
    (site / "loose" / "up").symlink_to("..")
    before = package_of("loose").content
    (tmp_path / "theirs" / ".w.swp").touch()
    (site / "loose" / "w.py~").touch()
    (site / "loose" / ".ipynb_checkpoints").mkdir()
    (site / "loose" / ".ipynb_checkpoints" / "w.py").touch()
    assert package_of("loose").content == before, "what an editor leaves there does not count"
    (tmp_path / "theirs" / "w").write_text("2")
    assert package_of("loose").content != before
    assert ("__init__.py", site / "loose" / "__init__.py") in package_of("loose").files
    with pytest.raises(LookupError):
        package_of("no_such_package")


def test_an_editable_installation_counts_by_content_or_is_refused(site: Path, tmp_path: Path) -> None:
    info = "acme_none.dist-info/direct_url.json"
    origin = json.dumps({"url": f"file://{tmp_path}/work", "dir_info": {"editable": True}})
    install(site, "acme-none", {"acme.pth": "../work\n", info: origin})
    with pytest.raises(JobError, match=r"^identity.packages: 'acme-none' is an editable installation of .*/work/, "):
        distribution("acme-none")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "acme.py").write_text("W = 1")
    before = distribution("acme-none").content
    (tmp_path / "work" / "acme.py").write_text("W = 2")
    assert before.startswith("1 ")
    assert distribution("acme-none").content != before
