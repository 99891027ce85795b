"""Which rows go through a model together: each of them once, within the budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lazily import lazily

textmodel = "nightjar.inference.predictors.transformers.textmodel"
Tokens, packed = lazily(textmodel, "Tokens"), lazily(textmodel, "packed")


def calls_of(lengths: list[int], tokens: int | None) -> list[list[int]]:
    """The rows of each call."""
    return [rows.tolist() for rows in packed(np.array(lengths, np.int64), tokens)]


@given(lengths=st.lists(st.integers(1, 60), max_size=80), tokens=st.integers(1, 4000) | st.none())
def test_each_row_is_in_one_call_and_calls_keep_to_the_budget(lengths: list[int], tokens: int | None) -> None:
    calls = calls_of(lengths, tokens)
    assert sorted(row for rows in calls for row in rows) == list(range(len(lengths)))
    for rows in calls:
        longest = lengths[rows[0]]
        assert longest == max(lengths[row] for row in rows)
        assert tokens is None or len(rows) == 1 or len(rows) * longest <= tokens
        assert tokens is None or len(rows) * longest - sum(lengths[row] for row in rows) <= tokens // 64
    assert [lengths[row] for rows in calls for row in rows] == sorted(lengths, reverse=True)
    assert tokens is not None or len(calls) <= 1


def test_texts_are_padded_at_their_ends_up_to_the_longest_of_them() -> None:
    ids = [np.array(each, np.int32) for each in ([7, 8, 9], [4], [5])]
    types = [np.array(each, np.int8) for each in ([0, 0, 1], [0], [1])]
    tokens = Tokens(np.array([3, 1, 1]), ids, types, [])
    found = tokens.padded(np.array([2, 0]), pad=1)
    assert {name: values.tolist() for name, values in found.items()} == {
        "input_ids": [[5, 1, 1], [7, 8, 9]],
        "attention_mask": [[1, 0, 0], [1, 1, 1]],
        "token_type_ids": [[1, 0, 0], [0, 0, 1]],
    }
    assert all(values.dtype == np.int64 for values in found.values())
    alone = Tokens(tokens.lengths, ids, [], []).padded(np.array([1]), pad=1)
    assert {name: values.tolist() for name, values in alone.items()} == {"input_ids": [[4]], "attention_mask": [[1]]}


def test_a_call_that_would_be_padded_much_ends_sooner() -> None:
    """Of 640 tokens at most 10 may be padding, although each call has room for more rows."""
    assert calls_of([90, 100, 94, 96, 3], 640) == [[1, 3, 2], [0], [4]]
    assert calls_of([90, 100, 94, 95, 3], 640) == [[1, 3], [2, 0], [4]]
    assert calls_of([9, 100, 4], None) == [[1, 0, 2]], "unless a call is exactly the micro-batch"
