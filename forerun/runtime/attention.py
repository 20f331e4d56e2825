"""Attention over a paged key-value cache, plugged into transformers by name.

A batch is ragged: the new tokens of all sequences lie one after the other in one row. `PagedPools` holds the cache
tensors; before each forward the model runner hands it a `PagedBatch` that says which rows belong to which sequence and
where their keys lie. The pools hang on the attention modules themselves, so that architectures which do not pass
keyword arguments down work as well. Sliding windows are a mask here: the cache keeps every token. Written with torch
operations only; on a GPU `tiled_attention.TiledLayer` takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

ATTENTION_NAME = "forerun_paged"
FOLDED_ROWS = 32  # at most so many new tokens of a sequence are treated as decoding or verifying, more as a prefill


class AttentionBackend(Protocol):
    """What the attention modules call. The pools are one; the probe that learns a model's shapes is another."""

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
        """[1, heads, T, d], [1, kv_heads, T, d], [1, kv_heads, T, v] -> [1, T, heads, v]."""
        ...


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The cache entry of one token in one layer, in numbers."""

    kv_heads: int
    key_width: int
    value_width: int

    @property
    def numbers_per_token(self) -> int:
        """Keys and values together."""
        return self.kv_heads * (self.key_width + self.value_width)


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One sequence's part of a batch.

    first_row, count   its rows in the batch; they are the tokens at positions start .. start + count
    start              tokens that were in the cache before
    slots              where its tokens 0 .. start + count lie in the pools: a slice if they are one run, else int64 ids
    """

    first_row: int
    count: int
    start: int
    slots: slice | torch.Tensor

    @property
    def length(self) -> int:
        """Keys to attend to."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """All sequences of one forward, and the masks they need, built at first use and shared by all layers.

    new_slots   where the batch's T rows are written: a slice if they are one run, else int64 ids [T]
    """

    sequences: tuple[PagedSequence, ...]
    new_slots: slice | torch.Tensor
    masks: dict[tuple[int, int, int | None, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, sequence: PagedSequence, window: int | None, repeats: int, like: torch.Tensor) -> torch.Tensor:
        """What to add to the scores, 0 or -inf: the causal mask, `repeats` times below itself.

        Returns [repeats * count, length] in the dtype and on the device of `like`.
        """
        key = (sequence.start, sequence.count, window, repeats)
        if key not in self.masks:
            self.masks[key] = causal_mask(sequence.start, sequence.count, window, like).repeat(repeats, 1)
        return self.masks[key]


def causal_mask(start: int, count: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """0 where row i, at position start + i, sees a token: itself and those before, `window` at most; else -inf.

    Returns [count, start + count].
    """
    # [count, 1] and [length]
    row = torch.arange(start, start + count, device=like.device)[:, None]
    column = torch.arange(start + count, device=like.device)
    hidden = column > row
    if window is not None:
        hidden |= column <= row - window
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, float("-inf"))


class PagedPools:
    """The cache tensors of all layers: keys and values, each [kv_heads, slots, width]. A block is block_size slots.

    Heads come first, so that one head's keys lie as a matrix with a fixed stride and a run of blocks is a plain view.
    """

    def __init__(self, shapes: Sequence[LayerShape], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        # Not zeroed: only written slots are read, and a CPU's memory is then taken as slots are used.
        self._keys = [torch.empty(s.kv_heads, slots, s.key_width, dtype=dtype, device=device) for s in shapes]
        self._values = [torch.empty(s.kv_heads, slots, s.value_width, dtype=dtype, device=device) for s in shapes]
        self.batch: PagedBatch | None = None  # set by the model runner for the time of one forward

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
        """Write the new keys and values, then attend sequence by sequence.

        query [1, heads, T, d], key [1, kv_heads, T, d], value [1, kv_heads, T, v] -> [1, T, heads, v].
        """
        batch = self.batch
        assert batch is not None, "attention outside of ModelRunner.forward"
        layer = module.layer_idx
        assert isinstance(layer, int)
        keys, values = self._keys[layer], self._values[layer]
        _write(keys, batch.new_slots, key[0])
        _write(values, batch.new_slots, value[0])
        parts = []
        for sequence in batch.sequences:
            # [heads, count, d]
            rows = query[0] if len(batch.sequences) == 1 else query[0].narrow(1, sequence.first_row, sequence.count)
            own_keys, own_values = _read(keys, sequence.slots), _read(values, sequence.slots)
            parts.append(_attend_one(rows, own_keys, own_values, batch, sequence, scaling, sliding_window, softcap))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)


def _write(pool: torch.Tensor, slots: slice | torch.Tensor, new: torch.Tensor) -> None:
    """pool [kv_heads, slots, d], new [kv_heads, T, d]."""
    if isinstance(slots, slice):
        pool[:, slots] = new
    else:
        pool.index_copy_(1, slots, new)


def _read(pool: torch.Tensor, slots: slice | torch.Tensor) -> torch.Tensor:
    """pool [kv_heads, slots, d] -> [kv_heads, length, d]; a view when the slots are one run."""
    return pool[:, slots] if isinstance(slots, slice) else pool.index_select(1, slots)


def _attend_one(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    sequence: PagedSequence,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """query [heads, count, d], keys and values [kv_heads, length, d] of this sequence -> [count, heads, v].

    The query heads that share a key head are rows of one product when the rows are few, which reads each key once. When
    they are many that mask would be large, so they are an axis of their own, along which keys repeat with stride 0.
    """
    heads, count, width = query.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    folded = count <= FOLDED_ROWS
    if folded:
        # [1, kv_heads, group * count, d] and [1, kv_heads, length, d]
        query = query.reshape(1, kv_heads, group * count, width)
        keys, values = keys.unsqueeze(0), values.unsqueeze(0)
    else:
        # [kv_heads, group, count, d] and [kv_heads, group, length, d]
        query = query.view(kv_heads, group, count, width)
        keys = keys.unsqueeze(1).expand(-1, group, -1, -1)
        values = values.unsqueeze(1).expand(-1, group, -1, -1)
    if window is not None and sequence.length <= window:
        window = None
    whole = not folded and sequence.start == 0 and window is None and softcap is None  # SDPA makes that mask itself
    mask = None
    if not whole and (count > 1 or window is not None):
        mask = batch.mask(sequence, window, group if folded else 1, query)
    if softcap is None:
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=whole, scale=scaling)
    else:
        out = _capped_attention(query, keys, values, mask, scaling, softcap)
    # [count, kv_heads, group, v], then the heads in their order
    return out.reshape(kv_heads, group, count, -1).permute(2, 0, 1, 3).reshape(count, heads, -1)


def _capped_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float, cap: float
) -> torch.Tensor:
    """Attention whose scores are squeezed into (-cap, cap) before the mask, as in Gemma 2. Shapes as for SDPA."""
    scores = torch.tanh(query @ keys.transpose(-1, -2) * (scaling / cap)) * cap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls: hands over to the backend that `attach` put on the module."""
    backend: AttentionBackend = module.forerun_attention  # type: ignore[assignment]
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return backend.attend(module, query, key, value, scaling, sliding_window, softcap, options), None


# Registered without a mask function of the same name, which makes transformers build no mask at all.
AttentionInterface.register(ATTENTION_NAME, _paged_attention)


def attach(model: PreTrainedModel, backend: AttentionBackend) -> None:
    """Make every attention layer of `model`, loaded with ATTENTION_NAME, use this backend from now on."""
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.forerun_attention = backend  # type: ignore[assignment]


def attach_layers(model: PreTrainedModel, backends: Sequence[AttentionBackend]) -> None:
    """`attach` with a backend for each layer, so that no layer's code has to look at its own number."""
    for module in model.modules():
        number = getattr(module, "layer_idx", None)
        if number is not None:
            module.forerun_attention = backends[number]
