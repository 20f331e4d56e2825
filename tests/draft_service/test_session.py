"""The draft's session: commits are compared, so repeating them changes nothing; the epoch rises when it must."""

from __future__ import annotations

import pytest

from draft_service.drafters.drafter import Proposal
from draft_service.drafters.ngram import NgramDrafter
from draft_service.engine import DraftEngine, DraftLimits
from draft_service.engine import Step as DraftStep
from draft_service.session import DraftSession, DraftStream, Gap
from forerun.runtime.stream import Stream
from forerun.v1 import draft_pb2, types_pb2

SAMPLING = types_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0, max_tokens=20)


class NoTrace:
    def draft(self, *_: object) -> None: ...


class Deployment:
    """An engine with one open session: prompt 1, 2, 3; draft length 4; end token 0."""

    def __init__(self, max_sessions: int = 4, **opening: int) -> None:
        self.engine = DraftEngine(DraftLimits(10, 50, (0,), max_sessions), NgramDrafter(1, 2), NoTrace())
        self.stream: DraftStream = Stream("gateway", lambda: None)
        self.engine.sessions.connect(self.stream)
        fields = {"draft_length": 4, "window": 4} | opening
        self.say(open=draft_pb2.DraftOpen(prompt_token_ids=[1, 2, 3], sampling=SAMPLING, **fields))

    def say(self, **content: object) -> list[draft_pb2.DraftResponseEntry]:
        """What is answered at once."""
        self.engine.handle(self.stream, draft_pb2.DraftRequestEntry(session_id=1, attachment=1, **content), 1.0)  # type: ignore[arg-type]
        return self.stream.take()

    @property
    def session(self) -> DraftSession:
        return self.stream.sessions[1]


def drafted(*token_ids: int) -> DraftSession:
    """A session that has drafted tokens and sent them."""
    session = Deployment().session
    session.draft(Proposal(tuple(token_ids)))
    session.take_unsent()
    return session


def test_run_ahead_goes_a_draft_at_a_time_up_to_the_window() -> None:
    session = Deployment(draft_length=3, window=8).session
    wanted = []
    while session.wanted:
        wanted.append(session.want.most)
        session.draft(Proposal((4,) * session.want.most))
        assert session.sendable
        session.take_unsent()
    assert wanted == [3, 3, 2]


def test_what_is_wanted_says_where_a_draft_may_end() -> None:
    session = Deployment().session
    session.min_confidence = 0.2
    session.draft(Proposal((4, 5), confidences=(0.5, 0.8)))
    want = session.want
    assert (want.most, want.end_token_ids, want.min_confidence) == (2, {0}, 0.5)
    session.draft(Proposal((6, 7), confidences=(0.4, 0.9)))
    assert (session.head, session.exhausted) == (6, True), "0.5 * 0.8 * 0.4 < 0.2"


def test_a_commit_that_agrees_keeps_the_run_ahead_and_the_epoch() -> None:
    session = drafted(4, 5, 6, 7)
    assert session.commit(3, [4, 5], 0) == 0
    assert (session.sequence.token_ids, session.committed_length, session.epoch) == ([1, 2, 3, 4, 5, 6, 7], 5, 1)


def test_a_commit_that_differs_truncates_and_raises_the_epoch() -> None:
    session = drafted(4, 5, 6, 7)
    assert session.commit(3, [4, 9], 1) == 3
    assert (session.sequence.token_ids, session.committed_length, session.epoch) == ([1, 2, 3, 4, 9], 5, 2)
    assert session.sent_length == 5


def test_a_repeated_rollback_changes_nothing() -> None:
    session = drafted(4, 5, 6, 7)
    session.commit(3, [4, 9], 1)
    session.draft(Proposal((8,)))
    assert session.commit(3, [4, 9], 1) == 0
    assert (session.sequence.token_ids, session.epoch) == ([1, 2, 3, 4, 9, 8], 2)


def test_a_commit_beyond_the_head_is_appended() -> None:
    session = drafted(4)
    assert session.commit(3, [4, 5, 6], 0) == 0
    assert (session.sequence.token_ids, session.sent_length, session.epoch) == ([1, 2, 3, 4, 5, 6], 6, 1)


def test_a_refuted_epoch_is_left_even_if_nothing_differs() -> None:
    session = drafted(4, 5)
    assert session.commit(2, [3], 1) == 2
    assert (session.sequence.token_ids, session.epoch) == ([1, 2, 3], 2)


@pytest.mark.parametrize(("start", "token_ids"), [(4, [5]), (2, [9]), (0, [1, 2, 4])])
def test_a_commit_after_a_gap_or_against_what_is_committed_is_not_guessed(start: int, token_ids: list[int]) -> None:
    with pytest.raises(Gap):
        drafted(4, 5).commit(start, token_ids, 0)


def test_nothing_is_drafted_after_an_end_token() -> None:
    session = drafted(4, 0, 5)
    assert session.sequence.token_ids == [1, 2, 3, 4, 0]
    assert session.exhausted


def test_an_end_token_that_was_committed_does_not_end_drafting() -> None:
    session = drafted(4, 0)
    session.commit(3, [4, 0], 0)
    assert not session.exhausted


def test_exhausted_is_told_once_for_a_length_and_again_under_a_new_epoch() -> None:
    session = drafted(4, 0)
    assert not session.sendable
    session.commit(2, [3], 1)
    session.draft(Proposal((4, 0)))
    assert session.sendable
    assert session.take_unsent().exhausted
    session.exhausted_at = session.head
    assert not session.sendable


def test_exhausted_without_candidates_is_told_again_under_a_new_epoch() -> None:
    session = drafted()
    session.exhausted_at = session.head
    session.take_unsent()
    assert not session.sendable
    session.commit(2, [3], 1)
    session.exhausted_at = session.head
    assert session.sendable


def test_a_shorter_draft_length_sends_what_is_now_a_whole_draft() -> None:
    deployment = Deployment()
    deployment.session.draft(Proposal((4, 5, 6)))
    (answer,) = deployment.say(configure=draft_pb2.ConfigureDraft(draft_length=2, window=2))
    assert answer.candidates.token_ids == [4, 5, 6]


def test_a_draft_exhausted_while_paused_says_so_when_it_goes_on() -> None:
    deployment = Deployment(draft_length=0)
    deployment.session.exhausted_at = deployment.session.head
    (answer,) = deployment.say(configure=draft_pb2.ConfigureDraft(draft_length=4, window=4))
    assert answer.candidates.exhausted


def test_a_refused_step_still_wakes_for_the_next_expiry() -> None:
    deployment = Deployment(time_to_live_ms=2000)
    second = draft_pb2.DraftOpen(prompt_token_ids=[1, 2], sampling=SAMPLING, draft_length=4, window=4)
    refusing = NgramDrafter(1, 2)
    refusing.plan = lambda wants: ([], [want for want in wants if len(want.sequence) == 2])  # type: ignore[method-assign]
    deployment.engine._drafter = refusing
    deployment.session.draft_length = 0
    deployment.engine.handle(
        deployment.stream, draft_pb2.DraftRequestEntry(session_id=2, attachment=1, open=second), 1.0
    )
    assert deployment.engine.plan(1.0) == 3.0
    (answer,) = deployment.stream.take()
    assert answer.detached.reason == draft_pb2.DETACH_REASON_CAPACITY


def test_a_proposal_that_a_rollback_overtook_is_dropped() -> None:
    deployment = Deployment()
    step = deployment.engine.plan(1.0)
    assert isinstance(step, DraftStep)
    deployment.say(rollback=draft_pb2.Rollback(start_position=3, token_ids=[9], refuted_epoch=1))
    deployment.engine.complete(step, [Proposal((4, 5))], 1.1)
    assert deployment.session.sequence.token_ids == [1, 2, 3, 9]


@pytest.mark.parametrize(("said", "left"), [((4, 5), []), ((4, 5, 6, 7), [6, 7]), ((8, 5, 6, 7), [])])
def test_a_proposal_that_commits_overtook_is_taken_as_far_as_it_agrees(said: tuple[int, ...], left: list[int]) -> None:
    deployment = Deployment()
    step = deployment.engine.plan(1.0)
    assert isinstance(step, DraftStep)
    deployment.say(advance=draft_pb2.Advance(start_position=3, token_ids=[4, 5]))
    deployment.engine.complete(step, [Proposal(said)], 1.1)
    assert deployment.session.sequence.token_ids == [1, 2, 3, 4, 5, *left]
