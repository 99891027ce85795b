"""Everything that `inference` uses of Ray without a public name. No other module of `inference` does so.

Each function says what it is for, so that you know what to look for when you move to another version. The test
`tests/unit/test_internals.py` fails on versions on which this module has not been seen to work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import DataContext

SEEN_ON = {"ray": "2.60.0"}
"""The version with which this module has been seen to work."""


def from_blocks(blocks: Sequence[pa.Table]) -> Any:
    """A dataset of these blocks.

    `from_arrow` is no alternative: it runs a task for each block's size, and waits for ever if every CPU is taken.
    """
    return ray.data.from_blocks(list(blocks))


def mapped(dataset: Any, actor: type, *given: Any, **how: Any) -> Any:
    """A dataset that gives each block of another whole to an actor of this class. given: arguments of its constructor.

    `map_batches` is no alternative: with GPUs it requires a batch size, and joins suspects into blocks of that size.
    """
    return dataset.map_batches_internal(
        actor, fn_constructor_args=given, batch_size=None, batch_format="pyarrow", **how
    )


def mapped_by_tasks(dataset: Any, function: Callable[..., Any], *given: Any, **how: Any) -> Any:
    """As `mapped`, with a task for each block. given: arguments of the function, after the block."""
    return dataset.map_batches_internal(function, fn_args=given, batch_size=None, batch_format="pyarrow", **how)


def bound_events_ahead(context: DataContext, most: int) -> None:
    """Limit the number of events by which an actor may be ahead of the driver.

    Without this a suspect's crumbs are held back; when the process dies, the last crumb that arrived names another row.
    """
    context._max_num_blocks_in_streaming_gen_buffer = most
