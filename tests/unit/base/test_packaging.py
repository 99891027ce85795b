"""The folders stand at the top; what is installed is `nightjar.flows` and `nightjar.inference`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import ROOT, Lake

PACKED = {".py", ".typed", ".html", ".css"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the project's wheel was installed, without its dependencies."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    # Built from a copy: setuptools leaves a build folder behind, whose old modules would be packed again.
    for name in ("flows", "inference"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, cwd=folder)
    return folder


def test_files_of_tests_have_names_of_their_own() -> None:
    """Of two files of one name in two folders only one is collected, which only a whole run says."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_wheel_holds_both_packages_with_their_types(installed: Path) -> None:
    """Every module and template of `flows/` and `inference/` is there, with `py.typed`; nothing at the top level."""
    for package in ("flows", "inference"):
        files = (path for path in (ROOT / package).rglob("*") if path.suffix in PACKED)
        source = {str(path.relative_to(ROOT / package)) for path in files}
        there = {
            str(path.relative_to(installed / "nightjar" / package))
            for path in (installed / "nightjar" / package).rglob("*")
            if path.suffix in PACKED
        }
        assert there == source
    assert not (installed / "flows").exists()
    assert not (installed / "inference").exists()


def test_the_wheel_imports_without_the_checkout(installed: Path) -> None:
    """Installed somewhere else, the packages are found there and not in the checkout."""
    program = "import nightjar.flows.cli.main, nightjar.inference.run.scoring as r; print(r.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(str(installed))


@pytest.mark.system
def test_a_night_without_a_framework_needs_no_torch(lake: Lake, tmp_path: Path) -> None:
    """torch is an extra: it takes gigabytes. A job that needs torch says what to install."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    lake.write_files(files=1)
    lake.write_model()
    lake.write_job()

    def nightjar(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nightjar.flows.cli.main", *words]
        env = {**os.environ, "PYTHONPATH": str(hidden)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = nightjar("run", str(lake.job_path), "--engine", "local")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(lake.published()) == 2000
    lake.write_job(model__options={"batch_format": "torch"})
    done = nightjar("run", str(lake.job_path), "--engine", "local")
    assert done.returncode != 0
    assert "install it: pip install 'nightjar-batch[torch]'" in " ".join(done.stderr.split())
