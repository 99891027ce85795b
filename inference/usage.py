"""What attempts took: the requests and tokens of language models, and the seconds of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.jsonform import Float32


@dataclass(frozen=True, slots=True)
class Usage:
    """What a language model was asked, and what it answered."""

    requests: int = 0
    """Requests that were sent, repeated ones included."""

    retries: int = 0
    """Requests that were repeated."""

    prompt_tokens: int = 0
    """Tokens of the prompts, as the model counts them."""

    output_tokens: int = 0
    """Tokens of the answers, as the model counts them."""

    cached_tokens: int = 0
    """Tokens of the prompts that the model had computed before."""

    cut: int = 0
    """Answers that ended at the largest number of tokens that an answer may have."""

    failed: int = 0
    """Rows without an answer, or without outputs in the answer."""

    stopped: int = 0
    """Answers that the model ended."""

    ended_otherwise: int = 0
    """Answers that ended for another reason, or for none that the model gave."""

    longest_prompt: int = 0
    """Tokens of the longest prompt."""

    answering_ms: int = 0
    """Milliseconds from sending a request to the end of its answer, summed over all answers."""

    @property
    def prompts(self) -> int:
        """Rows that were asked for, each once."""
        return self.requests - self.retries

    @property
    def found_in_cache(self) -> float:
        """The share of the prompts' tokens that the model had computed before."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def plus(self, *others: Usage) -> Usage:
        """All together."""
        each = (self, *others)
        longest = max(one.longest_prompt for one in each)
        return Usage(**{name: sum(getattr(one, name) for one in each) for name in _SUMS}, longest_prompt=longest)

    def since(self, earlier: Usage) -> Usage:
        """What came after `earlier`, which this begins with. The longest prompt stays that of all."""
        more = {name: getattr(self, name) - getattr(earlier, name) for name in _SUMS}
        return Usage(**more, longest_prompt=self.longest_prompt)


_SUMS = tuple(name for name in Usage.__dataclass_fields__ if name != "longest_prompt")
"""What is added up."""

NO_USAGE = Usage()
"""Nothing was asked, as of every model that is no language model."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a worker's scoring thread since its last result. Waiting for a shard is not in it."""

    read: Float32 = 0.0
    """Waiting for rows that are read."""

    prepare: Float32 = 0.0
    """Making the model's input, or waiting for it."""

    predict: Float32 = 0.0
    """In the model."""

    write: Float32 = 0.0
    """Waiting for parts that are written."""

    rest: Float32 = 0.0
    """Everything else, such as putting the outputs together."""

    @property
    def total(self) -> float:
        """All together."""
        return self.read + self.prepare + self.predict + self.write + self.rest

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(**{name: getattr(self, name) + getattr(other, name) for name in Spent.__dataclass_fields__})


NOTHING_SPENT = Spent()
"""Of a worker that asks for the rows of several shards at once, and so for none alone."""
