"""Inside a worker's process: one shard from its first row to its receipt."""
