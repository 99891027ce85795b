"""Keeps what workers print, with the run."""
