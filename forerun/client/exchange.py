"""What the blocking and the asyncio client share: the policy of one answer, over as many calls as it takes.

It does no I/O. A client opens the calls that it is told to, hands in what comes and what goes wrong, and waits as long
as it is told.
"""

from __future__ import annotations

import time
from typing import Any

from forerun.client.answer import Answer, Chunk, Finished, Started, event_of
from forerun.config import ClientConfig
from forerun.errors import DeadlineExceeded, FailedPrecondition, ForerunError, Internal, Overloaded, Unavailable
from forerun.v1 import gateway_pb2

DEFAULT_ADDRESS = ClientConfig().address
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),  # a gateway whose host vanished is noticed in 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Exchange:
    """One answer over as many calls as it takes: what to ask next, what came of it, whether to try again."""

    def __init__(self, answer: Answer, timeout: float | None, retries: int) -> None:
        self.answer = answer
        self._timeout = timeout
        self._deadline: float | None = None
        self._retries = retries
        self._pause_s = _FIRST_PAUSE_S

    def next_call(self) -> tuple[gateway_pb2.GenerateRequest, float | None]:
        """The request for what is missing, and the seconds left for it. Time runs from the first call."""
        if self._deadline is None and self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        request, started = gateway_pb2.GenerateRequest(), self.answer.started
        request.CopyFrom(self.answer.request)
        if started.prompt_token_ids:
            request.tokens.ids[:] = started.prompt_token_ids
            request.seed = started.seed
            request.resume_token_ids.extend(self.answer.token_ids)
        return request, self._left_s()

    def take(self, response: gateway_pb2.GenerateResponse) -> Chunk | None:
        """Adds what came to the answer, and returns it if it is a chunk."""
        event, before = event_of(response), self.answer.started
        if isinstance(event, Started) and before.prompt_token_ids and event.model_revision != before.model_revision:
            raise FailedPrecondition(f"the answer cannot go on: the model is now {event.model} {event.model_revision}")
        if event is not None:
            self.answer.add(event)
        return event if isinstance(event, Chunk) else None

    def check_end(self) -> None:
        """Raises Internal if a call ended well and the answer did not."""
        if not self.answer.ended:
            raise Internal("the answer broke off without an end")

    def pause_after(self, error: ForerunError) -> float:
        """The seconds to wait before the next call. Raises the error if there is to be none."""
        pause_s = max(self._pause_s, error.retry_after_s) if isinstance(error, Overloaded) else self._pause_s
        left_s = self._left_s()
        worth_it = isinstance(error, Unavailable | Overloaded) and (left_s is None or pause_s < left_s)
        if not worth_it or self._retries <= 0:
            raise error
        self._retries -= 1
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s

    def _left_s(self) -> float | None:
        if self._deadline is None:
            return None
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("the answer was not complete in time")
        return left_s


class Handle:
    """What both kinds of stream have: the answer so far."""

    def __init__(self, stub: Any, exchange: Exchange) -> None:
        self._call: Any = None
        self._stub = stub
        self._exchange = exchange

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self._exchange.answer

    @property
    def text(self) -> str:
        """The answer's text so far."""
        return self.answer.text

    @property
    def started(self) -> Started:
        """Empty until the gateway has admitted the request."""
        return self.answer.started

    @property
    def finished(self) -> Finished:
        """Empty until the answer is complete."""
        return self.answer.finished

    def _open(self) -> None:
        if self._call is None:
            request, left_s = self._exchange.next_call()
            self._call = self._stub.Generate(request, timeout=left_s)

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def __del__(self) -> None:
        self._cancel()  # as when a loop over the stream is left with `break`
