"""Linear layers that read eight-bit weights for few rows, for a draft on a CPU: half of the bytes a token waits for.

A step of a small draft mostly waits for its weights. Only a draft's may be rounded: what it guesses changes little, and
the target decides. One scale for each output; sums and results stay bfloat16. It is torch's operation for weight-only
quantisation, whose time grows with every row, so prompts go through the whole weights. Where this torch does not have
it, and in other number formats, for which it is slow, the layers stay as they are.
"""

from __future__ import annotations

import logging

import torch

from forerun.logs import event
from forerun.runtime.model import LoadedModel
from forerun.runtime.packed_linear import linear_places

logger = logging.getLogger(__name__)

LARGEST = 127
MOST_ROWS = 4  # from where on whole weights, read once for all rows, are faster


class Int8Linear(torch.nn.Module):
    """A drop-in for an inference-only `torch.nn.Linear` in bfloat16, which it keeps for many rows."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.whole: torch.nn.Module = linear
        self.bias = linear.bias
        weight = linear.weight.detach()
        largest = weight.abs().amax(1).float().clamp_(min=torch.finfo(torch.float32).tiny)
        # [out_features], rounded before they are divided by
        self.scales = (largest / LARGEST).to(weight.dtype)
        rounded = (weight.float() / self.scales.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
        self.rounded = rounded.to(torch.int8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        # [R, in_features]
        flat = rows.reshape(-1, self.in_features)
        if len(flat) > MOST_ROWS:
            whole: torch.Tensor = self.whole(rows)
            return whole
        product: torch.Tensor = torch._weight_int8pack_mm(flat, self.rounded, self.scales)
        if self.bias is not None:
            product = product + self.bias
        return product.view(*rows.shape[:-1], self.out_features)


def round_linears(model: LoadedModel) -> int:
    """Replaces the model's linear layers on a CPU in bfloat16, and returns how many; elsewhere it changes nothing.

    Before `pack_linears`, which then packs the whole weights.
    """
    if model.device.type != "cpu" or model.dtype is not torch.bfloat16 or not _works():
        return 0
    found = linear_places(model)
    for parent, name in found:
        setattr(parent, name, Int8Linear(getattr(parent, name)))
    event(logger, "weights_rounded", layers=len(found))
    return len(found)


def _works() -> bool:
    """Whether this torch has the operation and it computes what a linear layer does."""
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(32, 48, bias=False, dtype=torch.bfloat16)
    rows = torch.randn(3, 32, generator=generator).bfloat16()
    try:
        with torch.inference_mode():
            return torch.allclose(Int8Linear(linear)(rows), linear(rows), atol=0.1)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
