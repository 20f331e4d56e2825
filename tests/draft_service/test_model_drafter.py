"""A whole draft in one batch is what drafting token by token gives, ends where it should, and is left in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from draft_service.drafters.drafter import Proposal, Want
from draft_service.drafters.draws import Draws
from draft_service.drafters.model import ModelDrafter
from forerun.errors import Internal
from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.output_head import Head, restrict_head
from forerun.runtime.sequence import Sequence as TokenSequence
from forerun.sampling_params import SamplingParams
from tests.models import make_tiny_model

VOCABULARY, BLOCKS, BLOCK_SIZE = 320, 32, 4
PROMPTS = ([5, 6, 7], [200, 9, 31, 8, 77, 12], [40])
PARAMS = (SamplingParams(0.0), SamplingParams(0.9, seed=7), SamplingParams(0.0, repetition_penalty=1.3))


class Rig:
    """A drafter over a tiny model, and how many forwards that has run, with how many tokens."""

    def __init__(self, folder: Path, known: int = VOCABULARY, blocks: int = BLOCKS, reuse: bool = False) -> None:
        model = load_model(folder)
        head: Head | None = None
        if known < VOCABULARY:
            head = restrict_head(model, known, list(range(VOCABULARY)), model.end_token_ids)
        self._runner = ModelRunner(model, blocks, BLOCK_SIZE)
        self.cache = KvCache(blocks, BLOCK_SIZE, reuse)
        self.drafter = ModelDrafter(Draws(self, head), self.cache, (), 64)
        self.forwards = self.fed = 0

    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        self.forwards += 1
        self.fed += sum(len(part.token_ids) for part in slices)
        return self._runner.forward(slices)

    def draft(self, wants: Sequence[Want]) -> list[Proposal]:
        """One batch, whose proposals are taken."""
        batch, refused = self.drafter.plan(wants)
        assert not refused
        proposals = self.drafter.execute(batch)
        for want, proposal in zip(wants, proposals, strict=True):
            want.sequence.append(proposal.token_ids)
        self.drafter.settle(batch, proposals)
        return proposals


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("draft") / "model")


def wants(most: Sequence[int], params: SamplingParams) -> list[Want]:
    return [Want(TokenSequence(prompt), params, len(prompt), k) for prompt, k in zip(PROMPTS, most, strict=False)]


@pytest.mark.parametrize("known", [VOCABULARY, 200])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_a_whole_draft_is_what_single_tokens_give(folder: Path, known: int, params: SamplingParams) -> None:
    whole, single = Rig(folder, known), Rig(folder, known)
    made = wants([5, 2, 4], params)
    proposals = whole.draft(made)
    assert [len(proposal.token_ids) for proposal in proposals] == [5, 2, 4]
    assert whole.forwards == 5, "sessions share forwards"
    assert [want.sequence.pending_length for want in made] == [1, 1, 1], "only the last token is not in the cache"
    for want, proposal in zip(wants([1, 1, 1], params), proposals, strict=True):
        found = [single.draft([want])[0] for _ in proposal.token_ids]
        assert [one.token_ids[0] for one in found] == list(proposal.token_ids)
        confidences = [one.confidences[0] for one in found]
        assert confidences == pytest.approx(proposal.confidences, rel=1e-4)
        assert all(0 < confidence <= 1 for confidence in confidences)


def test_a_draft_ends_at_an_end_token_and_where_it_is_unlikely_to_hold(folder: Path) -> None:
    (plain,) = Rig(folder).draft(wants([6], PARAMS[0])[:1])
    sequence = TokenSequence(PROMPTS[0])
    ending = Want(sequence, PARAMS[0], 3, 6, end_token_ids=frozenset({plain.token_ids[3]}))
    first = plain.token_ids.index(plain.token_ids[3])
    assert Rig(folder).draft([ending])[0].token_ids == plain.token_ids[: first + 1]
    unsure = Want(TokenSequence(PROMPTS[0]), PARAMS[0], 3, 6, min_confidence=plain.confidences[0] + 1e-3)
    assert Rig(folder).draft([unsure])[0].token_ids == plain.token_ids[:1]


def test_drafting_stops_for_a_sequence_that_is_refuted_meanwhile(folder: Path) -> None:
    rig = Rig(folder)
    made = wants([6, 3], PARAMS[0])
    batch, _ = rig.drafter.plan(made)
    run = rig.forward

    def overtaken(slices: Sequence[ForwardSlice]) -> torch.Tensor:
        if rig.forwards == 1:  # while the second one runs
            made[0].sequence.truncate(2)
            rig.drafter.truncated(made[0].sequence)
        return run(slices)

    rig.forward = overtaken  # type: ignore[method-assign]
    proposals = rig.drafter.execute(batch)
    assert [len(proposal.token_ids) for proposal in proposals] == [2, 3]
    made[0].sequence.append([99])
    made[1].sequence.append(proposals[1].token_ids)
    rig.drafter.settle(batch, proposals)
    assert [want.sequence.computed_length for want in made] == [2, len(PROMPTS[1]) + 2]


def test_a_full_cache_has_room_for_a_single_token(folder: Path) -> None:
    rig = Rig(folder, blocks=1)
    assert len(rig.draft(wants([6], PARAMS[0])[:1])[0].token_ids) == 1
    (want,) = wants([6], PARAMS[0])[:1]
    rig = Rig(folder, blocks=1)
    want.sequence.append([1, 2])
    _, refused = rig.drafter.plan([want])
    assert refused == [want]


@pytest.mark.parametrize("params", PARAMS[:2], ids=str)
def test_broken_logits_are_an_error(folder: Path, params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(folder)
    monkeypatch.setattr(rig, "forward", lambda slices: torch.full((1, VOCABULARY), float("nan")))
    batch, _ = rig.drafter.plan(wants([3], params)[:1])
    with pytest.raises(Internal, match="NaN"):
        rig.drafter.execute(batch)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("length", [2, 4])
def test_a_sequence_cut_to_what_is_computed_is_drafted_for_again(folder: Path, reuse: bool, length: int) -> None:
    """A rollback may refute candidates without a token in their place."""
    rig = Rig(folder, reuse=reuse)
    sequence = TokenSequence([5, 6, 7, 8][:length])
    want = Want(sequence, PARAMS[0], length, 4)
    (first,) = rig.draft([want])
    sequence.truncate(length)
    rig.drafter.truncated(sequence)
    assert sequence.pending_length == 0
    assert rig.draft([want])[0].token_ids == first.token_ids


LONG = [(7 * i) % 300 + 3 for i in range(41)]


def test_a_prompt_that_was_computed_before_is_not_fed_again(folder: Path) -> None:
    plain, reusing = Rig(folder), Rig(folder, reuse=True)
    prompts = [LONG, [*LONG[:30], 5, 6], LONG]
    for at, prompt in enumerate(prompts):
        made = [Want(TokenSequence(prompt), PARAMS[0], len(prompt), 4) for _ in range(2)]
        before = reusing.fed
        found, expected = reusing.draft(made[:1]), plain.draft(made[1:])
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        assert found[0].confidences == pytest.approx(expected[0].confidences, rel=1e-4)
        assert reusing.fed - before == 3 + (len(LONG), 32 - 28, 1)[at]
        reusing.drafter.forget(made[0].sequence)
    assert reusing.drafter.reused_tokens == 28 + 40
    assert reusing.cache.used_blocks == 0


def test_candidates_are_not_shared_and_what_was_refuted_is_computed_again(folder: Path) -> None:
    rig = Rig(folder, reuse=True)
    first, second = TokenSequence(LONG[:10]), TokenSequence(LONG[:10])
    rig.draft([Want(first, PARAMS[0], 10, 8)])
    assert first.computed_length == 17
    rig.draft([Want(second, PARAMS[0], 10, 8)])
    assert second.token_ids == first.token_ids
    assert rig.drafter.reused_tokens == 8, "two blocks of the prompt, none of the draft"
    rig.draft([Want(first, PARAMS[0], 10, 1, committed_length=17)])
    second.truncate(12)
    rig.drafter.truncated(second)
    second.append([9, 9])
    (proposal,) = rig.draft([Want(second, PARAMS[0], 10, 4, committed_length=14)])
    fresh = TokenSequence([*second.token_ids[:14]])
    assert proposal.token_ids == Rig(folder).draft([Want(fresh, PARAMS[0], 10, 4)])[0].token_ids
    third = TokenSequence(first.token_ids)
    rig.draft([Want(third, PARAMS[0], 10, 1)])
    assert third.block_table[:4] == first.block_table[:4]


def test_a_draft_that_another_session_committed_may_still_be_refuted(folder: Path) -> None:
    """Its candidates lie in blocks that were registered by the other one; a rollback leaves these alone."""
    rig = Rig(folder, reuse=True)
    first = TokenSequence(LONG)
    rig.draft([Want(first, PARAMS[0], len(LONG), 4, committed_length=len(LONG))])
    second = TokenSequence(LONG)  # of which only ten tokens are its prompt
    rig.draft([Want(second, PARAMS[0], 10, 4)])
    assert second.block_table[:10] == first.block_table[:10]
    second.truncate(22)
    rig.drafter.truncated(second)
    assert second.computed_length == 20, "the start of the block that was cut"
    second.append([9])
    (proposal,) = rig.draft([Want(second, PARAMS[0], 10, 4)])
    fresh = Want(TokenSequence([*LONG[:22], 9]), PARAMS[0], 10, 4)
    assert proposal.token_ids == Rig(folder).draft([fresh])[0].token_ids
    (again,) = rig.draft([Want(TokenSequence(LONG), PARAMS[0], len(LONG), 4)])
    assert again.token_ids == tuple(first.token_ids[len(LONG) : len(LONG) + 4])
