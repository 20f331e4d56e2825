"""From draws to a verdict: acceptance, then the end, then the message. And the spans that tell of it.

Nothing here changes a session; `engine` does, from what the verdict says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from forerun.runtime.sampling import Draw
from forerun.v1 import target_pb2, types_pb2
from target_service.acceptance import accept
from target_service.ends import cut_at_end

if TYPE_CHECKING:
    from target_service.step import Part, Step


def judge(part: Part, drawn: Sequence[Draw], step_s: float, batch_size: int) -> target_pb2.Verdict:
    """The verdict on one session's part of a step."""
    session = part.session
    acceptance = accept(part.candidates, [draw.token_id for draw in drawn])
    committed_length = session.committed_length
    token_ids, reason = cut_at_end(acceptance.token_ids, session.end_token_ids, session.length_limit - committed_length)
    return target_pb2.Verdict(
        round_index=session.round_index,
        start_position=committed_length,
        token_ids=token_ids,
        drafted_count=len(part.candidates),
        accepted_count=min(acceptance.accepted_count, len(token_ids)),
        epoch=part.epoch,
        finish_reason=reason,
        logprobs=[_logprobs(draw) for draw in drawn[: len(token_ids)] if draw.logprobs is not None],
        step_ns=round(step_s * 1e9),
        wait_ns=round(part.wait_s * 1e9),
        batch_size=batch_size,
    )


def _logprobs(draw: Draw) -> types_pb2.TokenLogprobs:
    assert draw.logprobs is not None
    return types_pb2.TokenLogprobs(
        logprob=draw.logprobs.logprob,
        top_token_ids=[token_id for token_id, _ in draw.logprobs.top],
        top_logprobs=[logprob for _, logprob in draw.logprobs.top],
    )


class VerifyTrace(Protocol):
    """Where the engine tells what a step did to a session. See `target_service.tracing`."""

    def prefill(self, part: Part, step: Step) -> None:
        """A chunk of a prompt was computed."""

    def verify(self, part: Part, step: Step, verdict: target_pb2.Verdict) -> None:
        """A round ended."""
