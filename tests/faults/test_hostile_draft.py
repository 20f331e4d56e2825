"""A draft that says anything but the truth: the client's text is the same and the gateway's memory stays bounded."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from forerun.config import PROTOCOL_VERSION
from forerun.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from gateway.session import DRAFT_RETRY_S, MAX_DRAFT_REOPENS
from tests.faults.usual import SEED, request
from tests.processes import Answer, Fleet, Service, eventually

Add = Callable[..., Service]
Entry = draft_pb2.DraftResponseEntry
Script = Callable[[draft_pb2.DraftRequestEntry, random.Random], list[Entry]]
VOCABULARY = 320
MEMORY_BYTES = 64 << 20  # by which a gateway may grow, whatever a draft sends
MAX_UINT32, MAX_UINT64 = (1 << 32) - 1, (1 << 64) - 1


def told(entry: draft_pb2.DraftRequestEntry) -> int:
    """The committed length that the gateway speaks of."""
    said = getattr(entry, entry.WhichOneof("entry") or "open")
    if isinstance(said, draft_pb2.DraftOpen):
        return len(said.prompt_token_ids) + len(said.output_token_ids)
    return said.start_position + len(said.token_ids) if hasattr(said, "start_position") else 0


def candidates(
    entry: draft_pb2.DraftRequestEntry, token_ids: list[int], epoch: int = 1, start: int | None = None, **more: int
) -> Entry:
    said = draft_pb2.Candidates(
        epoch=epoch, start_position=told(entry) if start is None else start, token_ids=token_ids, **more
    )
    return Entry(session_id=entry.session_id, attachment=entry.attachment, candidates=said)


def ids_out_of_range(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    return [candidates(entry, [chance.choice([VOCABULARY, MAX_UINT32])])]


def wrong_tokens_under_ever_higher_epochs(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    epoch = 1 + told(entry)
    return [candidates(entry, [chance.randrange(VOCABULARY) for _ in range(4)], epoch)]


def wrong_positions_and_epochs(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    starts = [0, 1, told(entry) - 1, told(entry) + 1, MAX_UINT32]
    epochs = [0, 1, 2, 1 << 40, MAX_UINT64]
    return [candidates(entry, [7], chance.choice(epochs), start, exhausted=True) for start in starts]


def other_attachments_and_sessions(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    ids = [entry.session_id, entry.session_id + 1, 0, chance.getrandbits(64)]
    attachments = [0, entry.attachment - 1, entry.attachment + 1, MAX_UINT32]
    found = []
    for session_id, attachment in itertools.product(ids, attachments):
        wrong = candidates(entry, [1, 2, 3])
        wrong.session_id, wrong.attachment = session_id, max(0, attachment)
        found.append(wrong)
    return found


def the_largest_epochs(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    return [candidates(entry, [5], 1 << 61), candidates(entry, [5], MAX_UINT64)]


def the_longest_times(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    more = {"round_index": MAX_UINT32, "draft_ns": MAX_UINT64, "steps": MAX_UINT32}
    epoch = 1 + told(entry)
    return [candidates(entry, [5], epoch, **more), candidates(entry, [5, 6], epoch, **more)]


def giant_runs(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    return [candidates(entry, [chance.randrange(VOCABULARY)] * 100_000, 1 + told(entry))]


def need_open_whatever_is_said(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    need = draft_pb2.NeedOpen(committed_length=chance.getrandbits(32))
    unknown = types_pb2.UnknownSession()
    head = {"session_id": entry.session_id, "attachment": entry.attachment}
    return [Entry(**head, need_open=need), Entry(**head, unknown_session=unknown)]


def detached_for_reasons_nobody_knows(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    detached = draft_pb2.Detached(reason=chance.choice([0, 2, 99]), detail="\x00" * 1000)
    return [Entry(session_id=entry.session_id, attachment=entry.attachment, detached=detached)]


def nothing_at_all(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    return [Entry(session_id=entry.session_id, attachment=entry.attachment)]


def unknown_sessions_in_floods(entry: draft_pb2.DraftRequestEntry, chance: random.Random) -> list[Entry]:
    said = draft_pb2.Candidates(epoch=1, start_position=1, token_ids=[1])
    return [Entry(session_id=chance.getrandbits(64), attachment=1, candidates=said) for _ in range(2000)]


class Liar(draft_pb2_grpc.DraftServiceServicer):
    """A draft that fits, by its own word, and answers each entry by a script."""

    def __init__(self, script: Script) -> None:
        self.kinds: Counter[str] = Counter()  # of the entries it was sent
        self._script = script
        self._chance = random.Random(SEED)
        self.gone = threading.Event()

    def GetInfo(self, request: object, context: object) -> draft_pb2.DraftServiceGetInfoResponse:
        info = types_pb2.ServiceInfo(
            protocol_version=PROTOCOL_VERSION, incarnation=1, model_id="liar", max_sessions=MAX_UINT32
        )
        return draft_pb2.DraftServiceGetInfoResponse(info=info)

    def Speculate(
        self, requests: Iterator[draft_pb2.SpeculateRequest], context: object
    ) -> Iterator[draft_pb2.SpeculateResponse]:
        for message in requests:
            self.kinds.update(str(entry.WhichOneof("entry")) for entry in message.entries)
            entries = [lie for entry in message.entries for lie in self._script(entry, self._chance)]
            if entries:
                yield draft_pb2.SpeculateResponse(entries=entries)


class Flood(Liar):
    """A draft that never reads and never stops."""

    def Speculate(
        self, requests: Iterator[draft_pb2.SpeculateRequest], context: object
    ) -> Iterator[draft_pb2.SpeculateResponse]:
        next(requests)
        first = next(requests).entries[0]
        self.kinds["open"] += 1
        while not self.gone.is_set():
            yield draft_pb2.SpeculateResponse(entries=self._script(first, self._chance))


@contextmanager
def served(liar: Liar) -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    draft_pb2_grpc.add_DraftServiceServicer_to_server(liar, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        liar.gone.set()
        server.stop(None).wait()


SCRIPTS: list[Script] = [
    ids_out_of_range,
    wrong_tokens_under_ever_higher_epochs,
    wrong_positions_and_epochs,
    other_attachments_and_sessions,
    the_largest_epochs,
    the_longest_times,
    giant_runs,
    need_open_whatever_is_said,
    detached_for_reasons_nobody_knows,
    nothing_at_all,
    unknown_sessions_in_floods,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_lies_change_no_token(
    script: Script, add_gateway: Add, fleet: Fleet, frugal_target: Service, undisturbed: Answer
) -> None:
    assert_unharmed(Liar(script), add_gateway, fleet, frugal_target, undisturbed)


@pytest.mark.parametrize(
    "script", [unknown_sessions_in_floods, wrong_positions_and_epochs, giant_runs], ids=lambda script: script.__name__
)
def test_floods_change_no_token(
    script: Script, add_gateway: Add, fleet: Fleet, frugal_target: Service, undisturbed: Answer
) -> None:
    assert_unharmed(Flood(script), add_gateway, fleet, frugal_target, undisturbed)


def test_a_draft_that_always_wants_to_be_told_again_is_told_so_often_and_no_more(
    add_gateway: Add, fleet: Fleet, frugal_target: Service, undisturbed: Answer
) -> None:
    liar = Liar(need_open_whatever_is_said)
    began = time.monotonic()
    assert_unharmed(liar, add_gateway, fleet, frugal_target, undisturbed)
    assert 1 < liar.kinds["open"] <= MAX_DRAFT_REOPENS * (1 + (time.monotonic() - began) // DRAFT_RETRY_S)


def test_a_session_whose_draft_talks_nonsense_is_closed_there(
    add_gateway: Add, fleet: Fleet, frugal_target: Service
) -> None:
    liar = Liar(ids_out_of_range)
    with served(liar) as port:
        gateway = add_gateway([frugal_target], [fleet.add("draft_service", port=port)]).start()
        with Answer(gateway.address, request()) as answer:
            answer.read(1)
            eventually(lambda: liar.kinds["close"] == 1, 5, "the draft is told, while the answer goes on")
            assert gateway.status().running_requests == 1
        assert liar.kinds["open"] == 1, "and never asked again for this session"


def assert_unharmed(liar: Liar, add_gateway: Add, fleet: Fleet, frugal_target: Service, undisturbed: Answer) -> None:
    """A short answer under the draft's lies; a long one would only take longer."""
    length = 150
    with served(liar) as port:
        gateway = add_gateway([frugal_target], [fleet.add("draft_service", port=port)]).start()
        before = gateway.rss_bytes()
        with Answer(gateway.address, request(length, logprobs=0)) as answer:
            answer.read()
        grown = gateway.rss_bytes() - before
        assert liar.kinds["open"] > 0, "the draft was asked"
    assert answer.token_ids == undisturbed.token_ids[:length]
    assert grown < MEMORY_BYTES, f"the gateway grew by {grown >> 20} MiB (seed {SEED})"
    assert "Traceback" not in gateway.log
    eventually(lambda: frugal_target.stats().open_sessions == 0, 1, "the target is free")
