"""Text from outside (file names, messages, values of rows) where it is shown: said as it is, never obeyed.

A terminal obeys control characters; Prefect's pages take summaries, descriptions and cells of tables for Markdown.
"""

from __future__ import annotations

import re
import unicodedata

_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: control and format characters (ANSI escapes, changes of direction), separators of lines."""

_MARKS = re.compile(r"[\\`*\[\]<>&|~]")
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Inside a word an underscore is none: most paths stay as they can be copied."""

_FIRST = re.compile(r"^(\d{0,9})([-+.)](?=\s|$)|-(?=-)|#(?=#*(?:\s|$)))")
"""What makes a list, a heading or a rule of a line that begins with it."""


def visible(text: str) -> str:
    r"""Control characters as `\x1b`; breaks of lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _OBEYED:
        return character
    return character.encode("unicode_escape").decode()


def line(text: str) -> str:
    """The same on one line, so that nothing in it looks like a line of ours."""
    return visible(" ".join(text.split()) if "\n" in text or "\t" in text else text)


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: no links, images, HTML, emphasis or lists; also inside a table."""
    escaped = _EMPHASIS.sub(r"\\_", _MARKS.sub(r"\\\g<0>", line(text).strip()))
    return _FIRST.sub(r"\g<1>\\\g<2>", escaped)


def code(text: str, *, cell: bool = False) -> str:
    """The same as Markdown's code, which can be copied from the page. cell: inside a table, where `|` ends it."""
    shown = line(text).replace("|", r"\|") if cell else line(text)
    ticks = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"
