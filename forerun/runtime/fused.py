"""Fewer operations in a forward: layers of one input become one product, RMS norms one call. The model's code stays.

On a CPU each operation costs its dispatch, on a GPU its launch, which for few rows is much of a step. Only modules are
replaced, after loading: a decoder layer goes on asking its q_proj, k_proj and v_proj one by one. Fuse before packing,
which then finds the fused product.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from forerun.logs import event
from forerun.runtime.model import LoadedModel

logger = logging.getLogger(__name__)

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # siblings that transformers gives the same rows
RTOL = {torch.float32: 1e-6, torch.bfloat16: 2**-7}  # what a norm may be off by, for bfloat16 its last place


class FusedLinear(torch.nn.Module):
    """Linear layers of the same input as one product; it keeps no other copy of the weights.

    Whichever layer is asked first computes for all. The others' shares wait until they are asked with the very same
    tensor; for any other rows the product is computed anew, so that no order of calls can make a result wrong.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear]) -> None:
        super().__init__()
        self.widths = [linear.out_features for linear in linears]
        first = linears[0]
        self.product = torch.nn.Linear(first.in_features, sum(self.widths), first.bias is not None, device="meta")
        for name, _ in first.named_parameters():
            together = torch.cat([linear.get_parameter(name).detach() for linear in linears])
            setattr(self.product, name, torch.nn.Parameter(together, requires_grad=False))
        self._rows: torch.Tensor | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    def share(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., widths[index]], a view of the product."""
        if rows is not self._rows or index not in self._waiting:
            self._rows = rows
            self._waiting = dict(enumerate(self.product(rows).split_with_sizes(self.widths, -1)))
        share = self._waiting.pop(index)
        if not self._waiting:
            self._rows = None
        return share


class FusedShare(torch.nn.Module):
    """Stands where one of the linear layers stood."""

    def __init__(self, fused: FusedLinear, index: int) -> None:
        super().__init__()
        self.fused, self.index = fused, index

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        return self.fused.share(self.index, rows)


class FusedNorm(torch.nn.Module):
    """`weight * rows / rms(rows)` in one call, for a module of transformers that takes six."""

    def __init__(self, weight: torch.nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., width] -> [..., width]"""
        return torch.nn.functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)


def fuse(model: LoadedModel) -> None:
    """Fuses what can be fused; what is built otherwise stays as it is."""
    event(logger, "layers_fused", products=fuse_projections(model), norms=fuse_norms(model))


def fuse_projections(model: LoadedModel) -> int:
    """Replaces linear layers that share their input by one product each, and returns how many products that makes."""
    found = [(parent, names) for parent in model.module.modules() for names in GROUPS if _fusible(parent, names)]
    for parent, names in found:  # one after the other, so that only one product's weights are there twice for a moment
        fused = FusedLinear([getattr(parent, name) for name in names])
        for index, name in enumerate(names):
            setattr(parent, name, FusedShare(fused, index))
    return len(found)


def fuse_norms(model: LoadedModel) -> int:
    """Replaces the RMS norms for which one call computes the same; returns how many. Gemma's are of another kind."""
    found = [
        (parent, name, fused)
        for parent in model.module.modules()
        for name, norm in parent.named_children()
        if (fused := _fused_norm(norm)) is not None
    ]
    for parent, name, fused in found:
        setattr(parent, name, fused)
    return len(found)


def _fusible(parent: torch.nn.Module, names: Sequence[str]) -> bool:
    linears = [getattr(parent, name, None) for name in names]
    kinds = {
        (linear.in_features, linear.bias is None, linear.weight.dtype, linear.weight.device)
        if type(linear) is torch.nn.Linear
        else None
        for linear in linears
    }
    return len(kinds) == 1 and None not in kinds


def _fused_norm(norm: torch.nn.Module) -> FusedNorm | None:
    """One call for this norm, if it is an RMS norm and random rows, small to large, come out of it the same."""
    weight, epsilon = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not (isinstance(weight, torch.nn.Parameter) and weight.dim() == 1 and isinstance(epsilon, float)):
        return None
    if not type(norm).__name__.endswith("RMSNorm") or weight.dtype not in RTOL:
        return None
    fused = FusedNorm(weight, epsilon)
    scales = torch.logspace(-4, 3, 8)[:, None]  # the smallest are those where epsilon matters
    # [8, width]
    rows = scales * torch.randn(8, len(weight), generator=torch.Generator().manual_seed(0))
    rows = rows.to(weight.device, weight.dtype)
    with torch.inference_mode():
        same = torch.allclose(fused(rows), norm(rows), rtol=RTOL[weight.dtype], atol=0)
    return fused if same else None
