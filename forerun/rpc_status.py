"""`ForerunError`s as gRPC statuses, both ways, and the one place where a server does the translation.

An error crosses the wire as a status code and a message; a wrong field and a retry delay go along as google.rpc
details, so that any client can read them. What is raised by accident becomes INTERNAL here and a traceback in the log.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from forerun.errors import ForerunError, Internal, InvalidArgument, Overloaded, Unavailable, all_errors
from forerun.logs import event

logger = logging.getLogger(__name__)

# Status message and details travel in HTTP/2 headers, which peers refuse from 8 KiB on; percent-encoding may triple.
MAX_BYTES = 1024

_DETAILS_KEY = "grpc-status-details-bin"


def translated(servicer: Any) -> Any:
    """A stand-in for `servicer` whose methods answer errors with statuses."""
    return _Translated(servicer)


class _Translated:
    """Hands out a servicer's methods, wrapped. grpc looks each of them up once, when the servicer is added."""

    def __init__(self, servicer: Any) -> None:
        self._servicer = servicer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._servicer, name)
        return _translated_stream(method) if inspect.isasyncgenfunction(method) else _translated_call(method)


def _translated_call(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    @functools.wraps(method)
    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.BaseError:  # the method's own abort, or a call that is over already
            raise
        except Exception as error:
            await abort(context, _on_purpose(error, method.__qualname__))

    return call


def _translated_stream(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    @functools.wraps(method)
    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            # Closed by name: a generator that waits inside another is otherwise left to the garbage collector.
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.BaseError:
            raise
        except Exception as error:
            await abort(context, _on_purpose(error, method.__qualname__))

    return stream


def _on_purpose(error: Exception, where: str) -> ForerunError:
    if isinstance(error, ForerunError):
        return error
    event(logger, "rpc_crashed", level=logging.ERROR, error=error, method=where)
    return Internal("internal error; the service's log has the traceback")


async def abort(context: Any, error: ForerunError) -> NoReturn:
    """Ends the call with the error's status, and with google.rpc details where there are any."""
    message = _clip(error.message)
    status = status_pb2.Status(code=error.status.value[0], message=message)
    for detail in _details(error):
        status.details.add().Pack(detail)
    metadata = ((_DETAILS_KEY, status.SerializeToString()),) if status.details else ()
    await context.abort(error.status, message, metadata)
    raise AssertionError("context.abort returned")


def _details(error: ForerunError) -> list[Message]:
    if isinstance(error, InvalidArgument):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_clip(error.field), description=_clip(error.problem)
        )
        return [error_details_pb2.BadRequest(field_violations=[violation])]
    if isinstance(error, Overloaded):
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        return [info]
    return []


def from_rpc_error(error: grpc.RpcError) -> ForerunError:
    """The error as the server raised it. A status that no class stands for gives a plain ForerunError with it."""
    code, message = error.code(), error.details() or error.code().name
    details = _received_details(error)
    if code is InvalidArgument.status:
        for violation in _find(details, error_details_pb2.BadRequest).field_violations:
            return InvalidArgument(violation.field, violation.description)
        field, colon, problem = message.partition(": ")
        return InvalidArgument(field, problem) if colon else InvalidArgument("request", message)
    if code is Overloaded.status:
        retry_after_s = _find(details, error_details_pb2.RetryInfo).retry_delay.ToNanoseconds() / 1e9
        return Overloaded(message, retry_after_s) if retry_after_s > 0 else Overloaded(message)
    if code is grpc.StatusCode.CANCELLED:
        # Our own cancelling raises CancelledError; this is what a call gets that reaches a server as it stops.
        return Unavailable(f"the peer dropped the call: {message}")
    for kind in all_errors():
        if kind.status is code:
            return kind(message)
    unnamed = ForerunError(message)
    unnamed.status = code
    return unnamed


def _received_details(error: grpc.RpcError) -> status_pb2.Status:
    """What a peer sent as details; a peer that sends nonsense sent none."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == _DETAILS_KEY:
            with suppress(DecodeError, TypeError):
                return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _find(status: status_pb2.Status, kind: type[Any]) -> Any:
    found = kind()
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            with suppress(DecodeError):
                detail.Unpack(found)
            break
    return found


def _clip(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= MAX_BYTES else data[:MAX_BYTES].decode(errors="ignore") + "…"
