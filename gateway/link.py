"""A gateway's connection to one replica of a model service, and the sessions on it.

It connects, greets, reads, writes and starts over with growing pauses; the pause is the circuit breaker, the next
attempt its probe. What a replica says goes to the session it is about; what a session has to say is asked of it when
the stream can take it, so a slow stream makes messages larger, never more. `TargetLink` and `DraftLink` differ only
in their messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import grpc

from forerun.config import PROTOCOL_VERSION, GatewayConfig
from forerun.errors import FailedPrecondition
from forerun.logs import event
from forerun.rpc import channel
from forerun.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    gateway_pb2,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
)
from gateway.draft_side import DraftSide
from gateway.session import Session
from gateway.target_side import TargetSide

logger = logging.getLogger(__name__)

INFO_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 15.0  # a replica that takes no message for so long is lost; what it is owed would pile up

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
State = gateway_pb2.ReplicaState


class Owner(Protocol):
    """Who owns the sessions and decides where they go. See `dispatcher.Dispatcher`."""

    def refusal(self, link: Link[Any, Any], info: types_pb2.ServiceInfo) -> str | None:
        """Why a replica does not fit; None if it does."""

    def on_ready(self, link: Link[Any, Any]) -> None:
        """The replica takes sessions."""

    def on_lost(self, link: Link[Any, Any], sessions: list[Session]) -> None:
        """The replica is gone; these sessions were on it."""

    def on_target_failed(self, session: Session, failed: target_pb2.SessionFailed) -> None:
        """The target gave a session up."""

    def on_change(self, session: Session) -> None:
        """Something happened to a session that both services may have to hear of."""


class Link(ABC, Generic[RequestT, ResponseT]):
    """One replica. `run` never returns; cancel it to hang up."""

    kind = ""

    def __init__(self, address: str, hello: types_pb2.Hello, config: GatewayConfig, owner: Owner) -> None:
        self.address = address
        self.state: State = gateway_pb2.REPLICA_STATE_CONNECTING
        self.detail = "not reached yet"
        self.info: types_pb2.ServiceInfo | None = None
        self.sessions: dict[int, Session] = {}
        self.attempts = 0
        self.silent = False  # a session on it waited in vain, and nothing has come from it since
        self._broken_off = ""
        self._writing_since: float | None = None  # monotonic seconds
        self._hello = hello
        self._config = config
        self._owner = owner
        self._call: Any = None
        self._dirty: dict[int, Session] = {}
        self._closing: list[Any] = []
        self._output = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.state == gateway_pb2.REPLICA_STATE_READY

    @property
    def has_room(self) -> bool:
        return self.ready and self.info is not None and len(self.sessions) < self.info.max_sessions

    @property
    def refused(self) -> bool:
        return self.state == gateway_pb2.REPLICA_STATE_REFUSED

    # Sessions

    def attach(self, session: Session) -> None:
        """Opens a session here."""
        self.sessions[session.session_id] = session
        self.side(session).attach()
        self.mark(session)

    def release(self, session: Session) -> None:
        """Ends a session here, if it is here. Safe to repeat."""
        if self.sessions.pop(session.session_id, None) is None:
            return
        self._dirty.pop(session.session_id, None)
        if self.ready:
            self._closing.append(self.side(session).close_entry(session))
            self._output.set()
        self.side(session).detach()

    def mark(self, session: Session) -> None:
        """The session may have something to say."""
        self._dirty[session.session_id] = session
        self._output.set()

    def check_write(self, now: float) -> None:
        """Gives the stream up if it has not taken a message for too long."""
        if self._writing_since is not None and now - self._writing_since > WRITE_TIMEOUT_S:
            self.break_off(f"it has not read for {now - self._writing_since:.0f} s")

    def break_off(self, why: str) -> None:
        """Gives the stream up, as if it had broken."""
        self._broken_off = why
        if self._call is not None:
            self._call.cancel()

    # Connection

    async def run(self) -> None:
        """Keeps the link up."""
        pause = self._config.reconnect_min_s
        while True:
            started = time.monotonic()
            self._broken_off = ""
            self._writing_since = None
            try:
                await self._connect()
            except FailedPrecondition as refusal:
                self._lose(gateway_pb2.REPLICA_STATE_REFUSED, refusal.message)
            except (grpc.RpcError, asyncio.InvalidStateError) as error:
                self._lose(gateway_pb2.REPLICA_STATE_BROKEN, self._broken_off or _reason(error))
            except Exception as error:  # ours or a confused peer's: this stream is lost, the gateway is not
                logger.exception("a stream failed")
                self._lose(gateway_pb2.REPLICA_STATE_BROKEN, _reason(error))
            finally:
                self._call = None
            self.attempts += 1
            if time.monotonic() - started > self._config.reconnect_max_s:
                pause = self._config.reconnect_min_s
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, self._config.reconnect_max_s)

    async def _connect(self) -> None:
        async with channel(self.address) as connection:
            self.info = await self.get_info(connection)
            refusal = self._owner.refusal(self, self.info)
            if refusal is not None:
                raise FailedPrecondition(refusal)
            call = self._call = self.open_stream(connection)
            await call.write(self.request(hello=self._hello))
            self.state, self.detail = gateway_pb2.REPLICA_STATE_READY, ""
            event(logger, "replica_ready", kind=self.kind, address=self.address, model=self.info.model_id)
            self._owner.on_ready(self)
            writer = asyncio.create_task(self._write(call))
            writer.add_done_callback(lambda _: call.cancel())  # without a writer there is nothing to read
            try:
                await self._read(call)
            except asyncio.CancelledError:
                if _cancelled():
                    raise
                if writer.done():
                    writer.result()
                raise grpc.RpcError("the stream was given up") from None  # the call was cancelled, not this task
            finally:
                writer.cancel()
                call.cancel()

    async def _read(self, call: Any) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            now = time.monotonic()
            self.silent = False
            for entry in response.entries:
                session = self.sessions.get(entry.session_id)
                if session is not None and entry.attachment == self.side(session).attachment:
                    self.dispatch(session, entry, now)
        code = await call.code()
        raise (
            FailedPrecondition(await call.details())
            if code is _REFUSED
            else grpc.RpcError(f"the stream ended: {code.name} {await call.details()}")
        )

    async def _write(self, call: Any) -> None:
        while True:
            await self._output.wait()
            self._output.clear()
            entries, self._closing = self._closing, []
            dirty, self._dirty = self._dirty, {}
            for session in dirty.values():
                entries += self.side(session).entries(session)
            if entries:
                self._writing_since = time.monotonic()
                await call.write(self.request(entries=entries))
                self._writing_since = None

    def _lose(self, state: State, why: str) -> None:
        if self.state != state or self.detail != why:
            event(logger, "replica_lost", level=logging.WARNING, kind=self.kind, address=self.address, reason=why)
        self.state, self.detail = state, why
        lost, self.sessions = list(self.sessions.values()), {}
        self._dirty.clear()
        self._closing.clear()
        for session in lost:
            self.side(session).detach()
        self._owner.on_lost(self, lost)

    # What differs

    @abstractmethod
    def side(self, session: Session) -> TargetSide | DraftSide:
        """The session's standing with this kind of service."""

    @abstractmethod
    async def get_info(self, connection: grpc.aio.Channel) -> types_pb2.ServiceInfo:
        """What the replica says it is."""

    @abstractmethod
    def open_stream(self, connection: grpc.aio.Channel) -> Any:
        """Opens the stream that carries all sessions."""

    @abstractmethod
    def request(self, **content: Any) -> RequestT:
        """A message for the stream."""

    @abstractmethod
    def dispatch(self, session: Session, entry: Any, now: float) -> None:
        """Hands an entry to its session."""


_REFUSED = grpc.StatusCode.FAILED_PRECONDITION


def _cancelled() -> bool:
    """Whether the running task is to stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


class TargetLink(Link[target_pb2.VerifyRequest, target_pb2.VerifyResponse]):
    """A target replica."""

    kind = "target"

    def side(self, session: Session) -> TargetSide:
        return session.target

    async def get_info(self, connection: grpc.aio.Channel) -> types_pb2.ServiceInfo:
        stub = target_pb2_grpc.TargetServiceStub(connection)
        response: target_pb2.TargetServiceGetInfoResponse = await stub.GetInfo(
            target_pb2.TargetServiceGetInfoRequest(), timeout=INFO_TIMEOUT_S
        )
        return response.info

    def open_stream(self, connection: grpc.aio.Channel) -> Any:
        return target_pb2_grpc.TargetServiceStub(connection).Verify()

    def request(self, **content: Any) -> target_pb2.VerifyRequest:
        return target_pb2.VerifyRequest(**content)

    def dispatch(self, session: Session, entry: target_pb2.TargetResponseEntry, now: float) -> None:
        kind = entry.WhichOneof("entry")
        if kind == "verdict":
            session.on_verdict(entry.verdict, now)
        elif kind == "unknown_session":
            session.on_target_unknown()
        elif kind == "failed":
            self.sessions.pop(session.session_id, None)
            self._owner.on_target_failed(session, entry.failed)
        self._owner.on_change(session)


class DraftLink(Link[draft_pb2.SpeculateRequest, draft_pb2.SpeculateResponse]):
    """A draft replica."""

    kind = "draft"

    def side(self, session: Session) -> DraftSide:
        return session.draft

    async def get_info(self, connection: grpc.aio.Channel) -> types_pb2.ServiceInfo:
        stub = draft_pb2_grpc.DraftServiceStub(connection)
        response: draft_pb2.DraftServiceGetInfoResponse = await stub.GetInfo(
            draft_pb2.DraftServiceGetInfoRequest(), timeout=INFO_TIMEOUT_S
        )
        return response.info

    def open_stream(self, connection: grpc.aio.Channel) -> Any:
        return draft_pb2_grpc.DraftServiceStub(connection).Speculate()

    def request(self, **content: Any) -> draft_pb2.SpeculateRequest:
        return draft_pb2.SpeculateRequest(**content)

    def dispatch(self, session: Session, entry: draft_pb2.DraftResponseEntry, now: float) -> None:
        kind = entry.WhichOneof("entry")
        session.draft.owed_since = None
        if kind == "candidates":
            session.on_candidates(entry.candidates)
        elif kind in ("need_open", "unknown_session"):
            session.on_draft_lost(now)
        elif kind == "detached":
            session.on_detached(entry.detached, now)
        if not session.draft.attached:
            self.release(session)
        self._owner.on_change(session)


def hello(config: GatewayConfig) -> types_pb2.Hello:
    """The greeting of this gateway's start: a name and a number that no other start has."""
    incarnation = random.SystemRandom().getrandbits(64) or 1
    name = config.gateway_id or f"gateway-{incarnation:016x}"
    return types_pb2.Hello(protocol_version=PROTOCOL_VERSION, gateway_id=name, gateway_incarnation=incarnation)
