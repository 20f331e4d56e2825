"""What a client that asks for logprobs learns about one token; the target fills it in, the gateway passes it on.

Log-probabilities are natural logarithms under the model's own distribution, before bias, penalties and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The drawn token's log-probability, and the most likely tokens as (token id, logprob), likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
