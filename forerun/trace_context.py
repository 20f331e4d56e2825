"""Who a span belongs to: W3C `traceparent` strings, fresh ids, and the ids of rounds, which are not fresh.

A target begins rounds by itself and a draft works for them before the gateway knows that they exist, so all three
compute a round's span id from what they share. Nothing here needs the OpenTelemetry SDK.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from functools import lru_cache
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A span's place in the world."""

    trace_id: int  # 128 bits, not 0
    span_id: int  # 64 bits, not 0
    sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


@lru_cache(maxsize=4096)  # a session's spans all ask with the same string
def parse_traceparent(text: str) -> TraceContext | None:
    """The context in a W3C traceparent of any version; None for everything that is not one."""
    match = _TRACEPARENT.fullmatch(text.strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    return context if context.trace_id and context.span_id else None


def new_trace_id() -> int:
    """From the system's generator: no `random.seed` repeats it and no fork shares it."""
    return secrets.randbits(128) or 1


def new_span_id() -> int:
    return secrets.randbits(64) or 1


def round_span_id(request: TraceContext, session_id: int, round_index: int) -> int:
    """The span id of a session's round. `request` is the context that the services got for the session.

    Its span id takes part since a client's trace may hold several requests, and session ids repeat over gateways
    and restarts.
    """
    identity = b"%032x%016x%016x%x" % (request.trace_id, request.span_id, session_id, round_index)
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") or 1
