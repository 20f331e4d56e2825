"""The draft's spans: `draft` for each run of candidates, under the round whose commit set it off."""

from __future__ import annotations

import time

from draft_service.session import DraftSession, Run
from forerun import span_attributes
from forerun.telemetry import Tracing
from forerun.v1 import draft_pb2


class DraftTracing:
    """Writes spans for sessions that are traced; returns at once for others."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def draft(self, session: DraftSession, run: Run, candidates: draft_pb2.Candidates) -> None:
        if not session.traceparent or not run.started_unix_ns:
            return
        self._tracing.round_child(
            session.traceparent,
            session.session_id,
            candidates.round_index,
            span_attributes.DRAFT,
            run.started_unix_ns,
            time.time_ns(),
            span_attributes.draft_attributes(
                candidates.round_index,
                start_position=candidates.start_position,
                drafted=len(candidates.token_ids),
                epoch=candidates.epoch,
            ),
        )
