"""A causal language model as drafter: all sequences share its forwards, and it draws as the target draws.

It shares the target's vocabulary, settings and noise, so a candidate is what the target would say if it were this
model. Long prompts go in chunks. A whole draft is one batch: the worker feeds each token it drew until every sequence
has what it wants. The cache is bookkeeping on the event loop; only `execute` touches the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.drafters.drafter import Proposal, Want
from draft_service.drafters.draws import Draws
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model_runner import ForwardSlice
from forerun.runtime.sampling import DrawRequest
from forerun.runtime.sequence import Sequence as TokenSequence


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

    @property
    def missing(self) -> int:
        """How many more tokens are wanted at most."""
        return self.chunk.most - len(self._confidences)

    def take_all(self, tokens: Sequence[tuple[int, float]]) -> bool:
        """Adds tokens with their confidences as far as they are wanted; whether more are wanted after them."""
        return all(self._take(*token) for token in tokens)

    def _take(self, token_id: int, confidence: float) -> bool:
        """Adds a token; whether another one is wanted after it."""
        self._history.append(token_id)
        self._confidences.append(confidence)
        self._holds *= confidence
        want = self.chunk.want
        return self.missing > 0 and token_id not in want.end_token_ids and self._holds >= want.min_confidence

    def proposal(self) -> Proposal:
        """All of it."""
        token_ids = tuple(self._history[len(self.chunk.token_ids) :])
        return Proposal(token_ids, confidences=tuple(self._confidences), steps=len(token_ids))


class ModelDrafter:
    """Drafts with a model over a paged cache; tokens not drafted here go in at most `max_batch_tokens` at once."""

    def __init__(
        self,
        draws: Draws,
        cache: KvCache,
        end_token_ids: tuple[int, ...],
        max_batch_tokens: int,
    ) -> None:
        self._draws = draws
        self._cache = cache
        self._end_token_ids = end_token_ids
        self._max_batch_tokens = max_batch_tokens
        self._refuted: set[int] = set()  # ids of sequences that lost tokens since the last plan

    @property
    def total_blocks(self) -> int:
        return self._cache.block_count

    @property
    def used_blocks(self) -> int:
        return self._cache.used_blocks

    @property
    def reused_tokens(self) -> int:
        return self._cache.reused_tokens

    def plan(self, wants: Sequence[Want]) -> tuple[Batch, Sequence[Want]]:
        self._refuted.clear()
        for want in wants:
            self._cache.rewind(want.sequence)  # what followed may have been refuted once all was computed
            self._cache.attach_prefix(want.sequence)
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
        drafts = {id(chunk): Draft(chunk, self._end_token_ids) for chunk in chunks if chunk.most}
        going = list(drafts.values())
        slices = [chunk.forward for chunk in chunks]
        while slices:
            requests = [draft.request for draft in going]
            drawn = self._draws.draw(slices, requests, [draft.missing for draft in going])
            going = [draft for draft, tokens in zip(going, drawn, strict=True) if draft.take_all(tokens)]
            going = [draft for draft in going if id(draft.chunk.want.sequence) not in self._refuted]
            slices = [draft.forward for draft in going]
        return [drafts[id(chunk)].proposal() if id(chunk) in drafts else Proposal(()) for chunk in batch]

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
            self._cache.register(sequence, max(chunk.want.prompt_length, chunk.want.committed_length))

    def truncated(self, sequence: TokenSequence) -> None:
        self._refuted.add(id(sequence))
        self._cache.truncate(sequence, len(sequence))

    def forget(self, sequence: TokenSequence) -> None:
        self._refuted.add(id(sequence))
        self._cache.release(sequence)
