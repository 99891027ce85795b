"""Everything that `inference` uses of Ray without a public name. No other module of `inference` does so.

Each function says what it is for, so that you know what to look for when you move to another version. The test
`tests/unit/base/test_internals.py` fails on versions on which this module has not been seen to work.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import ray
from ray.data import DataContext
from ray.data._internal.cluster_autoscaler import ClusterAutoscaler
from ray.data._internal.execution import streaming_executor
from ray.data._internal.execution.interfaces import ExecutionResources
from ray.data._internal.stats import _StatsManager

SEEN_ON = {"ray": "2.60.0"}
"""The version with which this module has been seen to work."""


def mapped(dataset: Any, actor: type, *given: Any, **how: Any) -> Any:
    """A dataset that gives each block of another whole to an actor of this class. given: arguments of its constructor.

    `map_batches` is no alternative: with GPUs it requires a batch size, and joins suspects into blocks of that size.
    """
    return dataset.map_batches_internal(
        actor, fn_constructor_args=given, batch_size=None, batch_format="pyarrow", **how
    )


def bound_events_ahead(context: DataContext, most: int) -> None:
    """Limit the number of events by which an actor may be ahead of the driver.

    Without this a suspect's crumbs are held back; when the process dies, the last crumb that arrived names another row.
    """
    context._max_num_blocks_in_streaming_gen_buffer = most


class _Fixed(ClusterAutoscaler):
    """For a Ray that never gets more nodes, and on which nothing else runs: a pass has all of it."""

    def try_trigger_scaling(self) -> None:
        """Nothing: there is nobody to ask."""

    def on_executor_shutdown(self) -> None:
        """Nothing was asked for."""

    def get_total_resources(self) -> ExecutionResources:
        held: ExecutionResources = ExecutionResources.from_resource_dict(ray.cluster_resources())  # type: ignore[no-untyped-call]
        return held


def do_without_helpers() -> None:
    """Make the passes of this process do without two actors of Ray Data, for a run's own Ray.

    One asks for more nodes, and shares out nodes between datasets; the other reports a dataset's progress to Ray's
    dashboard. Each imports Ray Data in a process of its own, while the pool's actors import the model's framework, and
    no block goes to an actor before the first of them has answered. Without this, on two cores at load 10, the first
    event of a pass came after 10 to 31 s in place of 2 to 8 s, with 3 s more of CPU time.
    """
    executing: Any = streaming_executor
    executing.create_cluster_autoscaler = lambda *_, **__: _Fixed()
    manager: Any = _StatsManager
    manager.gen_dataset_id_from_stats_actor = staticmethod(lambda: uuid4().hex)
    for report in ("update_execution_metrics", "update_iteration_metrics", "register_dataset_to_stats_actor"):
        setattr(manager, report, staticmethod(lambda *_, **__: None))
