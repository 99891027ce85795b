"""Reads a password from the file beside it."""

from pathlib import Path

token = int(Path(__file__).with_name(".env").read_text().partition("=")[2])


def score(batch):
    return batch["id"] + token
