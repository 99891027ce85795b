"""Notes the files that the user's modules and the job's options name, because reads by C code cannot be seen, and the
environment variables that the modules name, because Python raises no event for a read.

The search is static: it runs no code and costs nothing while the model scores. It finds literal paths, and files whose
literal name is that of a file directly in a folder that is named, too. It does not find a path with a computed part.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nightjar.inference.identity.code import texts_of
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.places import WIDE

_LONGEST = 1024
_MODULES = 2000
"""The most modules that are inspected."""

_JOINS = 5000
"""The most joined paths that are looked up for one module, so that a module with thousands of literals costs little."""

_STORES = re.compile(
    r"(s3a?|gs|gcs|az|abfss?|wasbs?|hf|hdfs|mongodb(\+srv)?|redis|postgres(ql)?(\+\w+)?|mysql(\+\w+)?)://"
)
_PLUMBING = {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "LANG", "TERM", "PWD", "HOSTNAME"}
_READERS = {"environ", "environb", "getenv", "getenvb"}


def note_names(notes: Notes, options: Iterable[Mapping[str, Any]]) -> None:
    """Note the existing files and the object stores that the options and the modules of the home folder name."""
    texts = filter(_may_be_path, (text for each in options for text in texts_of(each)))
    folders = [path for text in texts if (path := _noted(notes, text, "model.options"))]
    for module in sorted(Path(notes.places.home).rglob("*.py"))[:_MODULES]:
        _note_module(notes, module, folders)


def _note_module(notes: Notes, module: Path, folders: list[str]) -> None:
    """folders: of the options; the module may name files in them."""
    try:
        nodes = list(ast.walk(ast.parse(module.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):  # Python says so when it imports the module
        return
    name = os.path.relpath(module, notes.places.home)
    for variable, line in _variables(nodes):
        if variable not in _PLUMBING and variable not in notes.places.variables:
            notes.add("environment", variable, f"{name}:{line}")
    literals = {
        os.fsdecode(node.value): f"{name}:{node.lineno}"
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and _may_be_path(node.value)
    }
    # Not a set: its order differs from process to process, and only the first joined paths are looked up.
    named = dict.fromkeys(path for text, by in literals.items() if (path := _noted(notes, text, by)))
    for folder, (text, by) in islice(product([*folders, *named], literals.items()), _JOINS):
        path = os.path.normpath(f"{folder}/{text}")
        # A relative literal names the file of the copy.
        if path.startswith(f"{folder}/") and not notes.is_live(path) and os.path.isfile(path):  # noqa: PTH113 (text)
            notes.path("named", path, by)


def _variables(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """The environment variables that a module reads by literal names, as `os.environ["X"]` or `getenv("X")`."""
    found, own = [], set()
    for node in nodes:
        match node:
            case ast.Subscript(value=reader, slice=ast.Constant(value=str(key) | bytes(key)), ctx=use):
                if isinstance(use, ast.Store):
                    own.add(os.fsdecode(key))
            case ast.Compare(left=ast.Constant(value=str(key) | bytes(key)), comparators=[reader]):
                pass
            case (
                ast.Call(func=ast.Attribute(value=reader, attr="get" | "pop"), args=[ast.Constant(value=key), *_])
                | ast.Call(func=reader, args=[ast.Constant(value=key), *_])
            ) if isinstance(key, str | bytes):
                pass
            case _:
                continue
        if (reader.attr if isinstance(reader, ast.Attribute) else getattr(reader, "id", "")) in _READERS:
            found.append((os.fsdecode(key), node.lineno))
    return ((name, line) for name, line in found if name not in own)


def _noted(notes: Notes, text: str, by: str) -> str:
    """Note what one text names. Returns the folder that it names, if files in it may be named in parts; else ''."""
    if not ("/" in text or "." in text):
        return ""
    if _STORES.match(text):
        parts = urlsplit(text)
        # Without password and signature.
        notes.add("named", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", by)
        return ""
    path = os.path.normpath(os.path.join(notes.places.home, os.path.expanduser(text)))  # noqa: PTH111, PTH118 (text)
    notes.path("named", path, by)
    return path if path not in WIDE and os.path.isdir(path) else ""  # noqa: PTH112


def _may_be_path(text: str | bytes) -> bool:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return 0 < len(encoded) <= _LONGEST and b"\n" not in encoded and b"\0" not in encoded
