"""A gateway of the simulation: the real Dispatcher with its real Links and Sessions, and clients that read.

A link's own read and write loops run here too, but as coroutines that are resumed by hand when something happens: no
event loop, no gRPC. What is written anew is only connecting and reconnecting (`Wire`), and the client (`Client`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from forerun.config import GatewayConfig
from forerun.errors import ForerunError
from forerun.sampling_params import SamplingParams
from forerun.v1 import gateway_pb2, target_pb2, types_pb2
from gateway.dispatcher import Dispatcher
from gateway.link import Link
from gateway.round import Round, SpeculationTally
from gateway.session import Session, SpeculationSettings
from tests.protocol.network import Clock, Pipe
from tests.protocol.replica import Replica
from tests.protocol.scenarios import SessionPlan

NOTICE_MS = 30.0  # at most until either side sees that a stream broke


@coroutine
def _pause() -> Generator[None, None, None]:
    """Suspends a coroutine until it is resumed by hand."""
    yield


class Flag:
    """Stands in for the `asyncio.Event` that wakes a link's writer."""

    def __init__(self, on_set: Callable[[], None]) -> None:
        self._on_set = on_set
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._on_set()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        while not self._is_set:
            await _pause()


class Call:
    """Stands in for a gRPC call: what the link reads and writes through."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.inbox: deque[Any] = deque()
        self.up: Pipe
        self.cancel = cancel

    async def read(self) -> Any:
        while not self.inbox:
            await _pause()
        return self.inbox.popleft()

    async def write(self, message: Any) -> None:
        self.up.send(message)


class Wire:
    """A link's connection to a replica: made, broken, made again."""

    def __init__(self, node: GatewayNode, link: Link[Any, Any], replica: Replica, seed: int) -> None:
        self.link = link
        self.replica = replica
        self.call: Call | None = None
        self._node = node
        self._clock = node.clock
        self._random = random.Random(seed)
        self._loops: list[Coroutine[Any, Any, None]] = []
        self._down: Pipe
        self._stream: Any = None

    def connect(self) -> None:
        """Connects, or tries again a little later."""
        if self.replica.machine is None:
            self._again()
            return
        link = self.link
        link.info = self.replica.info
        assert self._node.dispatcher.refusal(link, link.info) is None
        call = self.call = Call(self._given_up)
        self._down = self._node.pipe(lambda message: self._deliver(call, message))
        self._stream = self.replica.connect(self._node.gateway_id, self._down.send, self._node.slow_ms)
        stream = self._stream
        call.up = self._node.pipe(lambda message: self.replica.receive(stream, message))
        link._output = Flag(lambda: self._clock.after(self._random.uniform(0, 0.001), lambda: self._write(call)))  # type: ignore[assignment]
        link._call = call
        link.state, link.detail = gateway_pb2.REPLICA_STATE_READY, ""
        self._loops = [link._read(call), link._write(call)]
        for loop in self._loops:
            loop.send(None)
        self._node.dispatcher.on_ready(link)

    def break_now(self) -> None:
        """The stream breaks: nothing passes any more, and both sides find out, each in its own time."""
        call = self.call
        if call is None:
            return
        self.call = None
        call.up.open = self._down.open = False
        replica, stream = self.replica, self._stream
        self._clock.after(self._random.uniform(0, NOTICE_MS) / 1000, lambda: replica.disconnect(stream))
        self._clock.after(self._random.uniform(0, NOTICE_MS) / 1000, self._notice)

    def _given_up(self) -> None:
        self._node.log(f"{self._node.gateway_id} gives up on {self.link.address}", None)
        self._node.gave_up += 1
        self._clock.after(0, self.break_now)

    def _notice(self) -> None:
        for loop in self._loops:
            loop.close()
        self.link._call = None
        self.link._lose(gateway_pb2.REPLICA_STATE_BROKEN, "broken")
        self._again()

    def _again(self) -> None:
        self.link.attempts += 1
        self._clock.after(self._random.uniform(0.001, 0.04), self.connect)

    def _write(self, call: Call) -> None:
        if self.call is call:
            self._loops[1].send(None)

    def _deliver(self, call: Call, message: Any) -> None:
        if self.call is call:
            self._node.log(f"{self.link.kind} > {self._node.gateway_id}", message)
            call.inbox.append(message)
            self._loops[0].send(None)


class GatewayNode:
    """One gateway process."""

    def __init__(
        self,
        clock: Clock,
        gateway_id: str,
        targets: list[Replica],
        drafts: list[Replica],
        pipe: Callable[[Callable[[Any], None]], Pipe],
        slow_ms: float,
        seed: int,
        log: Callable[[str, Any], None],
    ) -> None:
        self.clock = clock
        self.gateway_id = gateway_id
        self.pipe = pipe
        self.slow_ms = slow_ms
        self.log = log
        self.gave_up = 0  # times that a draft was too long silent
        config = GatewayConfig(
            targets=tuple(f"target:{i}" for i in range(len(targets))),
            drafts=tuple(f"draft:{i}" for i in range(len(drafts))),
            gateway_id=gateway_id,
            target_wait_s=1000.0,
            verdict_timeout_s=8.0,
            draft_timeout_s=4.0,
        )
        self.dispatcher = Dispatcher(config, "vocabulary")
        links: list[Link[Any, Any]] = [*self.dispatcher.targets, *self.dispatcher.drafts]
        self.wires = [
            Wire(self, link, replica, seed + i)
            for i, (link, replica) in enumerate(zip(links, [*targets, *drafts], strict=True))
        ]
        for wire in self.wires:
            wire.connect()

    def sweep(self) -> None:
        """What the dispatcher does every tenth of a second."""
        self.dispatcher.sweep(self.clock.now)


class Client:
    """A request, and somebody who reads what comes and compares it with plain decoding."""

    def __init__(
        self,
        plan: SessionPlan,
        number: int,
        node: GatewayNode,
        params: SamplingParams,
        prompt: list[int],
        expected: tuple[list[int], int],
        vocabulary_size: int,
        hold: Callable[[], int | None],
    ) -> None:
        self.plan = plan
        self.number = number
        self.node = node
        self.expected, self.reason = expected
        self.error: ForerunError | None = None
        self.gone = False
        self.tally = SpeculationTally()  # since everything is calm, if the world holds sessions back until then
        self._hold = hold
        deadline = None if plan.deadline_ms is None else node.clock.now + plan.deadline_ms / 1000
        self.session = Session(
            number,
            prompt,
            [],
            params,
            SpeculationSettings(plan.draft_length, plan.draft_length + plan.ahead),
            vocabulary_size,
            self,
            deadline=deadline,
        )
        for limit in (plan.leave_ms, plan.deadline_ms):
            if limit is not None:
                node.clock.after(limit / 1000, self.leave)

    def open(self) -> None:
        """Sends the request."""
        if not self.gone:
            self._allow(self.session.committed_length)
            self.node.dispatcher.open(self.session, self.node.clock.now)

    def leave(self) -> None:
        """Cancels, or goes away because the answer is complete."""
        self.gone = True
        self.node.dispatcher.close(self.session)

    @property
    def done(self) -> bool:
        return self.gone or self.session.finish_reason != types_pb2.FINISH_REASON_UNSPECIFIED

    def on_round(self, session: Session, finished: Round, verdict: target_pb2.Verdict) -> None:
        tokens = session.token_ids
        assert tokens == self.expected[: len(tokens)], "the committed tokens are not those of plain decoding"
        assert len(tokens) <= session.commit_limit, "committed beyond the limit"
        ends = len(tokens) == len(self.expected)
        assert verdict.finish_reason == (self.reason if ends else 0), "ended elsewhere than plain decoding"
        gateway_pb2.Round(  # what a client may be told must fit its message
            index=finished.index,
            draft_token_ids=finished.draft_token_ids,
            accepted_count=finished.accepted_count,
            epoch=finished.epoch,
            draft_ns=finished.draft_ns,
        )
        if self._hold() is None:
            self.tally.add(finished)
        read = len(tokens)
        self.node.clock.after(self.plan.read_ms / 1000, lambda: self._read(read))

    def on_candidates(self, session: Session) -> None: ...

    def on_failure(self, session: Session, error: ForerunError) -> None:
        self.error = error

    def _read(self, length: int) -> None:
        if self.gone:
            return
        if self.session.finish_reason and length == len(self.expected):
            self.leave()
        else:
            self._allow(length)
            self.node.dispatcher.on_change(self.session)

    def _allow(self, read: int) -> None:
        hold = self._hold()
        limit = read + self.plan.credit
        self.session.allow(limit if hold is None else min(limit, self.session.prompt_length + hold))

    def release(self) -> None:
        """Goes on reading after a hold."""
        if not self.gone and self.session.session_id in self.node.dispatcher.sessions:
            self._read(self.session.committed_length)
