"""The Python client as the commands use it: what can go wrong becomes a `Failure` that says what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from forerun.cli.failure import FAILED, USAGE, Failure
from forerun.client import Answer, Client, Stream
from forerun.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    NotFound,
    Overloaded,
    Unavailable,
)
from forerun.v1 import gateway_pb2

# How gRPC's own UNAVAILABLE begins when nothing was reached; a gateway's begins otherwise.
_NOBODY_THERE = ("failed to connect", "errors resolving", "DNS resolution failed")


@contextmanager
def asked(address: str, request: gateway_pb2.GenerateRequest, timeout_s: float | None = None) -> Iterator[Stream]:
    """The answer as it comes. Leaving the block cancels the request, which frees what it holds."""
    with explaining(address), Client(address) as client, client.send(request, timeout=timeout_s) as stream:
        yield stream


def ask(address: str, request: gateway_pb2.GenerateRequest, timeout_s: float | None = None) -> Answer:
    """The whole answer at once."""
    with asked(address, request, timeout_s) as stream:
        for _ in stream:
            pass
    return stream.answer


@contextmanager
def explaining(address: str) -> Iterator[None]:
    """Turns a client's errors into failures."""
    try:
        yield
    except ForerunError as error:
        raise explained(error, address) from None


def explained(error: ForerunError, address: str) -> Failure:
    """What an error means for the one who typed the command."""
    match error:
        case InvalidArgument() | FailedPrecondition() | NotFound():
            return Failure(f"the gateway refused the request: {error}", USAGE)
        case Unavailable() if error.message.startswith(_NOBODY_THERE):
            advice = "start the services with `forerun up`, or name another gateway with --address"
            return Failure(f"no gateway answers at {address}; {advice}")
        case Unavailable():
            return Failure(f"no answer now: {error}; see that gateway and target run, then try again")
        case Overloaded():
            return Failure(f"the gateway is full: {error}; try again in {error.retry_after_s:g} s")
        case DeadlineExceeded():
            return Failure("the answer was not complete in time; raise --timeout or lower --max-tokens")
    if error.status is grpc.StatusCode.UNIMPLEMENTED:
        return Failure(f"{address} is not a forerun gateway; give its address with --address")
    return Failure(f"the gateway failed: {error.status.name}: {error}; look at its log", FAILED)
