"""Fused layers compute what transformers' own do, in fewer products, and keep no second copy of the weights."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from forerun.runtime.fused import FusedLinear, FusedNorm, FusedShare, fuse, fuse_norms, fuse_projections
from forerun.runtime.model import LoadedModel, load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.packed_linear import PackedLinear, pack_linears
from tests.models import ARCHITECTURES, make_tiny_model

LAYERS = 2
APART = {"gpt2", "phi3"}  # fused by their own definition
OTHER_NORMS = {"gemma", "gemma2", "gemma3_text", "gpt2"}


def products_of_a_forward(model: LoadedModel) -> int:
    """How many linear products one forward makes, the head's included."""
    count = 0

    def counted(*_: object) -> None:
        nonlocal count
        count += 1

    kinds = (torch.nn.Linear, PackedLinear)
    hooks = [layer.register_forward_hook(counted) for layer in model.module.modules() if isinstance(layer, kinds)]
    ModelRunner(model, 4).forward([ForwardSlice((5, 6, 7), 0, (0,), 1)])
    for hook in hooks:
        hook.remove()
    return count


def ragged_logits(model: LoadedModel, prompts: list[list[int]]) -> torch.Tensor:
    """The logits of each prompt's last five tokens, in two forwards of several sequences. [sum of counts, V]."""
    runner = ModelRunner(model, 2 * len(prompts))
    tables = [(2 * index, 2 * index + 1) for index in range(len(prompts))]
    cuts = [max(0, len(ids) - 5) for ids in prompts]
    parts = list(zip(prompts, tables, cuts, strict=True))
    runner.forward([ForwardSlice(tuple(ids[:cut]), 0, table, 0) for ids, table, cut in parts if cut])
    return runner.forward([ForwardSlice(tuple(ids[cut:]), cut, table, len(ids) - cut) for ids, table, cut in parts])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fused_model_gives_the_logits_of_transformers(architecture: str, packed: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / architecture, architecture)
    attention = "eager" if architecture == "gemma2" else "sdpa"
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    unfused, fused = load_model(folder), load_model(folder)
    fuse(fused)
    if packed:
        pack_linears(fused)
    generator = random.Random(architecture)
    prompts = [[generator.randrange(3, 320) for _ in range(count)] for count in (7, 30, 1, 12)]
    logits = ragged_logits(fused, prompts)
    with torch.no_grad():
        expected = torch.cat([plain(torch.tensor([ids])).logits[0, -5:] for ids in prompts])
    torch.testing.assert_close(logits, ragged_logits(unfused, prompts), rtol=0, atol=1e-5)
    # The paged attention alone accounts for a difference here.
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_fused(architecture: str, tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / architecture, architecture))
    assert fuse_projections(model) == (0 if architecture in APART else 2 * LAYERS)
    per_layer = 4 if architecture == "qwen3" else 2
    assert fuse_norms(model) == (0 if architecture in OTHER_NORMS else per_layer * LAYERS + 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_forward_makes_fewer_products(packed: bool, tmp_path: Path) -> None:
    plain, fused = (load_model(make_tiny_model(tmp_path / "m")) for _ in range(2))
    fuse(fused)
    if packed:
        pack_linears(fused)
    assert products_of_a_forward(plain) == 7 * LAYERS + 1
    assert products_of_a_forward(fused) == 4 * LAYERS + 1


def test_no_weight_is_kept_twice(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m"))
    before = model.parameter_bytes
    layer = model.module.model.layers[0]
    apart = [weakref.ref(part.weight) for part in (layer.self_attn.q_proj, layer.self_attn.v_proj, layer.mlp.up_proj)]
    fuse(model)
    gc.collect()
    assert [weight() for weight in apart] == [None] * 3
    assert model.parameter_bytes == before
    fused = weakref.ref(layer.mlp.up_proj.fused.product.weight)
    pack_linears(model)
    gc.collect()
    if isinstance(layer.mlp.up_proj.fused.product, PackedLinear):
        assert fused() is None


def shares(bias: bool = True) -> tuple[list[torch.nn.Linear], list[FusedShare], list[int]]:
    """Three layers, the same ones fused, and a list that grows with every product."""
    torch.manual_seed(0)
    linears = [torch.nn.Linear(32, width, bias=bias) for width in (48, 16, 24)]
    fused = FusedLinear(linears)
    products: list[int] = []
    fused.product.register_forward_hook(lambda *_: products.append(1))
    return linears, [FusedShare(fused, index) for index in range(3)], products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@torch.inference_mode()
def test_the_shares_may_be_asked_in_any_order(order: tuple[int, ...], bias: bool) -> None:
    linears, parts, products = shares(bias)
    for forward in range(1, 4):
        rows = torch.randn(1, 5, 32)
        for index in order:
            torch.testing.assert_close(parts[index](rows), linears[index](rows), rtol=1e-5, atol=1e-5)
        assert len(products) == forward


@torch.inference_mode()
def test_a_share_never_answers_for_other_rows() -> None:
    linears, parts, products = shares()
    first, second = torch.randn(2, 1, 5, 32).unbind()
    parts[0](first)
    torch.testing.assert_close(parts[1](second), linears[1](second), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts[2](first), linears[2](first), rtol=1e-5, atol=1e-5)
    assert len(products) == 3


@torch.inference_mode()
def test_nothing_is_held_once_all_were_asked() -> None:
    _, parts, _ = shares()
    rows = torch.randn(1, 5, 32)
    seen = weakref.ref(rows)
    for part in parts:
        part(rows)
    del rows
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("unlike", [{"in_features": 16}, {"bias": True}, {"dtype": torch.bfloat16}])
def test_layers_that_are_not_alike_stay_apart(unlike: dict[str, object], tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m", layers=1))
    like = {"in_features": 64, "out_features": 32, "bias": False} | unlike
    model.module.model.layers[0].self_attn.k_proj = torch.nn.Linear(**like)  # type: ignore[arg-type]
    assert fuse_projections(model) == 1
    assert type(model.module.model.layers[0].self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
def test_a_fused_norm_computes_the_same(dtype: torch.dtype, rtol: float, tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m"), dtype)
    norm = model.module.model.norm
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    assert isinstance(norm, LlamaRMSNorm)
    fuse_norms(model)
    assert isinstance(model.module.model.norm, FusedNorm)
    rows = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.testing.assert_close(model.module.model.norm(rows), norm(rows), rtol=rtol, atol=0)


def _wrong_epsilon(norm: LlamaRMSNorm) -> None:
    norm.forward = lambda rows: torch.nn.functional.rms_norm(rows, norm.weight.shape, norm.weight, 1e-4)


def _gemma(norm: LlamaRMSNorm) -> None:
    norm.eps = norm.variance_epsilon
    norm.forward = lambda rows: GemmaRMSNorm.forward(norm, rows)


@pytest.mark.parametrize("change", [_wrong_epsilon, _gemma])
def test_a_norm_of_another_formula_is_left_alone(change: Callable[[LlamaRMSNorm], None], tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m"))
    change(model.module.model.norm)
    changed = model.module.model.norm
    if change is _gemma:
        changed._norm = lambda rows: GemmaRMSNorm._norm(changed, rows)
    assert fuse_norms(model) == 2 * LAYERS
    assert model.module.model.norm is changed
