"""Where an error of the user's own code is said to be: in the file of the job's folder, not in the copy that runs."""

from __future__ import annotations

from pathlib import Path

from nightjar.inference.errors import raised


def error_of(file: Path, code: str) -> Exception:
    """What the code raises, as if it stood in that file."""
    try:
        exec(compile(code, str(file), "exec"), {})
    except Exception as error:  # noqa: BLE001 (whatever it raises)
        assert error.__traceback__
        return error.with_traceback(error.__traceback__.tb_next)  # this file is no library
    raise AssertionError(f"nothing was raised: {code}")


def test_the_line_of_a_copy_is_that_of_the_users_file(tmp_path: Path) -> None:
    """The innermost such line is said, not that of a library below it."""
    for copy in "12":
        error = error_of(tmp_path / "processes" / copy / "job" / "lib" / "gate.py", "\n\nimport json\njson.loads('{')")
        assert raised(error) == (
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "(lib/gate.py:4)"
        )


def test_the_innermost_line_of_the_users_is_said_with_its_function(tmp_path: Path) -> None:
    error = error_of(tmp_path / "processes/1/job/gate.py", "def inner():\n    return 1 / 0\n\n\ninner()")
    assert raised(error) == "ZeroDivisionError: division by zero (gate.py:2, in inner)"


def test_of_installed_code_the_last_line_is_said_as_it_is(tmp_path: Path) -> None:
    """That of the library that raised, not of the one that called it; a line of the user's own goes before both."""
    inner, outer = tmp_path / "site-packages" / "inner.py", tmp_path / "site-packages" / "gates.py"
    code = f"exec(compile('def judge():\\n    raise KeyError(1)', {str(inner)!r}, 'exec'))\n\n\njudge()"
    assert raised(error_of(outer, code), installed=True) == f"KeyError: 1 ({inner}:2, in judge)"
    assert raised(error_of(outer, code)) == "KeyError: 1"
    assert raised(error_of(tmp_path / "gates.py", code), installed=True) == f"KeyError: 1 ({tmp_path}/gates.py:4)"


def test_a_file_that_is_no_python_is_named_itself(tmp_path: Path) -> None:
    """The error comes from whoever imports it."""
    error = error_of(tmp_path / "processes/1/job/gate.py", "x = 1\nif x\n    pass")
    assert raised(error).endswith(" (gate.py:2)")


def test_an_error_without_a_place_is_said_without_one() -> None:
    assert raised(ValueError("so")) == "ValueError: so"
    # An error of Python's grammar that a library raises names no file.
    assert raised(SyntaxError("so")) == "SyntaxError: so"
