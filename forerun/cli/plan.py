"""What `forerun up` starts: from its flags to the three services' settings, ports and commands.

It decides and starts nothing. `up` carries it out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from forerun import config
from forerun.cli.failure import USAGE, Failure
from forerun.cli.services import service_command
from forerun.cli.supervisor import Spec

Settings = config.TargetConfig | config.DraftConfig | config.GatewayConfig
EMBEDDED_TARGET = config.TargetConfig().model
EMBEDDED_DRAFT = config.DraftConfig().model
SHIPPED_DRAFT = EMBEDDED_DRAFT.removeprefix("ngram+")  # the model in it, which needs no pulling
# These would name all three services at once, and mean the wrong thing for two of them.
_ONLY_WITH_SERVICE = (
    "FORERUN_MODEL",
    "FORERUN_PORT",
    "FORERUN_METRICS_PORT",
    "FORERUN_TARGET",
    "FORERUN_TARGETS",
    "FORERUN_DRAFTS",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the three services; no draft means plain decoding."""

    cache: config.CacheConfig
    target: config.TargetConfig
    draft: config.DraftConfig | None
    gateway: config.GatewayConfig
    start_timeout_s: float

    @property
    def models(self) -> list[str]:
        """The models that must be pulled before the start."""
        draft = "ngram" if self.draft is None else self.draft.model.removeprefix("ngram+")
        return [self.target.model, *([] if draft in ("ngram", SHIPPED_DRAFT) else [draft])]

    @property
    def specs(self) -> list[Spec]:
        """The processes, in the order in which they are drained."""
        services: dict[str, Settings | None] = {"gateway": self.gateway, "target": self.target, "draft": self.draft}
        return [_spec(name, settings, self.cache) for name, settings in services.items() if settings is not None]


def make_plan(flags: Mapping[str, Any], environment: Mapping[str, str], cpu_count: int) -> Plan:
    """Flags over variables over file over defaults; what one service's setting means for the others follows from it."""
    environment = {key: value for key, value in environment.items() if key not in _ONLY_WITH_SERVICE}
    cache = config.resolve(config.CacheConfig, flags, environment)
    target = config.resolve(config.TargetConfig, _flags_of(flags, "target"), environment, "target")
    draft = config.resolve(config.DraftConfig, _flags_of(flags, "draft"), environment, "draft")
    gateway = config.resolve(config.GatewayConfig, _flags_of(flags, "gateway"), environment, "gateway")
    up = config.resolve(config.UpConfig, flags, environment, "up")
    named = config.look_up(config.DraftConfig, _flags_of(flags, "draft"), environment, "draft")["model"].origin
    if not named and target.model != EMBEDDED_TARGET:
        draft = replace(draft, model="ngram")  # the embedded draft speaks the embedded target's vocabulary only
    with free_ports() as free:
        target = replace(target, port=free(target.port, "target"))
        draft = replace(draft, port=free(draft.port, "draft"), target=target.model)
        gateway = replace(gateway, port=free(gateway.port, "gateway"), model=target.model)
    with_draft = draft.model != "none"
    gateway = replace(gateway, targets=(address(target),), drafts=(address(draft),) if with_draft else ())
    if not target.threads and not draft.threads:
        run_ahead = gateway.window > gateway.draft_length
        shares = share_threads(up.threads or cpu_count, draft.model, run_ahead)
        target, draft = replace(target, threads=shares[0]), replace(draft, threads=shares[1])
    return Plan(cache, target, draft if with_draft else None, gateway, up.start_timeout)


def share_threads(total: int, draft_model: str, run_ahead: bool) -> tuple[int, int]:
    """CPU threads of target and draft.

    Without run-ahead the two take turns, so the target may have all cores. The draft gets half of them: the target's
    threads spin for a moment after each step, and a draft that needs all cores at once waits for them (on two cores
    and in bfloat16 speculation brought 0.96 of plain decoding with two threads each, 1.39 with one for the draft).
    With run-ahead both compute at once, and the draft gets a quarter. At least one each; a draft without weights needs
    one thread and hardly uses it.
    """
    if draft_model in ("ngram", "none"):
        return total, 1
    if not run_ahead:
        return total, max(1, total // 2)
    draft = max(1, total // 4)
    return max(1, total - draft), draft


def address(settings: Settings) -> str:
    """Where to reach a service that runs with these settings on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"


@contextmanager
def free_ports() -> Iterator[Any]:
    """Gives a function from a wanted port, or 0, to a port that is free; no port is given twice inside the block."""
    with ExitStack() as held:

        def free(port: int, service: str) -> int:
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do; a listener still refuses it
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                flag = "--port" if service == "gateway" else f"--{service}-port"
                hint = f"stop what listens there, or give another with {flag} (0 takes a free one)"
                raise Failure(f"port {port}, for the {service}, is in use; {hint}", USAGE) from None
            number: int = probe.getsockname()[1]
            return number

        yield free


def _flags_of(flags: Mapping[str, Any], service: str) -> dict[str, Any]:
    """The flags of `up` under the names of one service's settings."""
    names: dict[str, dict[str, str]] = {
        "target": {"target": "model", "target_port": "port", "dtype": "dtype", "device": "device"},
        "draft": {"draft": "model", "draft_port": "port", "dtype": "dtype"},
        "gateway": {"host": "host", "port": "port", "draft_length": "draft_length", "window": "window"},
    }
    given = {name: flags[flag] for flag, name in names[service].items() if flags.get(flag) is not None}
    if service == "draft":
        given["device"] = flags.get("draft_device") or flags.get("device")
    return given | {"config": flags.get("config")}


def _spec(name: str, settings: Settings, cache: config.CacheConfig) -> Spec:
    return Spec(
        name=name,
        command=tuple(service_command(name, settings, cache)),
        address=address(settings),
        required=name != "draft",
        grace_s=settings.grace_s,
    )


def cores() -> int:
    """The CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
