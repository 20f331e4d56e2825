"""Puts sessions onto replicas and keeps them there: the least loaded that fits, another one when it is lost.

A session without a target waits, for a bounded time; a session without a draft decodes plainly. Everything that
depends on the clock is in `sweep`, which is called often: replicas that are silent, sessions that waited too long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from forerun.config import GatewayConfig
from forerun.errors import Overloaded, Unavailable
from forerun.v1 import target_pb2, types_pb2
from gateway.draft_lengths import DraftLengths
from gateway.give_way import GiveWay
from gateway.link import DraftLink, Link, TargetLink, hello
from gateway.pairing import draft_refusal, protocol_refusal, target_refusal
from gateway.round import Round
from gateway.session import Session

logger = logging.getLogger(__name__)

SWEEP_EVERY_S = 0.1
MAX_SILENCE_DOUBLINGS = 6

LinkT = TypeVar("LinkT", bound=Link[Any, Any])


class Dispatcher:
    """All links and all sessions of one gateway."""

    def __init__(self, config: GatewayConfig, fingerprint: str) -> None:
        self._config = config
        self._fingerprint = fingerprint
        greeting = hello(config)
        self.targets = [TargetLink(address, greeting, config, self) for address in config.targets]
        self.drafts = [DraftLink(address, greeting, config, self) for address in config.drafts]
        self.served: types_pb2.ServiceInfo | None = None  # what the targets serve; set once one was reached
        self.sessions: dict[int, Session] = {}
        self._waiting: dict[int, float] = {}  # sessions without a target, and since when
        self._changed = asyncio.Event()
        self.give_way = GiveWay()
        self._draft_lengths = DraftLengths(config)
        self._prompts: set[int] = set()  # sessions without a verdict yet
        self._last_prompt_unix_ns = 0  # when one of them had its first

    @property
    def draft_length(self) -> int:
        """Candidates a round at the present load, for sessions that leave it to the gateway."""
        return self._draft_lengths.now(len(self.sessions))

    @property
    def links(self) -> list[Link[Any, Any]]:
        return [*self.targets, *self.drafts]

    async def run(self) -> None:
        """Keeps all links up and sweeps. Never returns; cancel it to stop."""
        async with asyncio.TaskGroup() as tasks:
            for link in self.links:
                tasks.create_task(link.run())
            while True:
                try:
                    self.sweep(time.monotonic())
                except Exception:  # one session's trouble must not stop the others' clock
                    logger.exception("a sweep failed")
                await asyncio.sleep(SWEEP_EVERY_S)

    async def wait_for_target(self, timeout_s: float) -> types_pb2.ServiceInfo:
        """What the targets serve, as soon as one was reached. Raises Unavailable after `timeout_s` without any."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.served is None:
                    await self._wait_for_change()
        except TimeoutError:
            why = "; ".join(f"{link.address}: {link.detail}" for link in self.targets)
            raise Unavailable(f"no target for {timeout_s:g} s ({why})") from None
        return self.served

    async def wait_until_tried(self) -> None:
        """Returns once a target is ready or refused, and every draft was tried once."""
        while not (
            any(link.ready or link.refused for link in self.targets) and all(self._tried(d) for d in self.drafts)
        ):
            await self._wait_for_change()

    def refusals(self) -> list[str]:
        """Why replicas are not used although they were reached."""
        return [link.detail for link in self.links if link.refused]

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    @staticmethod
    def _tried(link: Link[Any, Any]) -> bool:
        return link.ready or link.attempts > 0

    # Sessions

    def open(self, session: Session, now: float) -> None:
        """Takes a session and places it."""
        self.sessions[session.session_id] = session
        self._waiting[session.session_id] = now
        self._prompts.add(session.session_id)
        self._set_draft_lengths()
        self._place_draft(session, now)
        self._place_target(session)

    def close(self, session: Session) -> None:
        """Lets a session go on all services. Safe to repeat."""
        session.closed = True
        self.sessions.pop(session.session_id, None)
        self._waiting.pop(session.session_id, None)
        self._prompts.discard(session.session_id)
        for link in self.links:
            link.release(session)
        self._set_draft_lengths()

    def on_round(self, session: Session, finished: Round) -> None:
        """Learns from a finished round how long drafts should be."""
        if session.session_id in self._prompts:
            self._prompts.remove(session.session_id)
            self._last_prompt_unix_ns = finished.ended_unix_ns
            return
        beside_prompt = bool(self._prompts) or self._last_prompt_unix_ns >= finished.started_unix_ns
        if session.adaptive and self._draft_lengths.record(finished, len(self.sessions), beside_prompt):
            self._set_draft_lengths()

    def _set_draft_lengths(self) -> None:
        """Has all sessions that leave it to the gateway use the draft length for the present load."""
        length = self._draft_lengths.now(len(self.sessions))
        for session in self.sessions.values():
            if session.adaptive and session.draft_length != length:
                session.draft_length = length
                self.on_change(session)

    def on_change(self, session: Session) -> None:
        """Has both services told what is new about a session."""
        for link in self.links:
            if session.session_id in link.sessions:
                link.mark(session)

    def _place_target(self, session: Session) -> bool:
        link = _best(self.targets)
        if link is None:
            return False
        self._waiting.pop(session.session_id, None)
        session.last_verdict_at = time.monotonic()
        link.attach(session)
        return True

    def _place_draft(self, session: Session, now: float) -> None:
        side = session.draft
        if side.attached or side.hopeless or session.draft_length == 0 or now < side.retry_at:
            return
        link = _best(self.drafts)
        if link is not None:
            link.attach(session)
            self.on_change(session)

    # What links report

    def refusal(self, link: Link[Any, Any], info: types_pb2.ServiceInfo) -> str | None:
        problem = protocol_refusal(link.address, info)
        if problem is not None:
            return problem
        if isinstance(link, DraftLink):
            return draft_refusal(link.address, info, self._fingerprint)
        others_serve = self.sessions or any(other.ready for other in self.targets)
        return target_refusal(link.address, info, self._fingerprint, self.served if others_serve else None)

    def on_ready(self, link: Link[Any, Any]) -> None:
        if isinstance(link, TargetLink):
            self.served = link.info
        self._changed.set()
        self.sweep(time.monotonic())

    def on_lost(self, link: Link[Any, Any], sessions: list[Session]) -> None:
        self._changed.set()
        now = time.monotonic()
        for session in sessions:
            if session.finished:
                continue
            if isinstance(link, TargetLink):
                self._waiting[session.session_id] = now
                self._place_target(session)
            else:
                self._place_draft(session, now)
                self.on_change(session)

    def on_target_failed(self, session: Session, failed: target_pb2.SessionFailed) -> None:
        error = session.on_target_failed(failed)
        if isinstance(error, Overloaded):  # another gateway was first: wait with the others
            self._waiting.setdefault(session.session_id, time.monotonic())
        else:
            session.fail(error)

    # What only the clock tells

    def sweep(self, now: float) -> None:
        """Places who waits, gives up on who waited too long, asks silent targets again, breaks off deaf links."""
        for session_id, since in list(self._waiting.items()):
            session = self.sessions[session_id]
            if not self._place_target(session) and now - since > self._config.target_wait_s:
                del self._waiting[session_id]
                why = "; ".join(f"{link.address}: {link.detail or 'full'}" for link in self.targets)
                session.fail(Unavailable(f"no target for {self._config.target_wait_s:g} s ({why})"))
        for session in list(self.sessions.values()):
            self._place_draft(session, now)
            self._check_silence(session, now)
        for link in self.links:
            link.check_write(now)
            if isinstance(link, DraftLink):
                self._check_draft(link, now)

    def _check_silence(self, session: Session, now: float) -> None:
        if not session.awaits_verdict:
            session.last_verdict_at = now  # silence counts from when the target has leave to speak
            return
        patience = self._config.verdict_timeout_s * 2 ** min(session.silences, MAX_SILENCE_DOUBLINGS)
        if now - session.last_verdict_at > patience:
            session.silences += 1
            for link in self.targets:
                link.silent |= session.session_id in link.sessions
                link.release(session)
            self._waiting[session.session_id] = now
            self._place_target(session)
            session.on_silence()
            self.on_change(session)

    def _check_draft(self, link: DraftLink, now: float) -> None:
        for session in link.sessions.values():
            owed = session.draft.owed_since
            due = owed is not None and not session.candidates.token_ids and session.awaits_verdict
            if due and owed is not None and now - owed > self._config.draft_timeout_s:
                link.break_off(f"silent for {now - owed:.1f} s while candidates were due")
                return


def _best(links: Sequence[LinkT]) -> LinkT | None:
    """The least loaded link with room; one that was silent when it was due comes last."""
    return min(
        (link for link in links if link.has_room), key=lambda link: (link.silent, len(link.sessions)), default=None
    )
