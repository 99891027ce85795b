"""Scores shards inside a worker's process: each from its first row to its receipt."""
