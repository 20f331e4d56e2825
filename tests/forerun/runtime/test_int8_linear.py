"""Rounded weights are used for few rows and whole ones for many, and a draft in float32 keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forerun.runtime.int8_linear import MOST_ROWS, Int8Linear, round_linears
from forerun.runtime.model import load_model
from forerun.runtime.model_runner import ForwardSlice, ModelRunner
from forerun.runtime.packed_linear import PackedLinear, pack_linears, packing_works
from tests.models import make_tiny_model

SEED = 20261130


@pytest.mark.parametrize("rows", [1, MOST_ROWS, MOST_ROWS + 1, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_a_rounded_layer_is_near_and_whole_for_many_rows(rows: int, bias: bool) -> None:
    torch.manual_seed(SEED)
    print(f"seed {SEED}")
    linear = torch.nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16)
    with torch.inference_mode():
        linear.weight[3] = 0  # has no scale of its own
        linear.weight[4] *= 100
        given = torch.randn(1, rows, 96, dtype=torch.bfloat16)
        exact, rounded = linear(given), Int8Linear(linear)(given)
        # [1, rows, 160]: what each product is made of
        size = given.double().norm(dim=-1, keepdim=True) * linear.weight.double().norm(dim=-1).clamp(min=1e-9)
        error = (rounded.double() - exact.double()).abs() / size
    assert torch.equal(rounded, exact) == (rows > MOST_ROWS)
    assert error.max() < 5e-3


def test_a_rounded_model_is_packed_too_where_that_works_and_says_nearly_the_same(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    whole, rounded = (load_model(folder, torch.bfloat16) for _ in range(2))
    assert round_linears(rounded) == 15, "seven in each of two layers, and the head"
    pack_linears(rounded)
    kinds = {type(layer.whole) for layer in rounded.module.modules() if isinstance(layer, Int8Linear)}
    assert kinds == {PackedLinear if packing_works(torch.bfloat16) else torch.nn.Linear}
    given = [ForwardSlice((5, 6, 7), 0, (0, 1), 3)]
    expected, found = (ModelRunner(model, 4).forward(given).float() for model in (whole, rounded))
    assert (found - expected).norm() / expected.norm() < 0.05


def test_other_number_formats_keep_their_weights(tmp_path: Path) -> None:
    assert round_linears(load_model(make_tiny_model(tmp_path / "model"))) == 0
