"""Which candidates of a round are kept, and the words for it. Pure: two lists of integers in, one value out.

round       one target step of one session: it verifies 0..k candidates and commits 1..k+1 tokens
draw        the target's own token at a position, given the candidates before it; k candidates have k+1 draws
accepted    a candidate that equals the target's draw, as do all candidates before it
correction  the target's draw where the first candidate fails; what was drafted behind it is dropped
bonus       the target's draw after a draft that was accepted whole (or was empty)
committed   accepted candidates, then the correction or bonus: final, and exactly the draws up to there

Nothing here is random and nothing compares probabilities: the noise is in the draws already (`forerun.runtime.noise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The outcome for one draft: how many candidates held, and the tokens that are now committed."""

    accepted_count: int
    token_ids: tuple[int, ...]  # accepted, then correction or bonus: accepted_count + 1 of them


def accept(candidates: Sequence[int], draws: Sequence[int]) -> Acceptance:
    """Accepts the longest prefix of `candidates` that equals the target's `draws`, of which there is one more."""
    assert len(draws) == len(candidates) + 1, f"{len(candidates)} candidates need one draw more, not {len(draws)}"
    accepted = 0
    while accepted < len(candidates) and candidates[accepted] == draws[accepted]:
        accepted += 1
    return Acceptance(accepted, tuple(draws[: accepted + 1]))
