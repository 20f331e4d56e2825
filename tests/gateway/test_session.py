"""The gateway's session: the truth about a generation, and what it has the services told, each thing once."""

from __future__ import annotations

import pytest

from forerun.config import MAX_EPOCH
from forerun.errors import ForerunError, Internal, InvalidArgument, Overloaded
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2, target_pb2, types_pb2
from gateway.round import Round
from gateway.session import MAX_DRAFT_REOPENS, Session, SpeculationSettings


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.errors: list[ForerunError] = []

    def on_round(self, session: Session, finished: Round, verdict: target_pb2.Verdict) -> None:
        self.rounds.append(finished)

    def on_candidates(self, session: Session) -> None: ...

    def on_failure(self, session: Session, error: ForerunError) -> None:
        self.errors.append(error)


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def session(ear: Ear) -> Session:
    """Prompt 1, 2, 3, open on both services, which were told; the target may commit up to 50."""
    session = Session(1, [1, 2, 3], [], SamplingParams(max_tokens=40), SpeculationSettings(4, 4), 10, ear)
    session.allow(50)
    session.target.attach()
    session.draft.attach()
    tell_target(session)
    tell_draft(session)
    return session


def tell_target(session: Session) -> list[target_pb2.TargetRequestEntry]:
    return session.target.entries(session)


def tell_draft(session: Session) -> list[draft_pb2.DraftRequestEntry]:
    return session.draft.entries(session)


def propose(session: Session, start: int, *token_ids: int, epoch: int = 1, exhausted: bool = False) -> bool:
    return session.on_candidates(
        draft_pb2.Candidates(epoch=epoch, start_position=start, token_ids=token_ids, exhausted=exhausted)
    )


def commit(session: Session, start: int, *token_ids: int, drafted: int = 0, epoch: int = 0) -> None:
    session.on_verdict(
        target_pb2.Verdict(start_position=start, token_ids=token_ids, drafted_count=drafted, epoch=epoch), 1.0
    )


def test_all_is_said_once(session: Session) -> None:
    assert (tell_target(session), tell_draft(session)) == ([], [])
    propose(session, 3, 4, 5, 6, 7)
    (offer,) = tell_target(session)
    assert (offer.candidates.start_position, offer.candidates.token_ids) == (3, [4, 5, 6, 7])
    assert (tell_target(session), tell_draft(session)) == ([], [])


def test_agreement_is_an_advance_and_keeps_what_lies_beyond(session: Session, ear: Ear) -> None:
    propose(session, 3, 4, 5, 6, 7)
    commit(session, 3, 4, 5, drafted=1, epoch=1)
    (entry,) = tell_draft(session)
    assert (entry.advance.start_position, entry.advance.token_ids) == (3, [4, 5])
    assert session.candidates.token_ids == [6, 7]
    assert (ear.rounds[0].draft_token_ids, ear.rounds[0].refuted) == ((4,), False)


def test_contradiction_is_a_rollback_with_the_dead_epoch(session: Session, ear: Ear) -> None:
    propose(session, 3, 4, 5, 6, 7)
    commit(session, 3, 4, 9, drafted=4, epoch=1)
    (entry,) = tell_draft(session)
    assert (entry.rollback.start_position, entry.rollback.token_ids, entry.rollback.refuted_epoch) == (3, [4, 9], 1)
    assert not propose(session, 5, 6, 7)
    assert ear.rounds[0].refuted


def test_commits_that_pile_up_go_out_as_one(session: Session) -> None:
    commit(session, 3, 4)
    commit(session, 4, 5, 6)
    (entry,) = tell_draft(session)
    assert (entry.advance.start_position, entry.advance.token_ids) == (3, [4, 5, 6])


def test_a_dead_epoch_is_named_until_a_living_one_is_seen(session: Session) -> None:
    propose(session, 3, 4)
    commit(session, 3, 9)
    assert [entry.rollback.refuted_epoch for entry in tell_draft(session)] == [1]
    commit(session, 4, 8)
    assert [entry.rollback.refuted_epoch for entry in tell_draft(session)] == [1]
    propose(session, 5, 7, epoch=2)
    commit(session, 5, 7)
    assert [entry.WhichOneof("entry") for entry in tell_draft(session)] == ["advance"]


def test_a_gap_in_the_candidates_kills_their_epoch(session: Session) -> None:
    assert not propose(session, 5, 6, 7)
    assert session.candidates.refuted_epoch == 1
    (entry,) = tell_draft(session)
    assert (entry.rollback.start_position, entry.rollback.token_ids, entry.rollback.refuted_epoch) == (2, [3], 1)


def test_candidates_that_a_plain_round_passed_over_are_offered_again(session: Session) -> None:
    propose(session, 3, 4, 5, 6, 7)
    tell_target(session)
    commit(session, 3, 4)
    (offer,) = tell_target(session)
    assert (offer.candidates.start_position, offer.candidates.token_ids) == (4, [5, 6, 7])


def test_a_reopened_target_is_told_everything_again(session: Session) -> None:
    propose(session, 3, 4, 5)
    commit(session, 3, 4, drafted=1, epoch=1)
    tell_target(session)
    session.target.attach()
    opening, offer = tell_target(session)
    assert (opening.attachment, opening.open.output_token_ids, opening.open.commit_limit) == (2, [4], 50)
    assert (offer.candidates.start_position, offer.candidates.token_ids) == (4, [5])


def test_a_reopened_draft_starts_above_every_epoch_seen(session: Session) -> None:
    propose(session, 3, 4, epoch=7)
    session.draft.attach()
    (entry,) = tell_draft(session)
    assert (entry.attachment, entry.open.refuted_epoch) == (2, 7)


def test_exhausted_is_passed_on_once_and_again_under_a_new_epoch(session: Session) -> None:
    propose(session, 3, exhausted=True)
    assert [entry.candidates.exhausted for entry in tell_target(session)] == [True]
    assert tell_target(session) == []
    propose(session, 3, exhausted=True, epoch=2)
    assert [entry.candidates.exhausted for entry in tell_target(session)] == [True]


def test_a_repeated_verdict_changes_nothing(session: Session, ear: Ear) -> None:
    commit(session, 3, 4, 5)
    commit(session, 3, 4, 5)
    assert (session.token_ids, len(ear.rounds)) == ([1, 2, 3, 4, 5], 1)


@pytest.mark.parametrize(("start", "token_ids"), [(4, (9,)), (3, ())])
def test_a_verdict_that_does_not_follow_reopens_the_session(
    session: Session, start: int, token_ids: tuple[int, ...]
) -> None:
    commit(session, start, *token_ids)
    assert (session.target.attachment, session.token_ids) == (2, [1, 2, 3])


def test_without_a_draft_the_target_expects_no_candidates(session: Session) -> None:
    session.on_detached(draft_pb2.Detached(reason=draft_pb2.DETACH_REASON_CAPACITY), 1.0)
    (entry,) = tell_target(session)
    assert entry.configure.draft_length == 0
    assert not session.draft.hopeless


@pytest.mark.parametrize("reason", [draft_pb2.DETACH_REASON_CONTEXT_LENGTH, draft_pb2.DETACH_REASON_INVALID])
def test_a_lasting_reason_is_not_tried_again(session: Session, reason: draft_pb2.DetachReason) -> None:
    session.on_detached(draft_pb2.Detached(reason=reason), 1.0)
    assert session.draft.hopeless


@pytest.mark.parametrize(("token_id", "epoch"), [(10, 1), (1, MAX_EPOCH + 1)])
def test_nonsense_detaches_the_draft_for_good(session: Session, token_id: int, epoch: int) -> None:
    assert not propose(session, 3, token_id, epoch=epoch)
    assert session.draft.hopeless
    assert not session.draft.attached


def test_a_draft_that_only_asks_to_be_opened_is_let_go(session: Session) -> None:
    for _ in range(MAX_DRAFT_REOPENS):
        session.on_draft_lost(1.0)
    assert not session.draft.attached


def test_silence_of_the_target_starts_the_draft_over(session: Session) -> None:
    propose(session, 3, 4)
    session.on_silence()
    (entry,) = tell_draft(session)
    assert (entry.WhichOneof("entry"), entry.attachment) == ("open", 2)


def test_silence_opens_no_draft_where_there_was_none(session: Session) -> None:
    session.draft.detach()
    session.on_silence()
    assert not session.draft.attached


def test_a_paused_draft_owes_nothing_and_hears_of_commits_in_bulk(session: Session) -> None:
    assert session.draft.owed_since is not None
    session.draft_length = 0
    commit(session, 3, 4)
    assert [entry.WhichOneof("entry") for entry in tell_draft(session)] == ["configure"]
    assert session.draft.owed_since is None
    commit(session, 4, 5)
    assert tell_draft(session) == []
    session.draft_length = 2
    configure, advance = tell_draft(session)
    assert (configure.configure.draft_length, list(advance.advance.token_ids)) == (2, [4, 5])


def test_the_commit_limit_only_rises(session: Session) -> None:
    assert not session.allow(20)
    assert session.allow(60)
    (entry,) = tell_target(session)
    assert entry.configure.commit_limit == 60


@pytest.mark.parametrize(("code", "error"), [(3, InvalidArgument), (8, Overloaded), (13, Internal), (0, Internal)])
def test_a_failure_of_the_target_becomes_the_clients_error(session: Session, code: int, error: type) -> None:
    failed = target_pb2.SessionFailed(code=code, detail="prompt_token_ids: too long")
    assert isinstance(session.on_target_failed(failed), error)
    assert tell_target(session) == []


def test_nothing_follows_the_end(session: Session, ear: Ear) -> None:
    last = target_pb2.Verdict(start_position=3, token_ids=[4], finish_reason=types_pb2.FINISH_REASON_STOP)
    session.on_verdict(last, 1.0)
    commit(session, 4, 5)
    session.on_target_unknown()
    session.on_draft_lost(1.0)
    session.fail(Internal("late"))
    assert (session.token_ids, session.target.attachment, session.draft.attachment) == ([1, 2, 3, 4], 1, 1)
    assert ear.errors == []
