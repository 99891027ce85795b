"""Sentences with numbers are right for one thing, too."""

from __future__ import annotations

import pytest

from nightjar.inference.messages import counted_of


@pytest.mark.parametrize(
    ("number", "total", "said"),
    [
        (1, 1, "1 of 1 shard has"),
        (1, 8, "1 of 8 shards has"),
        (2, 8, "2 of 8 shards have"),
        (1500, 2000, "1,500 of 2,000 shards have"),
    ],
)
def test_some_of_all_things_have_their_verb(number: int, total: int, said: str) -> None:
    assert counted_of(number, total, "shard") == said
