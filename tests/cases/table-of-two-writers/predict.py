"""Doubles the id."""


def score(batch):
    """One output."""
    return {"score": batch["id"] * 2.0}
