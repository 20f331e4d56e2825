"""A causal language model as drafter: one forward a step for all sequences, drawing as the target draws.

It shares the target's vocabulary, settings and noise, so a candidate is what the target would say if it were this
model. Long prompts go in chunks. The cache is bookkeeping on the event loop; only `execute` touches the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from draft_service.drafters.drafter import Proposal, Want
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.output_head import Head
from forerun.runtime.sampling import DrawRequest, draw
from forerun.runtime.sequence import Sequence as TokenSequence


class Runner(Protocol):
    """What it needs of `model_runner.ModelRunner`."""

    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        """Logits [sum of logits_count, V]."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One want's part of a batch."""

    sequence: TokenSequence
    forward: ForwardSlice
    request: DrawRequest | None  # None: more of the prompt must be computed first


Batch = tuple[Chunk | None, ...]  # None: no part of the budget was left for this want


class ModelDrafter:
    """Drafts with a model over a paged cache, at most `max_batch_tokens` a step."""

    def __init__(
        self,
        runner: Runner,
        cache: KvCache,
        end_token_ids: tuple[int, ...],
        max_batch_tokens: int,
        head: Head | None = None,
    ) -> None:
        self._runner = runner
        self._cache = cache
        self._end_token_ids = end_token_ids
        self._max_batch_tokens = max_batch_tokens
        self._head = head

    @property
    def total_blocks(self) -> int:
        return self._cache.block_count

    @property
    def used_blocks(self) -> int:
        return self._cache.used_blocks

    def plan(self, wants: Sequence[Want]) -> tuple[Batch, Sequence[Want]]:
        budget = self._max_batch_tokens
        order = sorted(range(len(wants)), key=lambda i: wants[i].sequence.pending_length)  # short ones first
        chunks: dict[int, Chunk | None] = {}
        refused: list[Want] = []
        for i in order:
            sequence = wants[i].sequence
            if budget <= 0:
                chunks[i] = None
            elif not self._cache.reserve(sequence, len(sequence)):
                refused.append(wants[i])
            else:
                chunks[i] = self._chunk(wants[i], budget)
                budget -= min(budget, sequence.pending_length)
        return tuple(chunks[i] for i in sorted(chunks)), refused

    def _chunk(self, want: Want, budget: int) -> Chunk:
        sequence = want.sequence
        start, end = sequence.computed_length, min(len(sequence), sequence.computed_length + budget)
        last = end == len(sequence)
        token_ids = tuple(sequence.token_ids)
        forward = ForwardSlice(token_ids[start:end], start, tuple(sequence.block_table), int(last))
        request = DrawRequest(want.params, token_ids, want.prompt_length, end, 1, self._end_token_ids) if last else None
        return Chunk(sequence, forward, request)

    def execute(self, batch: Batch) -> list[Proposal]:
        chunks = [chunk for chunk in batch if chunk is not None]
        logits = self._runner.forward([chunk.forward for chunk in chunks])
        requests = [chunk.request for chunk in chunks if chunk.request is not None]
        proposals = iter(self._draw(logits, requests) if requests else ())
        return [next(proposals) if chunk is not None and chunk.request is not None else Proposal(()) for chunk in batch]

    def _draw(self, logits: torch.Tensor, requests: Sequence[DrawRequest]) -> list[Proposal]:
        # [R, width of the head] -> [R, V]
        spread = self._head.spread(logits) if self._head is not None else logits
        tokens = [draws[0].token_id for draws in draw(spread, requests)]
        rows = spread.float()
        # [R]
        likely = (rows[range(len(tokens)), tokens] - rows.logsumexp(-1)).exp()
        return [Proposal((token,), confidences=(p,)) for token, p in zip(tokens, likely.tolist(), strict=True)]

    def settle(self, batch: Batch) -> None:
        for chunk in batch:
            if chunk is None or not chunk.sequence.block_table:
                continue
            sequence, forward = chunk.sequence, chunk.forward
            if sequence.computed_length != forward.start:  # truncated below what was fed
                continue
            still = 0  # a rollback may have replaced tokens while they were computed
            for fed, now in zip(forward.token_ids, sequence.token_ids[forward.start :], strict=False):
                if fed != now:
                    break
                still += 1
            covered = len(sequence.block_table) * self._cache.block_size  # blocks it gave back hold nothing of it
            sequence.mark_computed(min(forward.start + still, max(covered, forward.start)))

    def truncated(self, sequence: TokenSequence) -> None:
        self._cache.truncate(sequence, len(sequence))

    def forget(self, sequence: TokenSequence) -> None:
        self._cache.release(sequence)
