"""How fast a language model was asked and answered, in the words of the field."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.records import Usage


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Of the prompts that a command asked; 0 where there is no figure.

    prompts_per_s, input_tokens_per_s, output_tokens_per_s: of all requests together, over the time from the first
    shard's start to the last one's end. ms_per_output_token: of one request, from sending it until its whole answer was
    there, so with the time for its prompt and with what it waited for at the endpoint, divided by its tokens; the mean
    over all tokens.
    """

    prompts_per_s: float = 0.0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    ms_per_output_token: float = 0.0


def token_rates(usage: Usage, seconds: float) -> TokenRates:
    """The rates of what was asked in so many seconds."""
    return TokenRates(
        _share(usage.prompts, seconds),
        _share(usage.prompt_tokens, seconds),
        _share(usage.output_tokens, seconds),
        _share(usage.answering_ms, usage.output_tokens),
    )


def _share(of: float, whole: float) -> float:
    return of / whole if whole > 0 else 0.0
