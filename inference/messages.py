"""Helpers for the texts of messages to people."""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, quote_plus

MESSAGE_CHARS = 600
"""The longest error text in an event, so that no event is larger than 2 KB."""

TRACEBACK_CHARS = 8192
"""The longest traceback of the user's code that is kept, in characters; its last lines say what happened."""

_FRAMES = 40
_LIBRARIES = (str(Path(__file__).parent) + "/", sysconfig.get_path("stdlib") + "/", "<")
_COPY = re.compile(r"^.*/processes/[^/]+/job/")
"""Where `identity.unpacking` puts the code of a process."""

INSTALLED = ("/site-packages/", "/dist-packages/")
"""Parts of the paths of installed packages."""


def raised_at(error: BaseException, *, installed: bool = False) -> str:
    """Where the user's code raised, as " (predict.py:12, in score)": the innermost frame outside of libraries; ''
    without one. The file is named as in the job's folder, of which each process has a copy. installed: the user's code
    may be an installed package.
    """
    found = library = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not file.startswith(_LIBRARIES):
            at = _at(file, line) + (f", in {name}" if not name.startswith("<") else "")
            found, library = (found, at) if any(part in file for part in INSTALLED) else (at, library)
    if isinstance(error, SyntaxError) and error.filename:
        found = _at(error.filename, error.lineno or 0)
    found = found or (library if installed else "")
    return f" ({found})" if found else ""


def _at(file: str, line: int) -> str:
    return f"{_COPY.sub('', file).removeprefix(os.getcwd() + '/')}:{line}"  # noqa: PTH109 (text, as the name is)


def traceback_of(error: BaseException, *, skip: int = 0) -> str:
    """The last whole lines of the traceback that fit into the limit. skip: frames at its beginning to leave out."""
    frames = error.__traceback__
    for _ in range(skip):
        frames = frames.tb_next if frames is not None else None
    text = utf8("".join(traceback.format_exception(type(error), error, frames, limit=-_FRAMES)))
    if len(text) <= TRACEBACK_CHARS:
        return text
    text = text[-TRACEBACK_CHARS:]
    return text[text.find("\n") + 1 :]


def counted(number: int, thing: str) -> str:
    """A number of things: 1 shard, 2 shards."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def counted_of(number: int, total: int, thing: str) -> str:
    """So many of all things, with the verb that they have: 1 of 1 shard has, 2 of 8 shards have."""
    return f"{number:,} of {counted(total, thing)} {'has' if number == 1 else 'have'}"


def listed(words: Iterable[str], last: str) -> str:
    """Words as in a sentence: `a`, `a or b`, `a, b or c`. last: the word before the last one."""
    *most, end = words
    return f"{', '.join(most)} {last} {end}" if most else end


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean 'x'?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {prefix + close[0]!r}?" if close else ""


def nearest_or_all(word: str, known: Sequence[str]) -> str:
    """As `nearest`; when no known word is near, the first 30 of them."""
    return nearest(word, known) or f"; it has {', '.join(known[:30])}"


HIDDEN = "***"

SHORTEST = 6
"""The shortest secret that is hidden, in characters; shorter ones occur in too many ordinary words."""

_hidden: list[str] = []
"""What this process must not tell anybody, the longest first: one secret may contain another."""


def hide(secrets: Iterable[str]) -> None:
    """Leave these out of all texts that `utf8` and `clip` make from now on: errors of the user's code may have them."""
    forms = (form for secret in secrets if len(secret) >= SHORTEST for form in forms_of(secret))
    _hidden.extend(form for form in forms if form not in _hidden)
    _hidden.sort(key=len, reverse=True)


def forms_of(value: str) -> Iterator[str]:
    """A secret as programs write it: itself, as JSON and `repr` have it, in a URL, and the base64 of a text with it."""
    yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    plain = value.encode(errors="surrogateescape")
    yield from (quote(plain), quote(plain, safe=""), quote_plus(plain))
    for shift in range(3):  # the secret may begin anywhere in the encoded text
        encoded = base64.b64encode(b"\0" * shift + plain).decode()
        inner = encoded[4 * (shift > 0) : -4]
        if len(inner) >= SHORTEST:
            yield from (inner, inner.replace("+", "-").replace("/", "_"))


def _without_secrets(text: str) -> str:
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    return text


def install(extra: str) -> str:
    """How to install an extra of pyproject.toml."""
    return f"pip install 'nightjar-batch[{extra}]'"


def utf8(text: str) -> str:
    r"""The text with lone surrogates written as `\ud83d`. Arrow takes none, and a row's error must not fail its
    shard.
    """
    return _without_secrets(text).encode(errors="backslashreplace").decode()


def clip(text: str) -> str:
    """Shorten an error text to `MESSAGE_CHARS` by leaving out its middle."""
    text = _without_secrets(text.strip())
    if len(text) <= MESSAGE_CHARS:
        return text
    half = MESSAGE_CHARS // 2 - 3
    return f"{text[:half]} … {text[-half:]}"
