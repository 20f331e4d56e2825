"""One session as the target holds it: its sequence, its candidates, and the limits it runs under.

It can always be rebuilt from an Open. Which sessions go into a step is `scheduler`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.candidates import CandidateBuffer
from forerun.runtime.sequence import Sequence
from forerun.runtime.stream import Stream
from forerun.sampling_params import SamplingParams
from forerun.v1 import target_pb2

TargetStream = Stream["TargetSession", target_pb2.TargetResponseEntry]


@dataclass(slots=True, eq=False)
class TargetSession:
    """Bookkeeping of one session. `sequence` holds committed tokens only; candidates join it for a step."""

    stream: TargetStream
    session_id: int
    attachment: int
    arrival: int  # order of opening; the youngest gives way when the cache is full
    params: SamplingParams
    prompt_length: int
    sequence: Sequence
    length_limit: int  # prompt, output and context limits in one: tokens the session may ever have
    end_token_ids: frozenset[int]
    candidates: CandidateBuffer
    commit_limit: int
    draft_length: int
    round_index: int
    traceparent: str
    expires_at: float | None  # monotonic seconds
    idle_since: float  # when the last verdict was sent, or the session opened
    rounds_since_wait: int = 0  # rounds begun without waiting for candidates
    waited: bool = False  # whether this round has been held back for candidates
    ready_noted: bool = False  # whether the arrival of this round's candidates was recorded
    closed: bool = False

    def expired(self, now: float) -> bool:
        """Whether its time to live is over."""
        return self.expires_at is not None and self.expires_at <= now

    @property
    def committed_length(self) -> int:
        return len(self.sequence)

    @property
    def room(self) -> int:
        """Tokens that may be committed now."""
        return min(self.commit_limit, self.length_limit) - self.committed_length

    @property
    def prefilling(self) -> bool:
        """Whether more than the last committed token must still be computed."""
        return self.sequence.pending_length > 1

    @property
    def speculating(self) -> bool:
        """Whether its next step is to verify candidates."""
        return not self.prefilling and self.wanted_candidates > 0

    @property
    def wanted_candidates(self) -> int:
        """How many candidates a full round would verify."""
        return max(0, min(self.draft_length, self.room - 1))

    @property
    def has_full_draft(self) -> bool:
        """Whether no more candidates are to be waited for."""
        held = len(self.candidates)
        return held >= self.wanted_candidates or self.candidates.exhausted(self.committed_length)
