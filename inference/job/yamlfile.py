"""Reads a YAML file safely: bounded in size, without duplicate keys, and with a sentence for each fault."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from nightjar.inference.errors import JobError

MAX_BYTES = 1 << 20
"""The largest job file, in bytes."""

_ADVICE = "; text with braces, brackets, `: ` or ` #` stands in quotes, and lines are indented by spaces"

_MAX_VALUES, _MAX_LEVELS = 100_000, 50
"""The most values and levels of a job file with its aliases expanded; ten lines of YAML can expand to fill the
memory."""


def read_yaml(path: Path, what: str = "job file") -> Any:
    """Read the content of a file. what: it is, for messages.

    Raises:
        JobError: it cannot be read, is too large, or is not YAML.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode()
    except FileNotFoundError:
        raise JobError(f"{path}: no such {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise JobError(f"{path}: is no {what}: it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise JobError(f"{path}: {_not_yaml(error)}") from error
    except RecursionError:
        raise JobError(f"{path}: not valid YAML: it is nested too deeply") from None


_BOOL, _TEXT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"
_WORDS = {"on", "off", "yes", "no"}
"""Words that PyYAML takes for true and false, and YAML since 1.2 for text; as keys they are text, as in `notify.on`."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys, and values that expand without bound."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _weigh(node, {})
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            # What PyYAML raises for 2026-02-30, which looks like a date, or for `!!int x`.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.60} is no {kind}; write text in quotes", node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == _BOOL and key_node.value.lower() in _WORDS:
                key_node.tag = _TEXT
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} must be text; write it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _weigh(node: yaml.Node, known: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """The number of values of a node with its aliases expanded, and their depth.

    Raises:
        ConstructorError: They are too many, too deep, or endless.
    """
    if node in known:
        return known[node]
    # Until the node is weighed, an alias to it from inside finds it too deep.
    known[node] = (0, _MAX_LEVELS)
    inner = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
    values, levels = 1, 0
    for child in inner if isinstance(node, yaml.CollectionNode) else ():
        more, depth = _weigh(child, known)
        values, levels = values + more, max(levels, depth)
    known[node] = values, levels + 1
    if values > _MAX_VALUES or levels + 1 > _MAX_LEVELS:
        most = f"{_MAX_VALUES:,} values" if values > _MAX_VALUES else f"{_MAX_LEVELS} levels"
        raise yaml.constructor.ConstructorError(
            None, None, f"with its aliases written out it has more than {most}", node.start_mark
        )
    return known[node]


def _not_yaml(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    # The faults that are found here say what to write; most of the parser's have one of a few causes.
    advice = "" if isinstance(error, yaml.constructor.ConstructorError) else _ADVICE
    return f"line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {error.problem}{advice}"
