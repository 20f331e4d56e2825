"""Prompt lookup where the session's tokens hold a long enough match, a model where they do not.

A match costs nothing and is right more often the longer it is; the model's cache catches up when it is asked next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draft_service.drafters.drafter import Drafter, Proposal, Want
from draft_service.drafters.ngram import NgramDrafter
from forerun.runtime.sequence import Sequence as TokenSequence


@dataclass(frozen=True, slots=True)
class Batch:
    """What the lookup found for each want, and the model's own batch for those without."""

    found: tuple[Proposal | None, ...]
    rest: Any


class NgramFirstDrafter:
    """`ngram` first, then `model`."""

    def __init__(self, ngram: NgramDrafter, model: Drafter) -> None:
        self._ngram = ngram
        self._model = model

    @property
    def total_blocks(self) -> int:
        return self._model.total_blocks

    @property
    def used_blocks(self) -> int:
        return self._model.used_blocks

    @property
    def reused_tokens(self) -> int:
        return self._model.reused_tokens

    def plan(self, wants: Sequence[Want]) -> tuple[Batch, Sequence[Want]]:
        looked_up, _ = self._ngram.plan(wants)
        found = [proposal if proposal.token_ids else None for proposal in self._ngram.execute(looked_up)]
        without = [want for want, proposal in zip(wants, found, strict=True) if proposal is None]
        rest, refused = self._model.plan(without) if without else (None, ())
        lost = {id(want) for want in refused}
        kept = [proposal for want, proposal in zip(wants, found, strict=True) if id(want) not in lost]
        return Batch(tuple(kept), rest), refused

    def execute(self, batch: Batch) -> list[Proposal]:
        rest = iter(self._model.execute(batch.rest) if None in batch.found else ())
        return [proposal if proposal is not None else next(rest) for proposal in batch.found]

    def settle(self, batch: Batch, proposals: Sequence[Proposal]) -> None:
        if batch.rest is not None:
            of_model = [made for made, found in zip(proposals, batch.found, strict=True) if found is None]
            self._model.settle(batch.rest, of_model)

    def truncated(self, sequence: TokenSequence) -> None:
        self._model.truncated(sequence)

    def forget(self, sequence: TokenSequence) -> None:
        self._model.forget(sequence)
