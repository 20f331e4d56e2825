"""Packed layers compute what the model's own do, whatever the number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.packed_linear import PackedLinear, pack_linears, packing_pays, packing_works
from tests.models import ARCHITECTURES, make_tiny_model

SEED = 20261129


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, 17, 130])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_the_same_product(dtype: torch.dtype, rows: int, bias: bool) -> None:
    if not packing_works(dtype):
        pytest.skip(f"this processor or torch cannot pack {dtype}")
    torch.manual_seed(SEED)
    print(f"seed {SEED}")
    linear = torch.nn.Linear(96, 160, bias=bias, dtype=dtype)
    given = torch.randn(1, rows, 96, dtype=dtype)
    with torch.inference_mode():
        exact = torch.nn.functional.linear(
            given.double(), linear.weight.double(), linear.bias.double() if bias else None
        )
        error = (PackedLinear(linear)(given).double() - exact).norm() / exact.norm()
    assert error < (1e-6 if dtype is torch.float32 else 1e-2)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_packed_model_gives_the_same_logits(architecture: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / architecture, architecture)
    plain, packed = (load_model(folder) for _ in range(2))
    pack_linears(packed, lambda layers: True)
    given = [ForwardSlice(tuple(range(3, 20)), 0, (0, 1), 17)]
    logits = [ModelRunner(model, 4).forward(given) for model in (plain, packed)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(logits[0].argmax(-1), logits[1].argmax(-1))


def test_tied_embeddings_survive_packing(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m"))
    before = model.module.get_input_embeddings().weight.clone()
    pack_linears(model, lambda layers: True)
    assert torch.equal(model.module.get_input_embeddings().weight, before)


def test_where_a_processor_cannot_pack_layers_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(layer: PackedLinear, linear: torch.nn.Linear) -> None:
        raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx512bw")

    monkeypatch.setattr(PackedLinear, "__init__", refuse)
    model = load_model(make_tiny_model(tmp_path / "m"), torch.bfloat16)
    pack_linears(model, lambda layers: True)
    assert type(model.module.lm_head) is torch.nn.Linear


def test_only_shapes_for_which_it_pays_are_packed(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path / "m"))
    width = model.module.lm_head.in_features
    pack_linears(model, lambda layers: layers[0].in_features != width)
    kinds = {type(layer) for layer in model.module.modules() if getattr(layer, "in_features", width) != width}
    assert kinds == {PackedLinear}
    assert type(model.module.lm_head) is torch.nn.Linear


@pytest.mark.parametrize("slow", ["whole", "packed"])
def test_the_faster_way_is_found_by_timing(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a delay in one of them that no layer of this size has."""
    kind = torch.nn.Linear if slow == "whole" else PackedLinear
    forward = kind.forward

    def delayed(layer: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            forward(layer, rows)
        return forward(layer, rows)

    monkeypatch.setattr(kind, "forward", delayed)
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(2)]
    assert packing_pays(layers) == (slow == "whole")
    assert packing_pays([torch.nn.Linear(8, 8, bias=False)]), "too small to be timed"
