"""What the fault tests have in common: the usual request, the services' usual settings, and bringing one back."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from forerun.v1 import gateway_pb2
from tests.processes import Fleet, Service, eventually

CONTEXT_LENGTH = 2048
DRAFT_NOISE = 0.02  # about two candidates of four are accepted
SEED = 20261129
PATIENT_TARGET = "tests.patient_target"
LENGTH = 500  # tokens of the usual answer: seconds, so that a fault falls into it
QUICK = {"reconnect_min_s": 0.05, "reconnect_max_s": 0.3, "draft_timeout_s": 0.5, "adaptive": "off"}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Folders of tiny models."""

    target: Path
    draft: Path


def add_target(fleet: Fleet, checkpoints: Checkpoints, module: str = "target_service", **settings: object) -> Service:
    return fleet.add(module, **{"model": checkpoints.target, "device": "cpu", "grace_s": 5, **settings})


def add_draft(fleet: Fleet, checkpoints: Checkpoints, **settings: object) -> Service:
    usual = {"model": checkpoints.draft, "target": checkpoints.target, "device": "cpu", "min_confidence": 0}
    return fleet.add("draft_service", **{**usual, **settings})


def healed(service: Service) -> Service:
    """The service, serving, whatever the last test did to it."""
    if service.pid and service.exited(0):
        service.wait_exit(0)
    if not service.pid:
        service.start(wait=False)
    service.send(signal.SIGCONT)
    service.wait_serving()
    eventually(lambda: service.stats().open_streams == 0, 10, f"{service.module} is free of the last test's gateways")
    return service


def request(
    max_tokens: int = LENGTH, text: str = "The draft runs ahead", **more: object
) -> gateway_pb2.GenerateRequest:
    """The usual request: sampled, so that no text repeats itself, with a fixed seed."""
    settings = {"temperature": 0.8, "seed": SEED, "ignore_eos": True, "include_rounds": True} | more
    return gateway_pb2.GenerateRequest(text=text, max_tokens=max_tokens, **settings)  # type: ignore[arg-type]


def assert_in_mid_stream(gateway: Service, *holders: Service) -> None:
    """The request still runs, at the gateway and at whoever holds a session of it."""
    assert gateway.status().running_requests == 1, f"the fault came too late (seed {SEED})"
    for holder in holders:
        assert holder.stats().open_sessions == 1, f"{holder.module} has no session (seed {SEED})"
