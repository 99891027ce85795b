"""Where an error of the user's own code is said to be: in his file, not in the copy that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar.inference.job.model import Job
from nightjar.inference.scoring.asidecode import located
from support import Lake


@pytest.fixture
def job(lake: Lake) -> Job:
    lake.ready()
    return lake.request().job


def raised(file: Path, code: str) -> Exception:
    """What the code raises, as if it stood in that file."""
    try:
        exec(compile(code, str(file), "exec"), {})
    except Exception as error:  # noqa: BLE001 (whatever it raises)
        return error
    raise AssertionError(f"nothing was raised: {code}")


def test_the_line_of_a_copy_is_that_of_the_users_file(job: Job, tmp_path: Path) -> None:
    """In whichever of the folders it lies; the innermost such line is said, not that of a library below it."""
    copies = tmp_path / "copy", tmp_path / "beside"
    for folder in copies:
        error = raised(folder / "lib" / "gate.py", "\n\nimport json\njson.loads('{')")
        assert located("checks[0]", "lib.gate:judge", error, job, copies) == (
            "checks[0]: lib.gate:judge failed with JSONDecodeError: "
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1), "
            f"in {Path(job.folder, 'lib', 'gate.py')}, line 4"
        )


def test_the_innermost_line_of_the_users_is_said(job: Job, tmp_path: Path) -> None:
    error = raised(tmp_path / "copy" / "gate.py", "def inner():\n    return 1 / 0\n\n\ninner()")
    said = located("checks[0]", "gate:judge", error, job, (tmp_path / "copy",))
    assert said.endswith(f"ZeroDivisionError: division by zero, in {Path(job.folder, 'gate.py')}, line 2")


def test_of_code_that_lies_elsewhere_the_last_line_is_said_as_it_is(job: Job, tmp_path: Path) -> None:
    """That of the library that raised, not of the one that called it."""
    inner = tmp_path / "site-packages" / "inner.py"
    code = f"exec(compile('def judge():\\n    raise KeyError(1)', {str(inner)!r}, 'exec'))\n\n\njudge()"
    error = raised(tmp_path / "site-packages" / "gates.py", code)
    said = located("accumulators.lift", "gates:Lift", error, job, (tmp_path / "copy",))
    assert said == f"accumulators.lift: gates:Lift failed with KeyError: 1, in {inner}, line 2"


def test_a_file_that_is_no_python_is_named_itself(job: Job, tmp_path: Path) -> None:
    """The error comes from whoever imports it."""
    error = raised(tmp_path / "copy" / "gate.py", "x = 1\nif x\n    pass")
    said = located("checks[0]", "gate:judge", error, job, (tmp_path / "copy",))
    assert said.endswith(f", in {Path(job.folder, 'gate.py')}, line 2")


def test_an_error_without_a_place_is_said_without_one(job: Job, tmp_path: Path) -> None:
    assert located("checks[0]", "gate:judge", ValueError("so"), job, (tmp_path,)) == (
        "checks[0]: gate:judge failed with ValueError: so"
    )
    # An error of Python's grammar that a library raises names no file.
    assert located("checks[0]", "gate:judge", SyntaxError("so"), job, (tmp_path,)) == (
        "checks[0]: gate:judge failed with SyntaxError: so"
    )
