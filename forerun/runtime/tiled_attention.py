"""Attention on a GPU as one operation, so that a compiler and a captured graph take it whole.

`TiledLayer` stands behind a model's attention module where `attention.PagedLayer` stands on a CPU. Which tokens belong
to which sequence is not an argument but set for a thread around a forward, by `batch_of`: a captured graph has fixed
addresses, and a compiler must not look at what changes with every batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forerun.runtime.paged_kernel import Tiles, attend, write

_current = threading.local()


@contextmanager
def batch_of(tiles: Tiles) -> Iterator[None]:
    """Attention on this thread is over this batch for as long as the block lasts."""
    _current.tiles = tiles
    try:
        yield
    finally:
        del _current.tiles


@torch.library.custom_op("forerun::tiled_attention", mutates_args=("keys", "values"))
def _tiled_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """Shapes as in `TiledLayer.attend`, without the leading 1."""
    tiles: Tiles = _current.tiles
    write(tiles, key, value, keys, values)
    return attend(tiles, query, keys, values, scaling, window, softcap)


@_tiled_attention.register_fake
def _shape_of_tiled_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    return query.new_empty(query.shape[1], query.shape[0], value.shape[2])


class TiledLayer:
    """The cache of one layer: keys [kv_heads, slots, d] and values [kv_heads, slots, v]."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys = keys
        self.values = values

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
        options: dict[str, object],
    ) -> torch.Tensor:
        """Shapes as in `attention.AttentionBackend.attend`."""
        out: torch.Tensor = _tiled_attention(
            query[0], key[0], value[0], self.keys, self.values, scaling, sliding_window or 0, softcap or 0.0
        )
        return out.unsqueeze(0)
