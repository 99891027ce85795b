"""Escapes text from outside (file names, messages, values of rows), so that it is shown and has no effect.

A terminal interprets control characters; Prefect's pages render summaries, descriptions and cells of tables as
Markdown.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any
from urllib.parse import quote

_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: control and format characters (ANSI escapes, changes of direction), separators of lines."""

_MARKS = re.compile(r"[\\`*\[\]<>&|~]")
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Underscores that Markdown treats as emphasis. Those inside words are not, so most paths stay as they are."""

_FIRST = re.compile(r"^(\d{0,9})([-+.)](?=\s|$)|-(?=-)|#(?=#*(?:\s|$)))")
"""Beginnings that make a line a list, a heading or a rule."""

_CELL = 300
"""The most characters of a cell that are shown."""


def visible(text: str) -> str:
    r"""The text with control characters written as `\x1b`; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text.replace("\r\n", "\n")))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _OBEYED:
        return character
    return character.encode("unicode_escape").decode()


def line(text: str) -> str:
    """The same on one line, so that no part of it looks like a line of ours."""
    return visible(" ".join(text.split()) if "\n" in text or "\t" in text else text)


def markdown(text: str) -> str:
    """Escape text so that Markdown shows it unchanged: no links, images, HTML, emphasis or lists; also inside a
    table.
    """
    escaped = _EMPHASIS.sub(r"\\_", _MARKS.sub(r"\\\g<0>", line(text).strip()))
    return _FIRST.sub(r"\g<1>\\\g<2>", escaped)


def code(text: str, *, cell: bool = False) -> str:
    """The text as Markdown code, which can be copied from the page. cell: for a table, where `|` would end the cell."""
    shown = line(text).replace("|", r"\|") if cell else line(text)
    ticks = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def address(uri: str) -> str:
    """A URI as the target of a link."""
    return quote(uri if "://" in uri else f"file://{uri}", safe="/:")


def cell(value: Any) -> Any:
    """A value for a cell of a table: escaped for Markdown, and not too long."""
    if isinstance(value, tuple):
        text = " ⏎ ".join(value)  # the end of what was printed says most
        return markdown(text if len(text) <= _CELL else "…" + text[-_CELL:])
    if not isinstance(value, str):
        return value
    return markdown(value if len(value) <= _CELL else value[:_CELL] + "…")
