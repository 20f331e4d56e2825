"""A restricted head proposes only what it knows, as the whole head would among those tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forerun.runtime.kv_cache import KvCache
from forerun.runtime.model import LoadedModel, load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.output_head import RANKING_FILE, Head, head_for, ranking, restrict_head
from forerun.runtime.sampling import DrawRequest, draw
from forerun.runtime.sequence import Sequence
from forerun.sampling_params import SamplingParams
from tests.models import make_tiny_model

VOCABULARY, END = 320, 2
TOKENS = (1, 50, 60, 70, 80, 90, 100, 110)


@pytest.fixture(scope="module", params=["untied", "tied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tied = request.param == "tied"
    return make_tiny_model(tmp_path_factory.mktemp(request.param) / "model", tie_word_embeddings=tied)


def logits(model: LoadedModel) -> torch.Tensor:
    """[len(TOKENS), width of the head]."""
    runner, cache, sequence = ModelRunner(model, 4), KvCache(4), Sequence(TOKENS)
    assert cache.reserve(sequence, len(TOKENS))
    return runner.forward([ForwardSlice(TOKENS, 0, tuple(sequence.block_table), len(TOKENS))])


def restricted(folder: Path, size: int, ranked: list[int] | None = None) -> tuple[Head, torch.Tensor]:
    """The head, and what its model says of each token, spread over the whole vocabulary."""
    model = load_model(folder)
    head = restrict_head(model, size, ranked or list(range(VOCABULARY)), model.end_token_ids)
    return head, head.spread(logits(model))


def test_only_known_tokens_can_be_drawn_and_the_best_of_them_is(folder: Path) -> None:
    whole = logits(load_model(folder))
    ranked = list(reversed(range(VOCABULARY)))
    head, spread = restricted(folder, 40, ranked)
    known = {*ranked[:40], END}
    assert set(head.token_ids.tolist()) == known
    assert set(spread.isfinite().nonzero()[:, 1].tolist()) == known
    unknown = [token_id for token_id in range(VOCABULARY) if token_id not in known]
    best = whole.clone().index_fill_(1, torch.tensor(unknown), float("-inf")).argmax(-1)
    assert spread.argmax(-1).tolist() == best.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draws_are_the_whole_heads_wherever_that_draws_a_known_token(folder: Path, temperature: float) -> None:
    params = SamplingParams(temperature, seed=5)
    request = DrawRequest(params, TOKENS, 1, 1, len(TOKENS))
    head, spread = restricted(folder, 160)
    (narrow,), (wide,) = draw(spread, [request]), draw(logits(load_model(folder)), [request])
    known = set(head.token_ids.tolist())
    assert all(one.token_id in known for one in narrow)
    agreeing = [a.token_id == b.token_id for a, b in zip(narrow, wide, strict=True) if b.token_id in known]
    assert agreeing and all(agreeing)


def test_restricted_to_everything_is_not_restricted(folder: Path) -> None:
    _, spread = restricted(folder, VOCABULARY)
    torch.testing.assert_close(spread, logits(load_model(folder)))
    for size in (0, VOCABULARY, VOCABULARY + 1):
        assert head_for(load_model(folder), size, VOCABULARY) is None


def test_known_logits_land_on_their_ids_and_the_rest_on_minus_infinity() -> None:
    spread = Head(torch.tensor([1, 4]), 6).spread(torch.tensor([[0.5, 2.0], [3.0, -1.0]]))
    nothing = float("-inf")
    assert spread.tolist() == [
        [nothing, 0.5, nothing, nothing, 2.0, nothing],
        [nothing, 3.0, nothing, nothing, -1.0, nothing],
    ]


def test_end_tokens_are_known_at_any_size(folder: Path) -> None:
    model = load_model(folder)
    head = restrict_head(model, 1, [300, *range(300)], model.end_token_ids)
    assert head.token_ids.tolist() == [END, 300]


@pytest.mark.parametrize(
    ("advised", "asked", "known"), [(40, 0, 40), (40, 16, 16), (40, VOCABULARY, None), (None, 0, None)]
)
def test_on_a_cpu_the_checkpoint_advises_a_size_and_an_explicit_one_wins(
    advised: int | None, asked: int, known: int | None, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    ranked = list(reversed(range(VOCABULARY)))  # the end token is among the last
    save_file({"token_ids": torch.tensor(ranked, dtype=torch.int32)}, folder / RANKING_FILE)
    (folder / "forerun.json").write_text(json.dumps({} if advised is None else {"head_tokens": advised}))
    head = head_for(load_model(folder), asked, VOCABULARY)
    assert (head and set(head.token_ids.tolist())) == (known and {*ranked[:known], END})


def test_the_embeddings_stay_whole(folder: Path) -> None:
    model = load_model(folder)
    head_for(model, 16, VOCABULARY)
    assert model.module.get_input_embeddings().weight.shape[0] == VOCABULARY


def test_the_ranking_beside_a_checkpoint_goes_before_the_order_of_ids(tmp_path: Path) -> None:
    assert ranking(tmp_path, 5) == [0, 1, 2, 3, 4]
    save_file({"token_ids": torch.tensor([4, 2, 0, 1, 3], dtype=torch.int32)}, tmp_path / RANKING_FILE)
    assert ranking(tmp_path, 5) == [4, 2, 0, 1, 3]
