"""The one owner of Ray in this package: what a cluster has room for, passes over an actor pool, tasks beside them.

Workers import what they run, and nothing here that they do not need: of these only `passes` knows Ray Data.
"""

TICK_S = 0.5
"""How often whoever waits for the cluster is told that nothing happened."""

NO_EVENT = 3
"""What goes without any event for so many times `retry.stall_s` is ended: reading, one micro-batch and writing may
each take that long, and workers end what takes longer."""
