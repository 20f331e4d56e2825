"""The target's spans: `prefill` for each chunk of a prompt, `verify` for each round."""

from __future__ import annotations

import time

from forerun import span_attributes
from forerun.telemetry import Tracing
from forerun.v1 import target_pb2
from target_service.step import Part, Step


class TargetTrace:
    """Writes spans for sessions that are traced; returns at once for others."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def prefill(self, part: Part, step: Step) -> None:
        session = part.session
        if session.traceparent:
            self._tracing.round_child(
                session.traceparent,
                session.session_id,
                session.round_index,
                span_attributes.PREFILL,
                step.started_unix_ns,
                time.time_ns(),
                span_attributes.prefill_attributes(len(part.forward.token_ids), batch_size=len(step.parts)),
            )

    def verify(self, part: Part, step: Step, verdict: target_pb2.Verdict) -> None:
        session = part.session
        if session.traceparent:
            self._tracing.round_child(
                session.traceparent,
                session.session_id,
                verdict.round_index,
                span_attributes.VERIFY,
                step.started_unix_ns,
                time.time_ns(),
                span_attributes.verdict_attributes(verdict),
            )
