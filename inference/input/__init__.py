"""Finds the input's files, describes them, and cuts them into shards."""
