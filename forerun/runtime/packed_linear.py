"""Linear layers with weights laid out for oneDNN, on a CPU: the same products, up to three times as fast for few rows.

A step of decoding or verifying multiplies a handful of rows with every weight. `torch.nn.Linear` hands the library its
weights in row order each time; packed once, they are read as the kernel wants them. These are the operations that
torch's own inductor emits on a CPU. Where this torch or processor does not have them the layers stay as they are.
"""

from __future__ import annotations

import logging

import torch

from forerun.logs import event
from forerun.runtime.model import LoadedModel

logger = logging.getLogger(__name__)

ROWS = 16  # the batch that the layout is chosen for; good from 1 to some hundreds


class PackedLinear(torch.nn.Module):
    """A drop-in for an inference-only `torch.nn.Linear`; it keeps no other copy of the weights."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return product


def pack_linears(model: LoadedModel) -> None:
    """Replaces the model's linear layers. Changes nothing on a GPU, or where the operations are missing."""
    if model.device.type != "cpu" or not _works(model.dtype):
        return
    found = [
        (parent, name)
        for parent in model.module.modules()
        for name, layer in parent.named_children()
        if type(layer) is torch.nn.Linear
    ]
    for parent, name in found:  # by name, so that each layer is freed as soon as it is packed
        setattr(parent, name, PackedLinear(getattr(parent, name)))
    event(logger, "weights_packed", layers=len(found))


def _works(dtype: torch.dtype) -> bool:
    """Whether this torch has the operations and they compute what a linear layer does."""
    linear = torch.nn.Linear(32, 48, bias=True, dtype=dtype)
    rows = torch.ones(1, 3, 32, dtype=dtype)
    try:
        with torch.inference_mode():
            return torch.allclose(PackedLinear(linear)(rows), linear(rows), atol=1e-2)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
