"""Layers of a model compiled by torch: what lies between two products becomes one kernel.

Layer by layer rather than the whole model: all layers are the same code, so one compilation serves them all and a
start takes seconds. What is compiled is kept on disk, in `FORERUN_CACHE` beside the models.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from forerun.logs import event
from forerun.runtime.model import LoadedModel

logger = logging.getLogger(__name__)

VARIANTS = 64  # of one layer's code: one row and many, kinds of layers, models in one process


def compile_layers(model: LoadedModel) -> int:
    """Has the decoder layers compiled at their first forward, for any number of rows; returns how many there are."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, VARIANTS)
    layers = [layer for stack in _stacks(model) for layer in stack]
    for layer in layers:
        layer.compile(dynamic=True)
    event(logger, "layers_compiled", layers=len(layers))
    return len(layers)


def keep_compilations(folder: Path) -> None:
    """Has compilations kept below `folder`, unless the environment names another place. Before the first compilation.

    torch would keep them in the temporary folder, which a container loses; `folder` is on its volume, as models are.
    """
    for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(variable, str(folder / "compiled" / name))


def _stacks(model: LoadedModel) -> list[torch.nn.ModuleList]:
    """The lists of decoder layers: as many as there are layers, each with attention of ours in it."""
    return [
        module
        for module in model.module.modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == model.layer_count
        and all(any(hasattr(inner, "forerun_attention") for inner in layer.modules()) for layer in module)
    ]
