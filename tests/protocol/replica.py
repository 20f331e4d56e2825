"""A model service of the simulation: the real engine, a worker whose steps take virtual time, and its streams.

It does what `forerun.runtime.step_loop` and `stream_server` do, on a clock instead of an event loop. A restart throws
the engine away with all it knew.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forerun.config import PROTOCOL_VERSION
from forerun.runtime.stream import Stream
from forerun.v1 import types_pb2
from tests.protocol.network import Clock


@dataclass
class Machine:
    """A freshly started process: an engine and who executes its steps."""

    engine: Any
    execute: Callable[[Any], Any]
    step_ms: tuple[float, float]
    busy: bool = False
    running: Any = None
    ahead: Any = None  # the step that is begun behind the one that runs
    ticket: int = 0  # only the latest wake-up counts
    failing: bool = False  # the next step raises
    streams: list[Stream[Any, Any]] = field(default_factory=list)


class Replica:
    """One address at which processes come and go."""

    def __init__(
        self,
        clock: Clock,
        seed: int,
        info: types_pb2.ServiceInfo,
        start: Callable[[], Machine],
        respond: Callable[[list[Any]], Any],
        check: Callable[[Machine], None],
    ) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._start = start
        self._respond = respond
        self._check = check
        self._info = info
        self._hung_until = 0.0
        self.machine: Machine | None = start()

    @property
    def info(self) -> types_pb2.ServiceInfo:
        """The answer to GetInfo. Every start has another incarnation."""
        return types_pb2.ServiceInfo(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._random.getrandbits(63) + 1,
            model_id="script",
            **{name.name: value for name, value in self._info.ListFields()},
        )

    def stop(self) -> None:
        """The process dies."""
        self.machine = None

    def start(self) -> None:
        """A new process takes its place."""
        if self.machine is None:
            self.machine = self._start()

    def hang(self, seconds: float) -> None:
        """Steps that end in this time end after it."""
        self._hung_until = self._clock.now + seconds

    # Streams

    def connect(self, gateway_id: str, send: Callable[[Any], None], slow_ms: float) -> Stream[Any, Any]:
        """Opens a gateway's stream. `send` puts a message on its way; a slow stream gathers entries first."""
        machine = self.machine
        assert machine is not None
        due = False

        def on_output() -> None:
            nonlocal due
            if not due and not stream.replaced:
                due = True
                self._clock.after(self._random.uniform(0, slow_ms) / 1000, flush)

        def flush() -> None:
            nonlocal due
            due = False
            entries = stream.take()
            if entries:
                send(self._respond(entries))

        stream: Stream[Any, Any] = Stream(gateway_id, on_output)
        machine.engine.sessions.connect(stream)
        machine.streams.append(stream)
        return stream

    def disconnect(self, stream: Stream[Any, Any]) -> None:
        """A stream's end was noticed."""
        machine = self.machine
        if machine is not None and stream in machine.streams:
            machine.streams.remove(stream)
            machine.engine.sessions.disconnect(stream)
            self._check(machine)
            self._wake(machine)

    def receive(self, stream: Stream[Any, Any], message: Any) -> None:
        """A message arrived."""
        machine = self.machine
        if machine is None or stream not in machine.streams:
            return
        for entry in message.entries:
            machine.engine.handle(stream, entry, self._clock.now)
        self._check(machine)
        self._wake(machine)

    # Steps

    def _wake(self, machine: Machine) -> None:
        if machine is not self.machine:
            return
        machine.ticket += 1
        if machine.busy:
            self._plan_ahead(machine)
            return
        planned = machine.engine.plan(self._clock.now)
        self._check(machine)
        if planned is None or planned == float("inf"):
            return
        if isinstance(planned, float):
            ticket = machine.ticket
            self._clock.at(max(planned, self._clock.now + 1e-6), lambda: self._expire(machine, ticket))
            return
        self._begin(machine, planned)

    def _begin(self, machine: Machine, planned: Any) -> None:
        machine.busy = True
        machine.running, machine.ahead = planned, None
        self._plan_ahead(machine)
        done = self._clock.now + self._random.uniform(*machine.step_ms) / 1000
        if done < self._hung_until:
            done = self._hung_until
        self._clock.at(done, lambda: self._finish(machine, planned))

    def _plan_ahead(self, machine: Machine) -> None:
        if machine.ahead is not None:
            return
        planned = machine.engine.plan_ahead(machine.running, self._clock.now)
        self._check(machine)
        if isinstance(planned, float):
            ticket = machine.ticket
            self._clock.at(max(planned, self._clock.now + 1e-6), lambda: self._expire(machine, ticket))
        else:
            machine.ahead = planned

    def _expire(self, machine: Machine, ticket: int) -> None:
        if machine.ticket == ticket:
            self._wake(machine)

    def _finish(self, machine: Machine, step: Any) -> None:
        if machine is not self.machine:
            return
        machine.busy, ahead = False, machine.ahead
        outcome = machine.execute(step)
        if machine.failing:
            machine.failing = False
            machine.engine.fail(step, RuntimeError("scripted"), self._clock.now)
        else:
            machine.engine.complete(step, outcome, self._clock.now)
        self._check(machine)
        if ahead is not None:
            self._begin(machine, ahead)
        else:
            self._wake(machine)
