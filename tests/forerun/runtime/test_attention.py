"""Paged attention against a plain one written out in float64, one query token at a time."""

from __future__ import annotations

import pytest
import torch

from forerun.runtime.attention import FOLDED_ROWS, LayerShape, PagedBatch, PagedPools, PagedSequence, causal_mask

WIDTH, VALUE_WIDTH, SLOTS = 8, 6, 160
LONG = FOLDED_ROWS + 8


class Layer(torch.nn.Module):
    layer_idx = 0


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, window: int | None, cap: float | None
) -> torch.Tensor:
    """query [heads, count, d] at the end of keys and values [kv_heads, length, d] -> [count, heads, v]."""
    heads, count, _ = query.shape
    kv_heads, length, _ = keys.shape
    out = torch.empty(count, heads, values.shape[-1], dtype=torch.float64)
    for row in range(count):
        at = length - count + row
        first = 0 if window is None else max(0, at + 1 - window)
        for head in range(heads):
            own = head // (heads // kv_heads)
            scores = scaling * keys[own, first : at + 1] @ query[head, row]
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            out[row, head] = torch.softmax(scores, 0) @ values[own, first : at + 1]
    return out


def run(
    parts: list[tuple[int, int]],
    scattered: bool = False,
    heads: int = 6,
    kv_heads: int = 2,
    window: int | None = None,
    cap: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with sequences of (start, count), as pools and as the reference: two times [1, T, heads, v]."""
    generator = torch.Generator().manual_seed(len(parts) + sum(map(sum, parts)))

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    total = sum(count for _, count in parts)
    query, key, value = random(1, heads, total, WIDTH), random(1, kv_heads, total, WIDTH), random(1, kv_heads, total, 6)
    pools = PagedPools([LayerShape(kv_heads, WIDTH, VALUE_WIDTH)], SLOTS, dtype, torch.device("cpu"))
    order = torch.randperm(SLOTS, generator=generator) if scattered else torch.arange(SLOTS)
    sequences, expected, new_slots = [], [], []
    row = used = 0
    for start, count in parts:
        slots = order[used : used + start + count]
        old_keys, old_values = random(kv_heads, start, WIDTH), random(kv_heads, start, VALUE_WIDTH)
        pools._keys[0][:, slots[:start]] = old_keys
        pools._values[0][:, slots[:start]] = old_values
        where = slots if scattered else slice(used, used + start + count)
        sequences.append(PagedSequence(row, count, start, where))
        new_slots.append(slots[start:])
        rows = slice(row, row + count)
        keys = torch.cat([old_keys, key[0][:, rows]], 1).double()
        values = torch.cat([old_values, value[0][:, rows]], 1).double()
        expected.append(reference(query[0][:, rows].double(), keys, values, 0.3, window, cap))
        row, used = row + count, used + start + count
    pools.batch = PagedBatch(tuple(sequences), torch.cat(new_slots))
    return pools.attend(Layer(), query, key, value, 0.3, window, cap, {}), torch.cat(expected)[None]


BATCHES = {
    "one token": [(11, 1)],
    "the first token": [(0, 1)],
    "a verified draft": [(20, 5)],
    "a short prompt": [(0, 7)],
    "a long prompt": [(0, LONG)],
    "a chunk of a long prompt": [(13, LONG)],
    "a mix": [(30, 1), (0, 9), (17, 4), (5, LONG), (2, 1)],
    "sequences alike": [(9, 3), (9, 3), (9, 3)],
}


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("parts", BATCHES.values(), ids=BATCHES.keys())
def test_equals_plain_attention(
    parts: list[tuple[int, int]], scattered: bool, window: int | None, cap: float | None
) -> None:
    out, expected = run(parts, scattered, window=window, cap=cap)
    tolerance = 1e-12 if cap is None else 1e-6  # a capped softmax is taken in float32
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (8, 2), (1, 1)])
def test_any_grouping_of_heads(heads: int, kv_heads: int) -> None:
    out, expected = run(BATCHES["a mix"], heads=heads, kv_heads=kv_heads)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_lower_precisions(dtype: torch.dtype, tolerance: float) -> None:
    out, expected = run(BATCHES["a mix"], dtype=dtype)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)


def test_the_mask_shows_the_past_and_no_more_of_it_than_the_window() -> None:
    hidden = float("-inf")
    mask = causal_mask(start=2, count=2, window=2, like=torch.zeros(()))
    assert mask.tolist() == [[hidden, 0, 0, hidden], [hidden, hidden, 0, 0]]


def test_a_mask_is_built_once_for_all_layers_and_for_sequences_alike() -> None:
    parts = [PagedSequence(0, 3, 9, slice(0, 12)), PagedSequence(3, 3, 9, slice(12, 24))]
    batch = PagedBatch(tuple(parts), slice(0, 6))
    like = torch.zeros(())
    assert batch.mask(parts[0], None, 2, like) is batch.mask(parts[1], None, 2, like)
    assert batch.mask(parts[0], None, 2, like).shape == (6, 12)
