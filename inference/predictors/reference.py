"""The page of the docs with every adapter and its options: `python -m nightjar.inference.predictors.reference`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

from nightjar.inference.job.options import Option
from nightjar.inference.job.seams import FRAMEWORKS, Framework
from nightjar.inference.predictors.adapter import Adapter

_HEAD = """\
# Adapters and their options

Every value of `model.uses` besides your own `"module:Name"`, with the keys that `model.options` may have. An option
that is not in an adapter's table is an error, and so is a value of another type. This page is made from the code:
`python -m nightjar.inference.predictors.reference > docs/adapters.md`. What each adapter does with columns, outputs and
files is told in [the job file](job-file.md).
"""

_WEIGHTS = """\
## Large weights

A model's files are fetched once per node. Files that are too large to be copied (see "A snapshot" in
[the job file](job-file.md)) are one file for all actors of a node. Where the adapter can, it maps that file into memory
in place of reading it: then all actors use the same pages, and four actors hold the weights once. What is computed is
the same. This is so on the CPU; a GPU has its own memory.

| model | weights in four actors |
|---|---|
| torch: exported program, TorchScript, state dict, safetensors | shared |
| torch with `dtype`, or weights of another type than the module's | each has its own, converted |
| models in folders: safetensors of the type that `dtype` names, by default float32 | shared |
| the same, of another type | each has its own, converted |
| sklearn: joblib, not compressed | arrays are shared, trees are not |
| sklearn: skops | each has its own |
| onnx: weights in files beside the model, with `shared: true` | shared |
| onnx else; keras, lightgbm, xgboost, catboost | each has its own |

`make bench-weights` measures it: four processes that do what an actor does, with random weights of 500 MB, after all
have scored. In MB, on 2026-11-23, with torch 2.13.0, onnxruntime 1.32.0 and transformers 5.17.0:

| model | RSS of each | PSS of each | private of each | PSS of four together | PSS of one alone |
|---|--:|--:|--:|--:|--:|
| torch: exported program | 984 | 491 | 342 | 1,962 | 894 |
| torch: safetensors | 875 | 382 | 234 | 1,524 | 817 |
| torch: state dict | 876 | 391 | 237 | 1,560 | 816 |
| torch: TorchScript | 898 | 407 | 256 | 1,628 | 847 |
| embed: safetensors | 1,106 | 592 | 435 | 2,367 | 1,020 |
| keras: .keras | 1,076 | 932 | 900 | 3,724 | 978 |
| onnx: one file | 696 | 620 | 604 | 2,482 | 644 |
| onnx: weights in a file beside it | 695 | 610 | 602 | 2,442 | 632 |
| onnx: the same, with `shared: true` | 693 | 238 | 100 | 953 | 631 |

RSS is the resident set size, with all pages that a process shares. PSS is the proportional one, in which a page that
four processes share counts as a quarter for each. Private are the pages of one process alone: mostly what the libraries
take, and a copy of the weights where there is one. Joblib was measured in one process; skops files and the libraries of
trees were not measured, but their loaders build their own arrays. A night of four actors on Ray with the same exported
program reported `1,053 MB in the largest of 4 workers; 2,145 MB together`.

A local file that is read where it lies must not be written to while a run uses it. If it is, no part is written from
then on, and the run ends and says so. If it is cut shorter, the system ends the process that reads the missing pages.
To replace it, write a new file and rename it: the old one stays in memory for as long as it is used. The run notices
that, too, and ends.
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join([_HEAD, *(_section(uses, framework) for uses, framework in FRAMEWORKS.items()), _WEIGHTS])


def _section(uses: str, framework: Framework) -> str:
    module = import_module(framework.module)
    adapter: Adapter = module.ADAPTER
    about = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0].partition("`: ")[2].replace("\n", " ")
    needs = f" It needs `pip install 'nightjar-batch[{adapter.extra}]'`." if adapter.extra else ""
    lines = [f"## {uses}", "", f"{about[:1].upper()}{about[1:]} `model.path` names {framework.model}.{needs}", ""]
    return "\n".join([*lines, *_table(adapter.options or ()), ""])


def _table(options: tuple[Option, ...]) -> Iterator[str]:
    yield "| `model.options` | value | default | |"
    yield "|---|---|---|---|"
    for each in options:
        yield f"| `{each.name}` | {each.write} | {each.default} | {each.about} |"


if __name__ == "__main__":
    print(page(), end="")
