"""No entry handler raises, whatever well-formed entries come in whatever order; nor does a step between them.

The world of `test_simulation` is confused but plays its parts; here nobody does. What is checked is that the books stay
in order: sessions, blocks and buffers are bounded, and closing the stream frees everything.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draft_service.engine import DraftEngine, DraftLimits
from draft_service.engine import Step as DraftStep
from forerun.config import MAX_WINDOW
from forerun.errors import ForerunError
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.stream import Stream
from forerun.sampling_params import SamplingParams
from forerun.v1 import draft_pb2, target_pb2, types_pb2
from gateway.round import Round
from gateway.session import Session, SpeculationSettings
from target_service.engine import TargetEngine, TargetLimits
from target_service.patience import Patience
from target_service.scheduler import Scheduler
from target_service.step import Step as TargetStep
from tests.protocol.scripts import END, GUESSES, Script, ScriptedDrafter, ScriptedTarget
from tests.protocol.world import NoTrace

VOCABULARY, BLOCK_SIZE = 5, 2
SCRIPT = Script(VOCABULARY, 20, 2)
FUZZ = settings(
    max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)

tokens = st.lists(st.sampled_from([2, 3, 4, 2, 3, 4, 0, 1, 5, 2**32 - 1]), max_size=6)
good_tokens = st.lists(st.integers(2, 4), min_size=1, max_size=6)
positions = st.integers(0, 9) | st.sampled_from([2**31, 2**32 - 1])
epochs = st.integers(0, 3) | st.sampled_from([2**62, 2**63, 2**64 - 1])
lengths = st.integers(0, 6) | st.sampled_from([64, 65, 2**32 - 1])
rounds = st.integers(0, 3) | st.sampled_from([2**31, 2**32 - 1])
times = st.sampled_from([0, 0, 0, 1, 30, 2**64 - 1])
samplings = st.just(types_pb2.SamplingParams(top_p=1.0, repetition_penalty=1.0, max_tokens=9)) | st.builds(
    types_pb2.SamplingParams,
    temperature=st.sampled_from([0.0, 1.0, -1.0, float("nan"), float("inf")]),
    top_p=st.sampled_from([1.0, 0.0]),
    repetition_penalty=st.sampled_from([1.0, 0.0]),
    logit_bias=st.dictionaries(st.sampled_from([0, 4, 2**32 - 1]), st.sampled_from([1.0, float("nan")]), max_size=1),
    min_tokens=st.sampled_from([0, 2, 2**32 - 1]),
    max_tokens=st.sampled_from([1, 9, 0, 2**32 - 1]),
    stop_token_ids=tokens,
)
closes = st.just({"close": types_pb2.Close()})
numbers = {
    "session_id": st.sampled_from([1, 1, 1, 2, 2**64 - 1]),
    "attachment": st.sampled_from([1, 1, 2, 0, 2**32 - 1]),
}


def entries(kind: Any, contents: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    """Entries of any session and attachment."""
    return st.builds(
        lambda session_id, attachment, content: kind(session_id=session_id, attachment=attachment, **content),
        **numbers,
        content=contents,
    )


def content(name: str, kind: Any, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(kind, **fields).map(lambda message: {name: message})


opening = {
    "prompt_token_ids": good_tokens | tokens,
    "output_token_ids": tokens,
    "sampling": samplings,
    "draft_length": lengths,
    "round_index": rounds,
    "time_to_live_ms": times,
}
draft_entries = entries(
    draft_pb2.DraftRequestEntry,
    st.one_of(
        content("open", draft_pb2.DraftOpen, window=lengths, refuted_epoch=epochs, **opening),
        content("advance", draft_pb2.Advance, start_position=positions, token_ids=tokens, round_index=rounds),
        content(
            "rollback",
            draft_pb2.Rollback,
            start_position=positions,
            token_ids=tokens,
            refuted_epoch=epochs,
            round_index=rounds,
        ),
        content("configure", draft_pb2.ConfigureDraft, draft_length=lengths, window=lengths),
        closes,
        st.just({}),
    ),
)
target_entries = entries(
    target_pb2.TargetRequestEntry,
    st.one_of(
        content("open", target_pb2.TargetOpen, commit_limit=positions, **opening),
        content(
            "candidates",
            target_pb2.OfferCandidates,
            epoch=epochs,
            start_position=positions,
            token_ids=tokens,
            exhausted=st.booleans(),
        ),
        content("configure", target_pb2.ConfigureTarget, commit_limit=st.none() | positions, draft_length=lengths),
        closes,
        st.just({}),
    ),
)


def drive(engine: Any, execute: Any, step_kind: Any, script: list[Any]) -> None:
    """Feeds entries, and steps where the script says True; an open step ends at the next True."""
    stream: Stream[Any, Any] = Stream("fuzz", lambda: None)
    engine.sessions.connect(stream)
    now, running, ahead = 1.0, None, None
    for item in script:
        now += 0.01
        if item is not True:
            engine.handle(stream, item, now)
        elif running is not None:
            engine.complete(running, execute(running), now)
            running = ahead
        else:
            planned = engine.plan(now)
            running = planned if isinstance(planned, step_kind) else None
        if item is True:
            ahead = None
        if running is not None and ahead is None:
            planned = engine.plan_ahead(running, now)
            ahead = planned if isinstance(planned, step_kind) else None
        for entry in stream.take():
            entry.SerializeToString()
    engine.sessions.disconnect(stream)
    for step in (running, ahead):
        if step is not None:
            engine.complete(step, execute(step), now)
    stats = engine.read_stats()
    assert (stats.open_sessions, stats.used_blocks) == (0, 0)


@FUZZ
@given(st.lists(draft_entries | st.just(True), max_size=25))
def test_no_entry_confuses_a_draft(script: list[Any]) -> None:
    drafter = ScriptedDrafter(SCRIPT, KvCache(12, BLOCK_SIZE, reuse=True), 8, GUESSES["right"])
    engine = DraftEngine(DraftLimits(VOCABULARY, 20, (END,), 2), drafter, NoTrace())
    drive(engine, lambda step: drafter.execute(step.batch), DraftStep, script)


@FUZZ
@given(st.lists(target_entries | st.just(True), max_size=25), st.booleans())
def test_no_entry_confuses_a_target(script: list[Any], overlaps: bool) -> None:
    model = ScriptedTarget(SCRIPT, BLOCK_SIZE)
    engine = TargetEngine(
        TargetLimits(VOCABULARY, 20, (END,), 2),
        KvCache(12, BLOCK_SIZE, reuse=True),
        Scheduler(Patience(0.0), 8),
        NoTrace(),
        overlaps,
    )
    drive(engine, model.execute, TargetStep, script)


class Ignore:
    """A listener that does not listen."""

    def on_round(self, session: Session, finished: Round, verdict: target_pb2.Verdict) -> None: ...
    def on_candidates(self, session: Session) -> None: ...
    def on_failure(self, session: Session, error: ForerunError) -> None: ...


candidates = st.builds(
    draft_pb2.Candidates,
    epoch=epochs,
    start_position=positions,
    token_ids=tokens | good_tokens.map(lambda some: some * 400),
    exhausted=st.booleans(),
    draft_ns=st.sampled_from([0, 2**64 - 1]),
)
verdicts = st.builds(
    target_pb2.Verdict,
    round_index=st.integers(0, 9),
    start_position=positions,
    token_ids=tokens,
    drafted_count=st.integers(0, 3),
    epoch=epochs,
)
detached = st.builds(draft_pb2.Detached, reason=st.sampled_from([0, 1, 2, 3, 4, 99]))
events = st.one_of(
    candidates,
    verdicts,
    detached,
    st.sampled_from(["lost", "unknown", "silence", "attach draft", "attach target", "say"]),
)


@FUZZ
@given(st.lists(events, max_size=40))
def test_nothing_a_service_says_confuses_a_session(script: list[Any]) -> None:
    session = Session(1, [2, 3], [], SamplingParams(max_tokens=9), SpeculationSettings(3, 5), VOCABULARY, Ignore())
    for event in script:
        match event:
            case draft_pb2.Candidates():
                session.on_candidates(event)
            case target_pb2.Verdict():
                session.on_verdict(event, 1.0)
            case draft_pb2.Detached():
                session.on_detached(event, 1.0)
            case "lost":
                session.on_draft_lost(1.0)
            case "unknown":
                session.on_target_unknown()
            case "silence":
                session.on_silence()
            case "attach draft":
                session.draft.attach()
            case "attach target":
                session.target.attach()
            case _:
                for entry in (*session.draft.entries(session), *session.target.entries(session)):
                    entry.SerializeToString()
        assert len(session.candidates) <= MAX_WINDOW
        assert session.token_ids[:2] == [2, 3]
