"""The probabilities of given answers, from those of the tokens where they part.

With `good`, `bad` and `badly` the model is asked twice: which of the first tokens follows, and after `bad`, whether
`ly` follows or the end. The product is the probability with which a model draws an answer, if at each token it may
draw only what begins one of the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """A place where answers part. path: the tokens that they share. tokens: those that may follow."""

    path: Tokens
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Choices:
    """Answers as tokens, and the places where they part."""

    answers: tuple[Tokens, ...]
    forks: tuple[Fork, ...]

    def probabilities(self, found: Mapping[Fork, Sequence[float]]) -> list[float]:
        """The probability of each answer; their sum is 1.

        found: by fork, the logarithm of the probability of each of its tokens, up to a constant.
        """
        shares = {fork.path: dict(zip(fork.tokens, _shares(found[fork]), strict=True)) for fork in self.forks}
        return [_along(answer, shares) for answer in self.answers]


def choices(answers: Sequence[Sequence[int]], end: int) -> Choices:
    """Find where the answers part. end: the token that ends an answer which another one goes on from.

    Raises:
        ValueError: Two of them are the same.
    """
    known = [tuple(answer) for answer in answers]
    if len(set(known)) < len(known):
        raise ValueError("two answers have the same tokens")
    ended = tuple(
        (*answer, end) if any(other[: len(answer)] == answer for other in known if other != answer) else answer
        for answer in known
    )
    paths = dict.fromkeys(answer[:length] for answer in ended for length in range(len(answer)))
    following = {
        path: dict.fromkeys(
            answer[len(path)] for answer in ended if len(answer) > len(path) and answer[: len(path)] == path
        )
        for path in paths
    }
    return Choices(ended, tuple(Fork(path, tuple(tokens)) for path, tokens in following.items() if len(tokens) > 1))


def _shares(logarithms: Sequence[float]) -> list[float]:
    """Probabilities that add up to 1."""
    powers = np.exp(np.subtract(logarithms, np.max(logarithms)))
    return list((powers / powers.sum()).tolist())


def _along(answer: Tokens, shares: Mapping[Tokens, Mapping[int, float]]) -> float:
    """The product of the shares at the forks that an answer passes."""
    product = 1.0
    for place, token in enumerate(answer):
        if answer[:place] in shares:
            product *= shares[answer[:place]][token]
    return product
