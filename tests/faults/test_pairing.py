"""Services that do not fit together are told apart at start-up, in words that help, or refused when they come later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from tokenizers import AddedToken, Tokenizer

from forerun.config import PROTOCOL_VERSION
from forerun.v1 import draft_pb2, draft_pb2_grpc, gateway_pb2, types_pb2
from tests.faults.usual import Checkpoints, add_draft, add_target, request
from tests.models import make_tiny_model
from tests.processes import Answer, Fleet, Service, eventually

Add = Callable[..., Service]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose vocabulary has one token that the others' has not."""
    folder = make_tiny_model(tmp_path_factory.mktemp("stranger") / "model", vocabulary_size=328)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<|stranger|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def refusal(gateway: Service) -> str:
    """What a gateway that does not start says; its exit code is 1."""
    gateway.start(wait=False)
    assert gateway.wait_exit(15) == 1
    return gateway.log.splitlines()[-1]


def test_a_draft_with_another_vocabulary_stops_the_gateway_with_advice(
    add_gateway: Add, fleet: Fleet, checkpoints: Checkpoints, target: Service, stranger: Path
) -> None:
    odd = add_draft(fleet, checkpoints, model=stranger, target=stranger).start()
    said = refusal(add_gateway([target], [odd]))
    assert said.startswith(f"forerun gateway: draft {odd.address} ({stranger}) has another vocabulary than the target")
    assert "use a draft made for this target, or --model ngram" in said


def test_a_target_with_another_vocabulary_stops_the_gateway_with_advice(
    add_gateway: Add, fleet: Fleet, checkpoints: Checkpoints, stranger: Path
) -> None:
    odd = add_target(fleet, checkpoints, model=stranger).start()
    said = refusal(add_gateway([odd], []))
    assert said.startswith(f"forerun gateway: target {odd.address} ({stranger}) has another vocabulary than this")
    assert "give both the same model" in said


def test_a_draft_that_is_replaced_by_one_that_does_not_fit_is_refused_and_plain_decoding_goes_on(
    add_gateway: Add, fleet: Fleet, checkpoints: Checkpoints, target: Service, stranger: Path, undisturbed: Answer
) -> None:
    first = add_draft(fleet, checkpoints).start()
    gateway = add_gateway([target], [first]).start()
    with Answer(gateway.address, request()) as answer:
        answer.read(60)
        first.kill()
        odd = add_draft(fleet, checkpoints, port=first.port, model=stranger, target=stranger).start()
        eventually(
            lambda: gateway.status().drafts[0].state == gateway_pb2.REPLICA_STATE_REFUSED, 10, "the draft is refused"
        )
        answer.read()
    assert answer.token_ids == undisturbed.token_ids
    assert "another vocabulary" in gateway.status().drafts[0].detail
    assert odd.stats().open_streams == 0
    odd.kill()
    first.start()
    eventually(lambda: gateway.status().drafts[0].detail == "", 10, "one that fits is taken again")


class FromTheFuture(draft_pb2_grpc.DraftServiceServicer):
    """A draft of a later protocol version."""

    def GetInfo(self, request: object, context: object) -> draft_pb2.DraftServiceGetInfoResponse:
        info = types_pb2.ServiceInfo(
            protocol_version=PROTOCOL_VERSION + 1, incarnation=1, model_id="future", max_sessions=1
        )
        return draft_pb2.DraftServiceGetInfoResponse(info=info)


@pytest.fixture
def future() -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    draft_pb2_grpc.add_DraftServiceServicer_to_server(FromTheFuture(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_another_protocol_version_stops_the_gateway_with_advice(
    add_gateway: Add, fleet: Fleet, target: Service, future: int
) -> None:
    said = refusal(add_gateway([target], [fleet.add("draft_service", port=future)]))
    assert f"speaks protocol {PROTOCOL_VERSION + 1}, this gateway {PROTOCOL_VERSION}" in said
    assert "upgrade gateway, draft and target together" in said
