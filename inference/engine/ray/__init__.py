"""Ray: passes over an actor pool with Ray Data, and plain tasks. In `inference` only this room uses Ray.

Workers import only what they run: of these modules only `passes` imports Ray Data.
"""

ALONE = "NIGHTJAR_ALONE"
"""The environment variable of the processes of a run's own Ray, which scores one night at a time."""
