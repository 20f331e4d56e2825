"""A whole draft in one batch is what drafting token by token gives, ends where it should, and is left in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from draft_service.drafters.drafter import Proposal, Want
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
    """A drafter over a tiny model, and how many forwards that has run."""

    def __init__(self, folder: Path, known: int = VOCABULARY, blocks: int = BLOCKS) -> None:
        model = load_model(folder)
        head: Head | None = None
        if known < VOCABULARY:
            head = restrict_head(model, known, list(range(VOCABULARY)), model.end_token_ids)
        self._runner = ModelRunner(model, blocks, BLOCK_SIZE)
        self.cache = KvCache(blocks, BLOCK_SIZE)
        self.drafter = ModelDrafter(self, self.cache, (), 64, head)
        self.forwards = 0

    def forward(self, slices: Sequence[ForwardSlice]) -> torch.Tensor:
        self.forwards += 1
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
