"""One session as the draft holds it: what is committed, what is drafted beyond it, and under which epoch.

This is the draft's half of the protocol. `commit` compares, so repeating or overlapping commits change nothing; where
they contradict what was drafted the sequence is truncated and the epoch rises. No model, no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_service.drafters.drafter import Proposal, Want
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.runtime.stream import Stream
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2

DraftStream = Stream["DraftSession", draft_pb2.DraftResponseEntry]


class Gap(Exception):
    """A commit started beyond what the draft has, or contradicts what it knows to be committed."""


@dataclass(slots=True)
class Run:
    """Timing of the candidates drafted since the last ones were sent."""

    started_unix_ns: int = 0
    draft_ns: int = 0
    steps: int = 0


@dataclass(slots=True, eq=False)
class DraftSession:
    """Bookkeeping of one session. `sequence` holds committed tokens, then candidates."""

    stream: DraftStream
    session_id: int
    attachment: int
    params: SamplingParams
    prompt_length: int
    sequence: TokenSequence
    committed_length: int
    length_limit: int  # candidates beyond this are of no use: prompt and max_tokens, or the draft's own context
    end_token_ids: frozenset[int]
    draft_length: int
    window: int
    epoch: int
    round_index: int
    traceparent: str
    expires_at: float | None  # monotonic seconds
    sent_length: int  # candidates before this position were sent
    run: Run
    min_confidence: float = 0.0  # a draft ends where the chance that all of it holds falls below this
    confidences: list[float] = field(default_factory=list)  # one for each candidate
    exhausted_at: int = -1  # sequence length at which the drafter had nothing to add
    exhausted_sent: tuple[int, int] = (-1, -1)  # committed length and position for which that was told
    closed: bool = False

    @property
    def head(self) -> int:
        """The position that the next candidate would take."""
        return len(self.sequence)

    @property
    def exhausted(self) -> bool:
        """Whether nothing can be added until more is committed."""
        if self.exhausted_at == self.head or self.head >= self.length_limit:
            return True
        return self.head > self.committed_length and self.sequence.token_ids[-1] in self.end_token_ids

    @property
    def wanted(self) -> int:
        """How many more candidates to draft now."""
        if self.draft_length == 0 or self.exhausted:
            return 0
        until = min(self.committed_length + max(self.draft_length, self.window), self.length_limit)
        return max(0, until - self.head)

    @property
    def want(self) -> Want:
        """What to ask the drafter for: the rest of a draft, or one draft's worth of run-ahead."""
        missing = self.committed_length + self.draft_length - self.head
        most = min(self.wanted, missing if missing > 0 else self.draft_length)
        floor = min(1.0, self.min_confidence / (math.prod(self.confidences) or 1.0))
        return Want(
            self.sequence, self.params, self.prompt_length, most, self.end_token_ids, floor, self.committed_length
        )

    def commit(self, start: int, token_ids: Sequence[int], refuted_epoch: int) -> int:
        """Takes committed tokens from absolute position `start` on; returns how many candidates were truncated.

        Raises Gap if they start beyond the committed length, or contradict it.
        """
        if start > self.committed_length:
            raise Gap
        known = min(self.committed_length - start, len(token_ids))
        if self.sequence.token_ids[start : start + known] != list(token_ids[:known]):
            raise Gap
        truncated = self._append(token_ids[known:])
        del self.confidences[: len(token_ids) - known]
        if truncated or refuted_epoch >= self.epoch:
            truncated += self._truncate(self.committed_length)
            self.confidences.clear()
            self.epoch = max(self.epoch, refuted_epoch) + 1
            self.run = Run()
            self.exhausted_sent = (-1, -1)  # that was of a dead epoch
        self.sent_length = max(min(self.sent_length, self.head), self.committed_length)
        if self.exhausted_at != self.head or token_ids[known:]:
            self.exhausted_at = -1  # more is known now
        return truncated

    def _append(self, token_ids: Sequence[int]) -> int:
        drafted = self.sequence.token_ids[self.committed_length : self.committed_length + len(token_ids)]
        agree = 0
        while agree < len(drafted) and drafted[agree] == token_ids[agree]:
            agree += 1
        truncated = 0
        if agree < len(drafted):
            truncated = self._truncate(self.committed_length + agree)
        self.sequence.append(token_ids[len(drafted) if not truncated else agree :])
        self.committed_length += len(token_ids)
        return truncated

    def _truncate(self, length: int) -> int:
        removed = self.head - length
        self.sequence.truncate(length)
        return removed

    def draft(self, proposal: Proposal) -> None:
        """Takes a drafter's tokens: as far as they are wanted, likely to hold, and no end token comes before them."""
        confidences = proposal.confidences or (1.0,) * len(proposal.token_ids)
        for token_id, confidence in zip(proposal.token_ids[: self.wanted], confidences, strict=False):
            self.sequence.append((token_id,))
            self.confidences.append(confidence)
            if token_id in self.end_token_ids:
                return
            if math.prod(self.confidences) < self.min_confidence:
                self.exhausted_at = self.head
                return
        if proposal.exhausted:
            self.exhausted_at = self.head

    @property
    def sendable(self) -> bool:
        """Whether the candidates not yet sent make a whole draft, or all there will be for now."""
        if self.draft_length == 0:
            return False
        if self.exhausted:
            return self.exhausted_sent != (self.committed_length, self.head)
        drafted = self.head - self.committed_length
        return self.head > self.sent_length and drafted >= min(self.draft_length, drafted + self.wanted)

    def take_unsent(self) -> draft_pb2.Candidates:
        """The candidates not yet sent; they count as sent from here on."""
        run, self.run = self.run, Run()
        candidates = draft_pb2.Candidates(
            epoch=self.epoch,
            start_position=self.sent_length,
            token_ids=self.sequence.token_ids[self.sent_length :],
            exhausted=self.exhausted,
            round_index=self.round_index,
            draft_ns=run.draft_ns,
            steps=run.steps,
        )
        self.sent_length = self.head
        if self.exhausted:
            self.exhausted_sent = (self.committed_length, self.head)
        return candidates
