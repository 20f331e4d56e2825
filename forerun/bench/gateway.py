"""What the gateway says of the services behind it, and what those count."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import grpc

from forerun import rpc
from forerun.bench.records import Deployment
from forerun.errors import Unavailable
from forerun.v1 import draft_pb2, draft_pb2_grpc, gateway_pb2, gateway_pb2_grpc, target_pb2, target_pb2_grpc, types_pb2

_COUNTED = {
    "target": ("steps", "stale_entries", "preemptions", "reused_prompt_tokens", "failed_sessions"),
    "draft": ("steps", "drafted_tokens", "rollbacks", "reused_prompt_tokens", "stale_entries"),
}
_POLL_S = 0.1
_CALL_S = 5.0
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Reachable:
    """Where a gateway is, and the processes behind it where they are ours to look at."""

    address: str
    pids: dict[str, int] = field(default_factory=dict)


class Gateway:
    """A connection to a gateway, and to the model services that it uses. A context manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = rpc.channel(address)
        self.stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        self._others: dict[str, grpc.aio.Channel] = {}
        self._silent: set[str] = set()  # services that cannot be reached from here; asked once

    async def __aenter__(self) -> Gateway:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._channel, *self._others.values()):
            await channel.close(None)

    async def status(self) -> gateway_pb2.GetStatusResponse:
        """What it serves. Raises Unavailable if nobody answers."""
        try:
            status: gateway_pb2.GetStatusResponse = await self.stub.GetStatus(
                gateway_pb2.GetStatusRequest(), timeout=_CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"no gateway answers at {self.address}: {error.details()}") from None
        return status

    async def ready(self, with_draft: bool) -> gateway_pb2.GetStatusResponse:
        """Waits until it has its target and, if wanted, its draft. Raises Unavailable if that takes too long."""
        deadline = time.monotonic() + _READY_S
        while True:
            status = await self.status()
            missing = _missing(status, with_draft)
            if not missing:
                return status
            if time.monotonic() > deadline:
                raise Unavailable(f"the gateway at {self.address} has no {missing}")
            await asyncio.sleep(_POLL_S)

    async def counters(self, status: gateway_pb2.GetStatusResponse) -> dict[str, int]:
        """The services' counters by names like `draft.steps`; without those that cannot be reached from here."""
        found: dict[str, int] = {}
        for role, replicas in (("target", status.targets), ("draft", status.drafts)):
            for replica in replicas:
                stats = await self._stats(role, replica.address)
                for name in _COUNTED[role] if stats is not None else ():
                    key = f"{role}.{name}"
                    found[key] = found.get(key, 0) + getattr(stats, name)
        return found

    async def _stats(self, role: str, address: str) -> types_pb2.ServiceStats | None:
        if not address or address in self._silent:
            return None
        if address not in self._others:
            self._others[address] = rpc.channel(address)
        channel = self._others[address]
        try:
            if role == "target":
                target: Any = target_pb2_grpc.TargetServiceStub(channel)
                request: Any = target_pb2.TargetServiceGetStatsRequest()
                answer: Any = await target.GetStats(request, timeout=_CALL_S)
            else:
                draft: Any = draft_pb2_grpc.DraftServiceStub(channel)
                answer = await draft.GetStats(draft_pb2.DraftServiceGetStatsRequest(), timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            self._silent.add(address)
            return None
        stats: types_pb2.ServiceStats = answer.stats
        return stats


def deployment(drafter: str, status: gateway_pb2.GetStatusResponse) -> Deployment:
    """Which models answer."""
    target = status.targets[0].info if status.targets else types_pb2.ServiceInfo()
    draft = draft_model(status)
    return Deployment(drafter, draft, target.model_id, target.dtype, target.device)


def draft_model(status: gateway_pb2.GetStatusResponse) -> str:
    """The name of the gateway's draft; empty without one."""
    return status.drafts[0].info.model_id if status.drafts else ""


def _missing(status: gateway_pb2.GetStatusResponse, with_draft: bool) -> str:
    wanted = [("target", status.targets)] + ([("draft", status.drafts)] if with_draft else [])
    for role, replicas in wanted:
        if not any(replica.state == gateway_pb2.REPLICA_STATE_READY for replica in replicas):
            details = "; ".join(replica.detail for replica in replicas if replica.detail)
            return f"{role} that is ready" + (f" ({details})" if details else "")
    return ""
