"""The probabilities of given answers, from those of the tokens where they part."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.predictors.language.vllm import Choices, choices

END = 99


Said = dict[tuple[int, ...], dict[int, float]]


def found(known: Choices, of: Said) -> Said:
    """What a model says: by path, the probability of each token."""
    return {path: {token: math.log(of[path][token]) for token in tokens} for path, tokens in known.forks.items()}


def test_answers_that_part_at_once_are_asked_for_once() -> None:
    known = choices([[1, 5, 6], [2]], END)
    assert known.forks == {(): (1, 2)}
    assert known.probabilities(found(known, {(): {1: 0.1, 2: 0.3}})) == pytest.approx([0.25, 0.75])


def test_an_answer_that_another_one_goes_on_from_ends_with_the_token_that_ends_it() -> None:
    """`good`, `bad` and `badly`: after `bad` either the end follows or `ly`."""
    known = choices([[1], [2], [2, 3]], END)
    assert known.forks == {(): (1, 2), (2,): (END, 3)}
    said = found(known, {(): {1: 0.2, 2: 0.6}, (2,): {END: 0.3, 3: 0.1}})
    assert known.probabilities(said) == pytest.approx([0.25, 0.75 * 0.75, 0.75 * 0.25])


def test_answers_with_the_same_tokens_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="two answers have the same tokens"):
        choices([[1, 2], [1, 2]], END)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=8, unique=True),
    st.randoms(use_true_random=False),
)
def test_the_probabilities_are_those_of_a_draw_that_may_take_only_these_answers(
    answers: list[tuple[int, ...]], random: object
) -> None:
    """Their sum is 1, and each is the product of what a draw takes at each token."""
    known = choices(answers, END)
    of = {path: {token: random.uniform(0.01, 1.0) for token in tokens} for path, tokens in known.forks.items()}  # type: ignore[attr-defined]
    probabilities = known.probabilities(found(known, of))
    assert sum(probabilities) == pytest.approx(1.0)

    def drawn(left: list[int], at: int) -> dict[int, float]:
        """By answer, the probability that a draw ends with it; `left` are those that are still possible."""
        if len(left) == 1:
            return {left[0]: 1.0}
        following: dict[int, list[int]] = {}
        for index in left:
            following.setdefault(answers[index][at] if at < len(answers[index]) else END, []).append(index)
        path = answers[left[0]][:at]
        whole = sum(of[path].values()) if len(following) > 1 else 1.0
        return {
            index: share * (of[path][token] / whole if len(following) > 1 else 1.0)
            for token, rest in following.items()
            for index, share in (drawn(rest, at + 1) if token != END else {rest[0]: 1.0}).items()
        }

    wanted = drawn(list(range(len(answers))), 0)
    assert probabilities == pytest.approx([wanted[index] for index in range(len(answers))])
