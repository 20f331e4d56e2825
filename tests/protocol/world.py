"""A whole deployment under virtual time, and what must always hold in it.

Real: the gateway's Dispatcher, Links and Sessions, both engines with cache, scheduler and patience, every message.
Simulated: the network, time, the models, the processes that die. After each event the services' books are checked.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from google.protobuf import text_format

from draft_service.drafters.drafter import Drafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.engine import DraftEngine, DraftLimits
from forerun.config import MAX_WINDOW
from forerun.runtime.kv_cache import KvCache
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2, target_pb2, types_pb2
from target_service.engine import TargetEngine, TargetLimits
from target_service.patience import Patience
from target_service.scheduler import Scheduler
from tests.protocol.gateway_node import Client, GatewayNode
from tests.protocol.network import START, Clock, Pipe
from tests.protocol.replica import Machine, Replica
from tests.protocol.scenarios import Fault, Scenario, SessionPlan
from tests.protocol.scripts import (
    END,
    GUESSES,
    STOP,
    LeapingDrafter,
    MaliciousDraft,
    Script,
    ScriptedDrafter,
    ScriptedTarget,
)

SWEEP_S = 0.1
PROGRESS_S = 120.0  # virtual; within this time of the last fault every session must have ended
QUIET_S = 5.0  # after all sessions ended, until nothing is on its way any more
DRAFT_RETRY_S = 0.1  # sessions here are short
CLOCKED = ("gateway.session", "gateway.draft_side", "gateway.dispatcher", "gateway.link")


class EndlessPatience(Patience):
    """A target that waits for candidates for ever."""

    def seconds(self, batch_size: int, rounds_since_wait: int) -> float:
        return float("inf")


class NoTrace:
    """Nobody looks."""

    def draft(self, *_: Any) -> None: ...
    def prefill(self, *_: Any) -> None: ...
    def verify(self, *_: Any) -> None: ...


@contextmanager
def virtual_time(clock: Clock) -> Iterator[None]:
    """The gateway's modules read this clock; lost replicas, which are business as usual here, are not logged."""
    logger = logging.getLogger("gateway.link")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        for module in CLOCKED:
            stack.enter_context(patch(f"{module}.time", clock))
        stack.enter_context(patch("gateway.session.DRAFT_RETRY_S", DRAFT_RETRY_S))
        try:
            yield
        finally:
            logger.setLevel(level)


class World:
    """Everything, from its scenario."""

    def __init__(self, scenario: Scenario, hold_at: int | None = None) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.story: list[tuple[float, str, Any]] = []
        self._random = random.Random(scenario.seed)
        self._script = Script(scenario.vocabulary_size, scenario.rarity, scenario.memory)
        self._hold_at = hold_at
        self._calm_at = START + scenario.calm_at_ms / 1000
        self.targets = [self._target() for _ in range(scenario.targets)]
        self.drafts = [self._draft(kind) for kind in scenario.drafts]
        self.gateways = [self._gateway(f"gateway-{i}") for i in range(scenario.gateways)]
        self.clients: list[Client] = []
        for plan in scenario.sessions:
            self.clients.append(self._client(plan))
        for fault in scenario.faults:
            self.clock.after(fault.at_ms / 1000, self._striking(fault))
        self._sweep()

    # Building

    def _seed(self) -> int:
        return self._random.getrandbits(32)

    def _info(self, max_sessions: int) -> types_pb2.ServiceInfo:
        return types_pb2.ServiceInfo(tokenizer_fingerprint="vocabulary", max_sessions=max_sessions)

    def _target(self) -> Replica:
        scenario = self.scenario
        limits = TargetLimits(scenario.vocabulary_size, scenario.context_length, (END,), scenario.max_sessions)
        blocks = -(-scenario.context_length // scenario.block_size) + scenario.spare_blocks
        patience = {"real": lambda: Patience(1.0), "none": lambda: Patience(0.0), "endless": lambda: EndlessPatience(0)}

        def start() -> Machine:
            cache = KvCache(blocks, scenario.block_size, scenario.reuse)
            scheduler = Scheduler(patience[scenario.patience](), scenario.max_batch_tokens)
            engine = TargetEngine(limits, cache, scheduler, NoTrace(), scenario.overlaps)
            model = ScriptedTarget(self._script, scenario.block_size)
            return Machine(engine, model.execute, scenario.target_ms)

        return Replica(
            self.clock,
            self._seed(),
            self._info(scenario.max_sessions),
            start,
            lambda entries: target_pb2.VerifyResponse(entries=entries),
            self._check_target,
        )

    def _draft(self, kind: str) -> Replica:
        scenario = self.scenario
        step_ms = scenario.draft_ms if kind != "slow" else (60.0, 90.0)
        limits = DraftLimits(
            scenario.vocabulary_size if kind != "ngram" else 0,
            scenario.draft_context_length,
            (END,),
            scenario.draft_max_sessions,
        )

        def start() -> Machine:
            if kind == "malicious":
                return Machine(MaliciousDraft(self._script, self._seed()), lambda step: None, step_ms)
            drafter = self._drafter(kind)
            engine = DraftEngine(limits, drafter, NoTrace())
            return Machine(engine, lambda step: drafter.execute(step.batch), step_ms)

        return Replica(
            self.clock,
            self._seed(),
            self._info(scenario.draft_max_sessions),
            start,
            lambda entries: draft_pb2.SpeculateResponse(entries=entries),
            self._check_draft if kind != "malicious" else lambda machine: None,
        )

    def _drafter(self, kind: str) -> Drafter:
        if kind == "ngram":
            return NgramDrafter(1, 3)
        if kind == "leaping":
            return LeapingDrafter(self._script)
        cache = KvCache(self.scenario.draft_blocks, self.scenario.block_size, self.scenario.reuse)
        return ScriptedDrafter(self._script, cache, self.scenario.max_batch_tokens, GUESSES[kind])

    def _pipe(self, deliver: Callable[[Any], None]) -> Pipe:
        return Pipe(self.clock, self.scenario.weather, self._calm_at, self._seed(), deliver)

    def _gateway(self, name: str) -> GatewayNode:
        slow_ms = self.scenario.weather.delay_ms[1] - self.scenario.weather.delay_ms[0]
        return GatewayNode(self.clock, name, self.targets, self.drafts, self._pipe, slow_ms, self._seed(), self._tell)

    def _client(self, plan: SessionPlan) -> Client:
        scenario = self.scenario
        params = SamplingParams(
            seed=self._seed(),
            max_tokens=plan.max_tokens,
            min_tokens=min(plan.min_tokens, plan.max_tokens),
            stop_token_ids=(STOP,) if plan.stops else (),
            ignore_eos=plan.ignore_eos,
        )
        source = random.Random(scenario.seed) if scenario.reuse else self._random
        prompt = [source.randrange(scenario.vocabulary_size) for _ in range(plan.prompt_length)]
        node = self.gateways[plan.gateway % len(self.gateways)]
        number = 1 + sum(client.node is node for client in self.clients)  # gateways number theirs alike
        client = Client(
            plan,
            number,
            node,
            params,
            prompt,
            self._script.plain(params, prompt, scenario.context_length),
            scenario.vocabulary_size,
            self._hold,
        )
        self.clock.after(plan.start_ms / 1000, client.open)
        return client

    def _hold(self) -> int | None:
        """Output tokens that may be committed before everything is calm; None if as many as there are."""
        return self._hold_at if self.clock.now < self._calm_at + QUIET_S else None

    # Faults

    def _striking(self, fault: Fault) -> Callable[[], None]:
        return lambda: self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        self._tell(f"FAULT {fault}", None)
        targets, drafts = self.targets, self.drafts
        target, draft = targets[fault.which % len(targets)], drafts[fault.which % len(drafts)]
        match fault.kind:
            case "break target stream":
                self._break(target, fault.which)
            case "break draft stream":
                self._break(draft, fault.which)
            case "restart target":
                self._restart(target, fault.for_ms)
            case "restart draft":
                self._restart(draft, fault.for_ms)
            case "hang draft":
                draft.hang(fault.for_ms / 1000)
            case "fail draft step":
                if draft.machine is not None:
                    draft.machine.failing = True
            case "draft length":
                client = self.clients[fault.which % len(self.clients)]
                client.session.draft_length = (fault.at_ms * 7 + fault.for_ms) % 7
                client.node.dispatcher.on_change(client.session)
            case _:
                raise AssertionError(fault.kind)

    def _wires(self, replica: Replica) -> list[Any]:
        return [wire for gateway in self.gateways for wire in gateway.wires if wire.replica is replica]

    def _break(self, replica: Replica, which: int) -> None:
        wires = self._wires(replica)
        wires[which // 2 % len(wires)].break_now()

    def _restart(self, replica: Replica, for_ms: int) -> None:
        replica.stop()
        for wire in self._wires(replica):
            wire.break_now()
        self.clock.after(for_ms / 1000, replica.start)

    # Running

    def run(self) -> None:
        """From the first request until every session has ended and everything is quiet."""
        with virtual_time(self.clock):
            calm = self._calm_at + (QUIET_S if self._hold_at is not None else 0)
            if self._hold_at is not None:
                self.clock.run(calm, lambda: False)
                self.clock.now = calm
                for client in self.clients:
                    client.release()
            self.clock.run(calm + PROGRESS_S, lambda: all(client.done for client in self.clients))
            self._check_ends()
            self.clock.run(self.clock.now + QUIET_S, lambda: False)
            self._check_freed()

    def _sweep(self) -> None:
        for gateway in self.gateways:
            gateway.sweep()
        self.clock.after(SWEEP_S, self._sweep)

    # What must hold

    def _check_ends(self) -> None:
        for client in self.clients:
            assert client.error is None, f"session {client.number} failed: {client.error}"
            assert client.done, f"session {client.number} of {client.node.gateway_id} is stalled"
            if not client.gone or client.session.finish_reason:
                assert client.session.token_ids == client.expected

            if self.scenario.reliable:
                assert not client.session.silences, "a target kept silent until it was asked again"
        if self.scenario.reliable and not self.scenario.sluggish:
            assert not any(gateway.gave_up for gateway in self.gateways), "an honest draft was given up"

    def _check_freed(self) -> None:
        if not self.scenario.reliable:  # a lost Close is made good by the end of the stream
            for gateway in self.gateways:
                for wire in gateway.wires:
                    wire.break_now()
            self.clock.run(self.clock.now + 1.0, lambda: False)
        for replica in (*self.targets, *self.drafts):
            assert replica.machine is not None
            engine = replica.machine.engine
            assert len(engine.sessions) == 0, "a session was left behind"
            if not isinstance(engine, MaliciousDraft):
                assert engine.read_stats().used_blocks == 0, "blocks were left behind"
        for gateway in self.gateways:
            assert not gateway.dispatcher.sessions
            assert not any(wire.link.sessions for wire in gateway.wires)

    def _check_target(self, machine: Machine) -> None:
        engine, tables = machine.engine, []
        for session in engine.sessions:
            assert len(session.candidates) <= MAX_WINDOW
            assert session.committed_length <= max(session.commit_limit, session.prompt_length)
            tables += session.sequence.block_table
        self._check_blocks(tables, engine.read_stats().used_blocks)
        for stream in machine.streams:
            assert stream.queued <= self._most_queued(), "an outbox grows"

    def _check_draft(self, machine: Machine) -> None:
        engine, tables = machine.engine, []
        for session in engine.sessions:
            assert session.head <= session.committed_length + 6 + 12, "drafted beyond the window"
            assert session.committed_length <= session.sent_length <= session.head
            tables += session.sequence.block_table
        self._check_blocks(tables, engine.read_stats().used_blocks)
        for stream in machine.streams:
            assert stream.queued <= self._most_queued(), "an outbox grows"

    def _check_blocks(self, tables: list[int], used_blocks: int) -> None:
        assert len(set(tables)) == used_blocks, "blocks belong to nobody"
        assert self.scenario.reuse or len(tables) == used_blocks, "blocks have two owners"

    def _most_queued(self) -> int:
        """Entries for one gateway: one for each token that may be committed or drafted, and answers to what it asks."""
        plans = self.scenario.sessions
        return sum(2 * min(plan.credit, plan.max_tokens) + plan.draft_length + plan.ahead + 40 for plan in plans)

    # The story

    def _tell(self, who: str, message: Any) -> None:
        self.story.append((self.clock.now, who, message))

    def tell(self, last: int = 120) -> str:
        """What happened, for people."""
        return "\n".join(f"{1000 * (when - START):9.2f} {who} {_line(what)}" for when, who, what in self.story[-last:])


def _line(message: Any) -> str:
    return "" if message is None else text_format.MessageToString(message, as_one_line=True)
