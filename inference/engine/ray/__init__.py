"""Ray: passes over an actor pool with Ray Data, and plain tasks. In `inference` only this room uses Ray.

Workers import only what they run: of these modules only `passes` imports Ray Data.
"""
