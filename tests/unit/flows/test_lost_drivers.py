"""What is said of the process that drives a run when it was ended."""

from __future__ import annotations

import pytest
import ray.exceptions

from nightjar.flows.cluster.tasks import how_lost


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (ray.exceptions.OutOfMemoryError("low"), "Ray ended it, because its node ran short of memory"),
        (ray.exceptions.NodeDiedError("gone"), "its node was lost"),
        (ray.exceptions.WorkerCrashedError(), "by a signal, or by the system because memory ran short"),
        (None, "Execution was cancelled"),
    ],
)
def test_the_end_of_the_driver_is_said_by_its_kind_with_what_to_do(cause: Exception | None, why: str) -> None:
    """Ray's own message names log files that nobody has."""
    said = how_lost(cause, "Execution was cancelled\nmore")
    assert said.startswith("the process that drives the run was ended: ")
    assert why in said
    assert "core-worker" not in said
    assert said.endswith("The same command goes on with what is missing")
