"""Doubles x."""


def score(batch):
    """One output."""
    return {"score": batch["x"] * 2}
