"""Ray: passes over an actor pool with Ray Data, and plain tasks. In `inference` only this room uses Ray.

Workers import only what they run: of these modules only `passes` imports Ray Data.
"""

from __future__ import annotations

import sys

ALONE = "NIGHTJAR_ALONE"
"""The environment variable of the processes of a run's own Ray, which scores one night at a time."""


def is_connected() -> bool:
    """Whether this process is connected to a cluster. It does not import Ray."""
    # prefect-ray imports Ray lazily: "ray" alone may be in `sys.modules` with nothing of it loaded.
    if "ray._raylet" not in sys.modules:
        return False
    import ray

    return bool(ray.is_initialized())
