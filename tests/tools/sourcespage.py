"""The page of the docs with every source and its options: `python tests/tools/sourcespage.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

from nightjar.inference.input.sources.protocol import Source
from nightjar.inference.job.options import Option
from nightjar.inference.job.seams import SOURCES

_HEAD = """\
# Sources and their options

Every value of `input.format` besides your own `"module:Name"`, with the keys that `input.options` may have. An option
that is not in a format's table is an error, and so is a value of another type; options are part of the identity. This
page is made from the code: `make pages`. How files are found, cut into shards and read is told in
[input](input.md#formats).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, *(_section(name, module) for name, module in SOURCES.items())])


def _section(name: str, module: str) -> str:
    source: Source = import_module(module).SOURCE
    about = inspect.cleandoc(import_module(module).__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    names = ", ".join(f"`{suffix}`" for suffix in source.suffixes)
    told = f" Names: {names}." if names else ""
    needs = f" It needs `pip install 'nightjar-batch[{source.extra}]'`." if source.extra else ""
    lines = [f"## {name}", "", f"{about}{told}{needs}", ""]
    return "\n".join([*lines, *(_table(source.options) if source.options else ["It has no options."]), ""])


def _table(options: tuple[Option, ...]) -> Iterator[str]:
    yield "| `input.options` | value | default | |"
    yield "|---|---|---|---|"
    for each in options:
        yield f"| `{each.name}` | {each.write} | {each.default} | {each.about} |"


if __name__ == "__main__":
    print(page(), end="")
