"""What this package uses of Ray's own that is not public: all of it, and nowhere else.

Each function says what it is for, so that whoever moves to another version knows what to look for there. The test
`tests/unit/test_internals.py` fails on a version on which none of this was seen to work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import DataContext

SEEN_ON = {"ray": "2.60.0"}
"""The version on which this file was seen to work."""


def mapped(blocks: Sequence[pa.Table], actor: type, *given: Any, **how: Any) -> Any:
    """A dataset: these blocks, each given whole to an actor of this class. given: what the actor is made of.

    Not `map_batches`: that demands a batch size where GPUs are asked for, and then joins suspects to blocks of so many
    rows. Not `from_arrow`: that asks a task for each block's size, and waits for ever where every CPU is taken.
    """
    return ray.data.from_blocks(list(blocks)).map_batches_internal(
        actor, fn_constructor_args=given, batch_size=None, batch_format="pyarrow", **how
    )


def bound_events_ahead(context: DataContext, most: int) -> None:
    """How many events an actor may be ahead of the driver.

    Without this a suspect's crumbs are held back: the process dies, and the last crumb that arrived names another row.
    """
    context._max_num_blocks_in_streaming_gen_buffer = most
