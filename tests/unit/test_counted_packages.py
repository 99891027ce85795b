"""`identity.packages`: a package counts by its content, however its name is written, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.identity.packages import files_of_distribution, is_imported, of_distribution

Site = dict[str, str]


def install(site: Path, name: str, files: Site) -> None:
    """Install a distribution as pip does. Files of its `.dist-info` have no folder."""
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        "RECORD": "".join(f"{each},,\n" for each in files),
    }
    info = f"{name.replace('-', '_')}-1.dist-info"
    for each, text in {**files, **{f"{info}/{each}": text for each, text in about.items()}}.items():
        (site / each).parent.mkdir(parents=True, exist_ok=True)
        (site / each).write_text(text)


@pytest.mark.parametrize("name", ["acme.odd-lib", "acme-odd-lib", "acme_odd_lib", "ACME.Odd--Lib"])
def test_a_package_counts_by_its_content_however_its_name_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme.odd-lib", {"acmeodd/__init__.py": "W = 1"})
    monkeypatch.syspath_prepend(tmp_path)
    before = of_distribution(name)
    assert before == of_distribution("acme.odd-lib")
    assert files_of_distribution(name) == [tmp_path / "acmeodd/__init__.py"]
    assert not is_imported(name)
    (tmp_path / "acmeodd/__init__.py").write_text("W = 2")
    assert of_distribution(name) != before


def test_modules_that_begin_with_an_underscore_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-bindings", {"_acme_bindings.py": "W = 1"})
    monkeypatch.syspath_prepend(tmp_path)
    before = of_distribution("acme-bindings")
    (tmp_path / "_acme_bindings.py").write_text("W = 2")
    assert of_distribution("acme-bindings") != before


EDITABLE = '{"url": "file:///work", "dir_info": {"editable": true}}'


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no modules, so its content would not count"),
        ({"../bin/acme": "a program"}, "has no modules, so its content would not count"),
        ({"acme_none/gone.py": ""}, "has no modules, so its content would not count"),
        (
            {"acme.pth": "sources\n", "acme_none-1.dist-info/direct_url.json": EDITABLE},
            "is an editable installation that does not tell where its modules are",
        ),
    ],
)
def test_a_package_of_which_no_file_counts_is_refused(
    files: Site, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of programs alone, one that only requires others, and one whose modules are gone."""
    site = tmp_path / "site"
    (site / "sources").mkdir(parents=True)
    install(site, "acme-none", files)
    (site / "acme_none/gone.py").unlink(missing_ok=True)
    monkeypatch.syspath_prepend(site)
    with pytest.raises(JobError, match=f"^identity.packages: 'acme-none' {said}"):
        of_distribution("acme-none")
