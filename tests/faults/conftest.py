"""One target and one draft for all fault tests, a gateway or two for each, and what an undisturbed answer is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.usual import (
    CONTEXT_LENGTH,
    DRAFT_NOISE,
    PATIENT_TARGET,
    QUICK,
    Checkpoints,
    add_draft,
    add_target,
    healed,
    request,
)
from tests.models import make_tiny_draft, make_tiny_model
from tests.processes import Answer, Fleet, Forker, Service


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    with Forker() as started:
        yield started


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = make_tiny_model(folder / "target", context_length=CONTEXT_LENGTH)
    return Checkpoints(target, make_tiny_draft(folder / "draft", target, noise=DRAFT_NOISE))


@pytest.fixture(scope="session")
def lasting(forker: Forker, checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The services that the tests share: a target that waits for drafts, a draft, a target that need not."""
    with Fleet(forker, tmp_path_factory.mktemp("services")) as fleet:
        add_target(fleet, checkpoints, PATIENT_TARGET, max_patience_ms=100).start(wait=False)
        add_draft(fleet, checkpoints).start(wait=False)
        add_target(fleet, checkpoints).start(wait=False)
        yield fleet


@pytest.fixture
def target(lasting: Fleet) -> Service:
    """A target that serves, and waits for candidates so that surely some are verified."""
    return healed(lasting.services[0])


@pytest.fixture
def frugal_target(lasting: Fleet) -> Service:
    """A target that serves, and waits for candidates as long as that pays: the product's own policy."""
    return healed(lasting.services[2])


@pytest.fixture
def draft(lasting: Fleet) -> Service:
    """A draft that serves."""
    return healed(lasting.services[1])


@pytest.fixture
def fleet(forker: Forker, tmp_path: Path) -> Iterator[Fleet]:
    """For the services of one test; they end with it."""
    with Fleet(forker, tmp_path) as started:
        yield started


@pytest.fixture
def add_gateway(fleet: Fleet, checkpoints: Checkpoints) -> Callable[..., Service]:
    """Makes a gateway that reacts quickly, not started yet: `add_gateway(targets, drafts, **settings)`."""

    def add(targets: list[Service], drafts: list[Service], **settings: object) -> Service:
        addresses = {
            "targets": ",".join(service.address for service in targets),
            "drafts": ",".join(service.address for service in drafts),
        }
        return fleet.add("gateway", **{"model": checkpoints.target, **addresses, **QUICK, **settings})

    return add


@pytest.fixture
def gateway(add_gateway: Callable[..., Service], target: Service, draft: Service) -> Service:
    """A gateway on the shared pair."""
    return add_gateway([target], [draft]).start()


@pytest.fixture(scope="session")
def undisturbed(
    forker: Forker, lasting: Fleet, checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory
) -> Answer:
    """The usual answer, decoded plainly by services that nobody disturbs."""
    address = healed(lasting.services[0]).address
    with Fleet(forker, tmp_path_factory.mktemp("plain")) as fleet:
        plain = fleet.add("gateway", model=checkpoints.target, targets=address, drafts="").start()
        with Answer(plain.address, request()) as answer:
            return answer.read()
