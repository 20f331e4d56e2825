"""The gateway's gRPC door: messages in, messages out. What happens in between is `generation`'s and `dispatcher`'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from forerun import span_attributes
from forerun.config import GatewayConfig
from forerun.errors import DeadlineExceeded, ForerunError
from forerun.telemetry import RequestTrace, Tracing
from forerun.v1 import gateway_pb2, gateway_pb2_grpc
from gateway.admission import Admission
from gateway.dispatcher import Dispatcher
from gateway.generation import Generation
from gateway.link import Link
from gateway.metrics import RequestMetrics
from gateway.request import Prepared, check, prepare
from gateway.tokenizer import Tokenizer

METHOD = "forerun.v1.GatewayService/Generate"


class GatewayService(gateway_pb2_grpc.GatewayServiceServicer):
    """Serves clients. Errors are ForerunErrors; `forerun.rpc` makes statuses of them."""

    def __init__(self, config: GatewayConfig, tokenizer: Tokenizer, dispatcher: Dispatcher, tracing: Tracing) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._tracing = tracing
        self._admission = Admission(config.max_requests, config.max_queue)
        self.metrics = RequestMetrics()
        self._running: set[Generation] = set()

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        arrived = time.monotonic()
        trace = self._tracing.start_request(context.invocation_metadata(), METHOD)
        code = grpc.StatusCode.CANCELLED
        attributes: dict[str, Any] = {}  # for the request's span
        try:
            async with aclosing(self._generate(request, context, trace, attributes)) as responses:
                async for response in responses:
                    yield response
            code = grpc.StatusCode.OK
        except ForerunError as error:
            code = error.status
            raise
        finally:
            trace.end(code, attributes)
            self.metrics.end(code.name.lower(), time.monotonic() - arrived)

    async def _generate(
        self, request: gateway_pb2.GenerateRequest, context: Any, trace: RequestTrace, attributes: dict[str, Any]
    ) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
        arrived, arrived_ns = time.monotonic(), time.time_ns()
        remaining = context.time_remaining()
        deadline = arrived + remaining if remaining is not None else None
        check(request, self._config, self._tokenizer.vocabulary_size)
        async with _until(deadline, self._admission.slot()):
            trace.child(span_attributes.QUEUE, arrived_ns, time.time_ns())
            served = await self._dispatcher.wait_for_target(self._config.target_wait_s)
            prepared = await asyncio.to_thread(prepare, request, self._config, self._tokenizer, served)
            generation = Generation(
                prepared,
                served,
                self._tokenizer,
                self._dispatcher,
                self._config.credit_tokens,
                trace,
                self.metrics,
                arrived,
                deadline,
            )
            self._running.add(generation)
            self.metrics.add_prompt(len(prepared.prompt_token_ids))
            try:
                async with aclosing(generation.responses()) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._running.discard(generation)
                generation.close()
                if trace.traceparent:
                    attributes.update(_asked(request, prepared, generation, served.model_id))
                    attributes.update(generation.usage)

    @property
    def running_requests(self) -> int:
        return self._admission.running

    @property
    def waiting_requests(self) -> int:
        return self._admission.waiting

    @property
    def buffered_tokens(self) -> int:
        """Tokens that wait for their clients."""
        return sum(generation.buffered_tokens for generation in self._running)

    async def GetStatus(self, request: gateway_pb2.GetStatusRequest, context: Any) -> gateway_pb2.GetStatusResponse:
        return gateway_pb2.GetStatusResponse(
            targets=[_replica(link) for link in self._dispatcher.targets],
            drafts=[_replica(link) for link in self._dispatcher.drafts],
            running_requests=self.running_requests,
            waiting_requests=self.waiting_requests,
            draft_length=self._config.draft_length,
            window=max(self._config.window, self._config.draft_length),
            buffered_tokens=self.buffered_tokens,
        )


class _until:
    """Enters a slot by a deadline: waiting for admission must not outlast the client."""

    def __init__(self, deadline: float | None, slot: Any) -> None:
        self._deadline = deadline
        self._slot = slot

    async def __aenter__(self) -> None:
        remaining = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            async with asyncio.timeout(remaining):
                await self._slot.__aenter__()
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request was admitted") from None

    async def __aexit__(self, *error: Any) -> None:
        await self._slot.__aexit__(*error)


def _asked(
    request: gateway_pb2.GenerateRequest, prepared: Prepared, generation: Generation, model: str
) -> dict[str, Any]:
    params = prepared.params
    return dict(
        span_attributes.inference_attributes(
            generation.request_id,
            model,
            chat=request.HasField("chat"),
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=params.seed,
        )
    )


def _replica(link: Link[Any, Any]) -> gateway_pb2.ReplicaStatus:
    return gateway_pb2.ReplicaStatus(
        address=link.address,
        state=link.state,
        info=link.info,
        open_sessions=len(link.sessions),
        detail=link.detail,
    )
