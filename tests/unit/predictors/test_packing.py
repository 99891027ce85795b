"""Which rows go through a model together: each of them once, within the budget, and what lack of memory changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.predictors.transformers.textmodel import Packer, Tokens


def packed(lengths: list[int], packer: Packer) -> list[list[int]]:
    """The rows of each call that succeeded."""
    found: list[list[int]] = []
    packer.run(np.array(lengths, np.int64), lambda rows: found.append(rows.tolist()))
    return found


@given(lengths=st.lists(st.integers(1, 60), max_size=80), tokens=st.integers(1, 4000) | st.none())
def test_each_row_is_in_one_call_and_calls_keep_to_the_budget(lengths: list[int], tokens: int | None) -> None:
    calls = packed(lengths, Packer(tokens))
    assert sorted(row for rows in calls for row in rows) == list(range(len(lengths)))
    for rows in calls:
        longest = lengths[rows[0]]
        assert longest == max(lengths[row] for row in rows)
        assert tokens is None or len(rows) == 1 or len(rows) * longest <= tokens
        assert tokens is None or len(rows) * longest - sum(lengths[row] for row in rows) <= tokens // 64
    assert [lengths[row] for rows in calls for row in rows] == sorted(lengths, reverse=True)
    assert tokens is not None or len(calls) <= 1


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80),
    tokens=st.integers(1, 5000) | st.none(),
    fits=st.integers(60, 400),
    lack=st.sampled_from([MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]),
)
def test_where_each_row_fits_alone_lack_of_memory_loses_none_and_is_learnt_once(
    lengths: list[int], tokens: int | None, fits: int, lack: Exception
) -> None:
    """Whatever type the framework has for it."""
    packer = Packer(tokens)
    for again in (False, True):
        done: list[int] = []
        refused = 0

        def call(rows: np.ndarray, done: list[int] = done) -> None:
            nonlocal refused
            if len(rows) * max(lengths[row] for row in rows) > fits:
                refused += 1
                raise lack
            done += rows.tolist()

        packer.run(np.array(lengths), call)
        assert sorted(done) == list(range(len(lengths)))
        assert refused <= (0 if again else 8)
    assert packer.alone is None
    assert packer.forced in {0, packer.tokens}


def test_a_row_that_fits_nowhere_is_raised_and_what_was_learnt_of_it_is_little() -> None:
    """The budget is as before; only rows as long as this one go alone from now on."""
    packer = Packer(100)
    lengths = [25, 50, 50, 25]
    calls: list[list[int]] = []

    def call(rows: np.ndarray) -> None:
        calls.append(rows.tolist())
        if 1 in rows:
            raise MemoryError

    for _ in range(2):
        with pytest.raises(MemoryError):
            packer.run(np.array(lengths), call)
    assert calls == [[1, 2], [1], [1]]
    assert (packer.tokens, packer.forced, packer.alone) == (100, 0, 50)
    assert packed([49, 60, 49, 51], packer) == [[1], [3], [0, 2]]


def test_another_error_than_of_memory_is_raised_at_once() -> None:
    packer = Packer(100)

    def call(_: np.ndarray) -> None:
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        packer.run(np.array([3, 4]), call)
    assert (packer.tokens, packer.alone) == (100, None)


def test_texts_are_padded_at_their_ends_up_to_the_longest_of_them() -> None:
    tokens = Tokens(np.array([7, 8, 9, 4, 5], np.int32), np.array([0, 0, 1, 0, 1], np.int8), np.array([0, 3, 4, 5]))
    found = tokens.padded(np.array([2, 0]), pad=1)
    assert {name: values.tolist() for name, values in found.items()} == {
        "input_ids": [[5, 1, 1], [7, 8, 9]],
        "attention_mask": [[1, 0, 0], [1, 1, 1]],
        "token_type_ids": [[1, 0, 0], [0, 0, 1]],
    }
    assert all(values.dtype == np.int64 for values in found.values())
    alone = Tokens(tokens.ids, None, tokens.starts).padded(np.array([1]), pad=1)
    assert {name: values.tolist() for name, values in alone.items()} == {"input_ids": [[4]], "attention_mask": [[1]]}


def test_a_call_that_would_be_padded_much_ends_sooner() -> None:
    """Of 640 tokens at most 10 may be padding, although each call has room for more rows."""
    assert packed([90, 100, 94, 96, 3], Packer(640)) == [[1, 3, 2], [0], [4]]
    assert packed([90, 100, 94, 95, 3], Packer(640)) == [[1, 3], [2, 0], [4]]
    assert packed([9, 100, 4], Packer(None)) == [[1, 0, 2]], "unless a call is exactly the micro-batch"
