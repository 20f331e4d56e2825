"""What `auto` means: the target stays exact on a CPU, a draft takes the short format where the CPU multiplies it."""

from __future__ import annotations

import pytest
import torch

from forerun.runtime.identity import choose_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("has", [True, False])
def test_auto_is_short_for_a_draft_only_where_the_cpu_has_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has, raising=False)
    assert choose_dtype("auto", CPU) is torch.float32
    assert choose_dtype("auto", CPU, guesses=True) is (torch.bfloat16 if has else torch.float32)
    assert choose_dtype("float32", CPU, guesses=True) is torch.float32
    assert choose_dtype("auto", GPU) is torch.bfloat16


def test_a_torch_that_cannot_tell_is_taken_not_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    assert choose_dtype("auto", CPU, guesses=True) is torch.float32
