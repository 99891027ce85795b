"""Ray: passes over an actor pool with Ray Data, plain tasks beside them. The one owner of Ray in this package.

Workers import what they run, and nothing here that they do not need: of these modules only `passes` knows Ray Data.
"""
