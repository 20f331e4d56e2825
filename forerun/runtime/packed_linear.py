"""Linear layers with weights laid out for oneDNN, on a CPU: the same products, up to three times as fast for few rows.

A step of decoding or verifying multiplies a handful of rows with every weight. `torch.nn.Linear` hands the library its
weights in row order each time; packed once, they are read as the kernel wants them. These are the operations that
torch's own inductor emits on a CPU. How much it brings depends on processor, number format and shape, and now and then
it costs: so layers of each shape are timed both ways when the model is loaded. Where this torch or processor does not
have the operations the layers stay as they are.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from forerun.logs import event
from forerun.runtime.model import LoadedModel

logger = logging.getLogger(__name__)

ROWS = 16  # the batch that the layout is chosen for; good from 1 to some hundreds
TIMED_ROWS = (1, 5)  # a plain step, and one that verifies a draft
TIMED_BYTES = 64 << 20  # of weights of one shape, or one layer: enough not to stay in a cache
TIMED_LEAST_BYTES = 1 << 20  # less than that is not worth timing
REPEATS = 7


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


def linear_places(model: LoadedModel) -> list[tuple[torch.nn.Module, str]]:
    """Where the model has plain linear layers: their parents, and their names there."""
    return [
        (parent, name)
        for parent in model.module.modules()
        for name, layer in parent.named_children()
        if type(layer) is torch.nn.Linear
    ]


def pack_linears(model: LoadedModel, pays: Callable[[Sequence[torch.nn.Linear]], bool] | None = None) -> None:
    """Replaces the model's linear layers of each shape for which it `pays`, by default by timing them.

    Changes nothing on a GPU, or where the operations are missing.
    """
    if model.device.type != "cpu" or not packing_works(model.dtype):
        return
    places: dict[tuple[int, ...], list[tuple[torch.nn.Module, str]]] = defaultdict(list)
    for parent, name in linear_places(model):
        places[tuple(getattr(parent, name).weight.shape)].append((parent, name))
    layers, kept = 0, 0
    for found in places.values():
        if not (pays or packing_pays)([getattr(parent, name) for parent, name in found]):
            kept += len(found)
            continue
        for parent, name in found:  # by name, so that each layer is freed as soon as it is packed
            setattr(parent, name, PackedLinear(getattr(parent, name)))
        layers += len(found)
    event(logger, "weights_packed", layers=layers, kept=kept)


def packing_works(dtype: torch.dtype) -> bool:
    """Whether torch has the operations for this number format and processor, and they compute what a linear layer does.

    bfloat16 wants AVX-512 (avx512bw, vl and dq) or avx_ne_convert on x86.
    """
    linear = torch.nn.Linear(32, 48, bias=True, dtype=dtype)
    rows = torch.ones(1, 3, 32, dtype=dtype)
    try:
        with torch.inference_mode():
            return torch.allclose(PackedLinear(linear)(rows), linear(rows), atol=1e-2)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


@torch.inference_mode()
def packing_pays(linears: Sequence[torch.nn.Linear]) -> bool:
    """Whether layers of one shape are faster packed, here and with the threads that torch has now."""
    size = linears[0].weight.nbytes
    if size * len(linears) < TIMED_LEAST_BYTES:
        return True
    whole = linears[: max(1, TIMED_BYTES // size)]
    packed = [PackedLinear(linear) for linear in whole]
    batches = [torch.ones(1, rows, whole[0].in_features, dtype=whole[0].weight.dtype) for rows in TIMED_ROWS]
    pairs = [(_seconds(whole, batches), _seconds(packed, batches)) for _ in range(REPEATS)]
    as_it_is, when_packed = (min(seconds) for seconds in zip(*pairs, strict=True))
    return bool(when_packed < as_it_is)


def _seconds(layers: Sequence[torch.nn.Module], batches: Sequence[torch.Tensor]) -> float:
    began = time.perf_counter()
    for rows in batches:
        for layer in layers:
            layer(rows)
    return time.perf_counter() - began
