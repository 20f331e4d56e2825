"""A gateway's client: sends one request, yields the responses, and gathers them into an `Answer`.

It turns every status a gateway can end with into a `Failure` that says what to do next. Printing is not its business.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from forerun.cli.failure import FAILED, USAGE, Failure
from forerun.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2

_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
# How gRPC's own UNAVAILABLE begins when nothing was reached; a gateway's begins otherwise.
_NOBODY_THERE = ("failed to connect", "errors resolving", "DNS resolution failed")
_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)


@dataclass(slots=True)
class Answer:
    """All that a gateway sent for one request."""

    started: gateway_pb2.Started = field(default_factory=gateway_pb2.Started)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    logprobs: list[types_pb2.TokenLogprobs] = field(default_factory=list)
    rounds: list[gateway_pb2.Round] = field(default_factory=list)
    finished: gateway_pb2.Finished = field(default_factory=gateway_pb2.Finished)

    def add(self, response: gateway_pb2.GenerateResponse) -> None:
        """Takes in the next response."""
        match response.WhichOneof("event"):
            case "started":
                self.started = response.started
            case "finished":
                self.finished = response.finished
            case "chunk":
                self.text += response.chunk.text
                self.token_ids.extend(response.chunk.token_ids)
                self.token_texts.extend(response.chunk.token_texts)
                self.logprobs.extend(response.chunk.logprobs)
                self.rounds.extend(response.chunk.rounds)

    @property
    def tokens_per_second(self) -> float:
        """The pace after the first token; zero with fewer than two."""
        pace_ns = self.finished.timing.time_per_output_token_ns
        return 1e9 / pace_ns if pace_ns else 0.0


def responses(
    address: str, request: gateway_pb2.GenerateRequest, timeout_s: float | None
) -> Generator[gateway_pb2.GenerateResponse]:
    """The responses as they come. Closing the iterator cancels the request, which frees what it holds."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=timeout_s)
        finished = False
        try:
            for response in call:
                finished = response.HasField("finished")
                yield response
        except grpc.RpcError as error:
            raise explained(error, address) from None
        finally:
            call.cancel()
        if not finished:
            raise Failure("the answer broke off without an end; look at the gateway's log")


def ask(address: str, request: gateway_pb2.GenerateRequest, timeout_s: float | None = None) -> Answer:
    """The whole answer at once."""
    answer = Answer()
    for response in responses(address, request, timeout_s):
        answer.add(response)
    return answer


def explained(error: grpc.RpcError, address: str) -> Failure:
    """What a failed call means for the one who typed the command."""
    code, details = error.code(), error.details() or ""
    if code in _REFUSED:
        return Failure(f"the gateway refused the request: {details}", USAGE)
    match code:
        case grpc.StatusCode.UNAVAILABLE if details.startswith(_NOBODY_THERE):
            advice = "start the services with `forerun up`, or name another gateway with --address"
            return Failure(f"no gateway answers at {address}; {advice}")
        case grpc.StatusCode.UNAVAILABLE:
            return Failure(f"no answer now: {details}; see that gateway and target run, then try again")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Failure(f"the gateway is full: {details}; try again{_retry_delay(error)}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Failure("the answer was not complete in time; raise --timeout or lower --max-tokens")
        case grpc.StatusCode.UNIMPLEMENTED:
            return Failure(f"{address} is not a forerun gateway; give its address with --address")
    return Failure(f"the gateway failed: {code.name}: {details}; look at its log", FAILED)


def _retry_delay(error: grpc.RpcError) -> str:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status else ():
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return f" in {retry.retry_delay.ToMilliseconds() / 1000:g} s"
    return " later"
