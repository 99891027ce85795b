"""Which files are the input, what is in them, and the shards they are cut into."""
