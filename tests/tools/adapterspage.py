"""The page of the docs with every adapter and its options: `python tests/tools/adapterspage.py > docs/adapters.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from nightjar.inference.job.options import Option
from nightjar.inference.job.seams import FRAMEWORKS, Framework
from nightjar.inference.predictors.adapter import Adapter

_HEAD = """\
# Adapters and their options

Every value of `model.uses` besides your own `"module:Name"`, with the keys that `model.options` may have; those of
language models stand in `model` itself. An option that is not in an adapter's table is an error, and so is a value of
another type. This page is made from the code: `make pages`. What each adapter does with columns, outputs
and files is told in [models](models.md).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, *(_section(uses, framework) for uses, framework in FRAMEWORKS.items())])


def _section(uses: str, framework: Framework) -> str:
    adapter: Adapter = framework.adapter()
    # Where a module has several adapters, each says what it is for.
    docs = adapter if ":" in framework.module else inspect.getmodule(type(adapter))
    about = inspect.cleandoc(docs.__doc__ or "").partition("\n\n")[0].partition("`: ")[2].replace("\n", " ")
    needs = f" It needs `pip install 'nightjar-batch[{adapter.extra}]'`." if adapter.extra else ""
    path = f" `model.path` names {framework.model}." if framework.model else ""
    lines = [f"## {uses}", "", f"{about[:1].upper()}{about[1:]}{path}{needs}", ""]
    key = "model" if framework.own_keys else "model.options"
    return "\n".join([*lines, *_table(adapter.options or (), key), ""])


def _table(options: tuple[Option, ...], key: str) -> Iterator[str]:
    yield f"| `{key}` | value | default | |"
    yield "|---|---|---|---|"
    for each in options:
        yield f"| `{each.name}` | {each.write} | {each.default} | {each.about} |"
        for inner in each.keys:
            yield f"| `{each.name}.{inner.name}` | {inner.write} | {inner.default} | {inner.about} |"


if __name__ == "__main__":
    print(page(), end="")
