"""A causal language model as drafter: all sequences share its forwards, and it draws as the target draws.

It shares the target's vocabulary, settings and noise, so a candidate is what the target would say if it were this
model. Long prompts go in chunks. A whole draft is one batch: the worker feeds each token it drew until every sequence
has what it wants. The cache is bookkeeping on the event loop; only `execute` touches the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from draft_service.drafters.drafter import Proposal, Want
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.output_head import Head
from forerun.runtime.sampling import DrawRequest, draw, is_plain
from forerun.runtime.sequence import Sequence as TokenSequence


class Runner(Protocol):
    """What it needs of `model_runner.ModelRunner`."""

    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        """Logits [sum of logits_count, V]."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One want's part of a batch. Its blocks have room for all of `most` but the last, which is not fed."""

    want: Want
    forward: ForwardSlice
    token_ids: tuple[int, ...]  # the sequence, as far as it is fed
    most: int  # tokens to draft; 0: more of the prompt must be computed first


Batch = tuple[Chunk | None, ...]  # None: no part of the budget was left for this want


class Draft:
    """What was drafted for one chunk so far. Lives on the worker, for the length of one `execute`."""

    def __init__(self, chunk: Chunk, end_token_ids: tuple[int, ...]) -> None:
        self.chunk = chunk
        self._end_token_ids = end_token_ids
        self._history = list(chunk.token_ids)
        self._confidences: list[float] = []
        self._holds = 1.0  # how likely all of it does

    @property
    def request(self) -> DrawRequest:
        """For the next token."""
        want, position = self.chunk.want, len(self._history)
        return DrawRequest(want.params, self._history, want.prompt_length, position, 1, self._end_token_ids)

    @property
    def forward(self) -> ForwardSlice:
        """Feeds the last token drafted."""
        return ForwardSlice((self._history[-1],), len(self._history) - 1, self.chunk.forward.block_table, 1)

    def take(self, token_id: int, confidence: float) -> bool:
        """Adds a token; whether another one is wanted after it."""
        self._history.append(token_id)
        self._confidences.append(confidence)
        self._holds *= confidence
        want = self.chunk.want
        more = len(self._confidences) < self.chunk.most
        return more and token_id not in want.end_token_ids and self._holds >= want.min_confidence

    def proposal(self) -> Proposal:
        """All of it."""
        token_ids = tuple(self._history[len(self.chunk.token_ids) :])
        return Proposal(token_ids, confidences=tuple(self._confidences), steps=len(token_ids))


class ModelDrafter:
    """Drafts with a model over a paged cache; tokens not drafted here go in at most `max_batch_tokens` at once."""

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
        self._refuted: set[int] = set()  # ids of sequences that lost tokens since the last plan

    @property
    def total_blocks(self) -> int:
        return self._cache.block_count

    @property
    def used_blocks(self) -> int:
        return self._cache.used_blocks

    def plan(self, wants: Sequence[Want]) -> tuple[Batch, Sequence[Want]]:
        self._refuted.clear()
        budget = self._max_batch_tokens
        order = sorted(range(len(wants)), key=lambda i: wants[i].sequence.pending_length)  # short ones first
        chunks: dict[int, Chunk | None] = {}
        refused: list[Want] = []
        for i in order:
            if budget <= 0:
                chunks[i] = None
            elif most := self._reserve(wants[i]):
                chunks[i] = self._chunk(wants[i], budget, most)
                budget -= min(budget, wants[i].sequence.pending_length)
            else:
                refused.append(wants[i])
        return tuple(chunks[i] for i in sorted(chunks)), refused

    def _reserve(self, want: Want) -> int:
        """How many tokens there is room to draft: all, or one in a full cache, or none."""
        for most in (want.most, 1):
            if self._cache.reserve(want.sequence, len(want.sequence) + most - 1):
                return most
        return 0

    def _chunk(self, want: Want, budget: int, most: int) -> Chunk:
        sequence = want.sequence
        start, end = sequence.computed_length, min(len(sequence), sequence.computed_length + budget)
        last = end == len(sequence)
        token_ids = tuple(sequence.token_ids[:end])
        forward = ForwardSlice(token_ids[start:], start, tuple(sequence.block_table), int(last))
        return Chunk(want, forward, token_ids, most if last else 0)

    def execute(self, batch: Batch) -> list[Proposal]:
        chunks = [chunk for chunk in batch if chunk is not None]
        logits = self._runner.forward([chunk.forward for chunk in chunks])
        drafts = {id(chunk): Draft(chunk, self._end_token_ids) for chunk in chunks if chunk.most}
        going = list(drafts.values())
        while going:
            drawn = self._draw(logits, [draft.request for draft in going])
            going = [draft for draft, token in zip(going, drawn, strict=True) if draft.take(*token)]
            going = [draft for draft in going if id(draft.chunk.want.sequence) not in self._refuted]
            if going:
                logits = self._runner.forward([draft.forward for draft in going])
        return [drafts[id(chunk)].proposal() if id(chunk) in drafts else Proposal(()) for chunk in batch]

    def _draw(self, logits: torch.Tensor, requests: Sequence[DrawRequest]) -> list[tuple[int, float]]:
        """Logits [R, width of the head] -> a token for each request, and the model's own probability of it."""
        if all(is_plain(request) for request in requests):
            drawn = self._draw_plainly(logits)
            if not any(math.isnan(likely) for _, likely in drawn):
                return drawn  # otherwise `draw` says what is wrong
        # [R, width of the head] -> [R, V]
        whole = self._head.spread(logits) if self._head is not None else logits
        tokens = [draws[0].token_id for draws in draw(whole, requests)]
        rows = whole.float()
        # [R]
        likely = (rows[range(len(tokens)), tokens] - rows.logsumexp(-1)).exp()
        return list(zip(tokens, likely.tolist(), strict=True))

    @torch.inference_mode()
    def _draw_plainly(self, logits: torch.Tensor) -> list[tuple[int, float]]:
        """`_draw` where every row takes its largest logit: in the width of the head, and one copy to the host."""
        # [R, 1]
        columns = logits.argmax(-1, keepdim=True)
        rows = logits.float()
        likely = (rows.gather(1, columns) - rows.logsumexp(-1, keepdim=True)).exp()
        tokens = self._head.token_ids[columns] if self._head is not None else columns
        return [(int(token), p) for token, p in torch.cat([tokens.double(), likely.double()], 1).tolist()]

    def settle(self, batch: Batch, proposals: Sequence[Proposal]) -> None:
        for chunk, proposal in zip(batch, proposals, strict=True):
            if chunk is None or not chunk.want.sequence.block_table:
                continue
            sequence, start = chunk.want.sequence, chunk.forward.start
            if sequence.computed_length != start:  # truncated below what was fed
                continue
            fed = (*chunk.forward.token_ids, *proposal.token_ids[:-1])
            still = 0  # a rollback may have replaced tokens while they were computed
            for then, now in zip(fed, sequence.token_ids[start:], strict=False):
                if then != now:
                    break
                still += 1
            covered = len(sequence.block_table) * self._cache.block_size  # blocks it gave back hold nothing of it
            sequence.mark_computed(min(start + still, max(covered, start)))

    def truncated(self, sequence: TokenSequence) -> None:
        self._refuted.add(id(sequence))
        self._cache.truncate(sequence, len(sequence))

    def forget(self, sequence: TokenSequence) -> None:
        self._refuted.add(id(sequence))
        self._cache.release(sequence)
