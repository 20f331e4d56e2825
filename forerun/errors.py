"""Every error a forerun process raises on purpose, and the gRPC status each one becomes.

ForerunError
├── InvalidArgument      a request field is wrong; names the field         INVALID_ARGUMENT
├── NotFound             a named thing (model, trace) does not exist       NOT_FOUND
├── FailedPrecondition   the pair or the session cannot do what is asked   FAILED_PRECONDITION
├── Overloaded           a bounded queue is full; says when to come back   RESOURCE_EXHAUSTED
├── Unavailable          a service is away for longer than we may wait     UNAVAILABLE
├── DeadlineExceeded     the client's deadline passed                      DEADLINE_EXCEEDED
└── Internal             our own bug, reported rather than hidden          INTERNAL

Asserts are for our own bugs; these classes are for the faults of callers and peers.
"""

from __future__ import annotations

import grpc


class ForerunError(Exception):
    """Base of every error with a meaning on the wire."""

    status = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArgument(ForerunError):
    """A field of a request is missing, malformed or out of range."""

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotFound(ForerunError):
    """A named thing does not exist here."""

    status = grpc.StatusCode.NOT_FOUND


class FailedPrecondition(ForerunError):
    """The request is well formed but this deployment cannot serve it, now or ever."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class Overloaded(ForerunError):
    """A bounded queue is full. `retry_after_s` is a hint in seconds."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(ForerunError):
    """A service that is needed is away; trying again later may work."""

    status = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(ForerunError):
    """The client's deadline passed before the answer was complete."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class Internal(ForerunError):
    """An invariant of ours broke."""

    status = grpc.StatusCode.INTERNAL


def all_errors() -> list[type[ForerunError]]:
    """Every concrete error class; a test checks that each has a status of its own."""
    return list(ForerunError.__subclasses__())
