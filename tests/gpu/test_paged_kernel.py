"""The attention kernels give what plain attention in float64 gives, for fresh random inputs of every shape in use."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from tests.gpu.device import DEVICE, needs_kernels

pytestmark = needs_kernels

SLOTS_PER_BLOCK = 16
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def tiles_of(parts: list[tuple[int, int]], blocks: list[list[int]], rows_per_tile: int, spare_tiles: int):  # type: ignore[no-untyped-def]
    """`parts` are (start, count) by sequence."""
    from forerun.runtime.paged_kernel import Tiles

    found, slots, first = [], [], 0
    for number, (start, count) in enumerate(parts):
        found += [
            (number, first + at, min(rows_per_tile, count - at), start + at) for at in range(0, count, rows_per_tile)
        ]
        slots += [
            blocks[number][at // SLOTS_PER_BLOCK] * SLOTS_PER_BLOCK + at % SLOTS_PER_BLOCK
            for at in range(start, start + count)
        ]
        first += count
    found += [(0, 0, 0, 0)] * spare_tiles
    width = max(map(len, blocks))
    tables = torch.tensor([row + [0] * (width - len(row)) for row in blocks], device=DEVICE)
    columns = [torch.tensor(column, device=DEVICE) for column in zip(*found, strict=True)]
    return Tiles(*columns, tables, torch.tensor(slots, device=DEVICE), rows_per_tile, SLOTS_PER_BLOCK)


def reference(query, keys, values, parts, blocks, scaling, window, softcap):  # type: ignore[no-untyped-def]
    """Row by row in float64: [T, heads, v]."""
    heads, kv_heads = query.shape[0], keys.shape[0]
    rows, first = [], 0
    for (start, count), table in zip(parts, blocks, strict=True):
        slots = torch.tensor(
            [table[at // SLOTS_PER_BLOCK] * SLOTS_PER_BLOCK + at % SLOTS_PER_BLOCK for at in range(start + count)]
        ).to(DEVICE)
        for row in range(count):
            low = max(0, start + row - window + 1) if window else 0
            at = slots[low : start + row + 1]
            k = keys[:, at].double().repeat_interleave(heads // kv_heads, 0)
            v = values[:, at].double().repeat_interleave(heads // kv_heads, 0)
            scores = torch.einsum("hd,hnd->hn", query[:, first + row].double(), k) * scaling
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            rows.append(torch.einsum("hn,hnd->hd", scores.softmax(-1), v))
        first += count
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "value_width"),
    [(4, 4, 64, 64), (9, 3, 64, 64), (32, 8, 128, 128), (8, 1, 80, 48), (4, 2, 256, 256)],
)
def test_equals_attention_in_float64(
    dtype: torch.dtype, heads: int, kv_heads: int, width: int, value_width: int
) -> None:
    from forerun.runtime.paged_kernel import attend, write

    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draws, generator = random.Random(seed), torch.Generator(DEVICE).manual_seed(seed)
    for rows_per_tile, (window, softcap) in itertools.product((1, 8, 16), ((0, 0.0), (40, 0.0), (0, 5.0), (20, 3.0))):
        most = {1: 1, 8: 8, 16: 70}[rows_per_tile]
        parts = [(draws.choice([0, 1, 17, 300]), draws.randint(1, most)) for _ in range(draws.choice([1, 3, 9]))]
        wanted = [-(-(start + count) // SLOTS_PER_BLOCK) for start, count in parts]
        numbers = list(range(sum(wanted) + 5))
        draws.shuffle(numbers)
        blocks = [[numbers.pop() for _ in range(count)] for count in wanted]
        slots = (sum(wanted) + 5) * SLOTS_PER_BLOCK
        rows = sum(count for _, count in parts)

        def fresh(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)

        keys, values = fresh(kv_heads, slots, width), fresh(kv_heads, slots, value_width)
        query, key, value = fresh(rows, heads, width), fresh(rows, kv_heads, width), fresh(rows, kv_heads, value_width)
        tiles = tiles_of(parts, blocks, rows_per_tile, draws.choice([0, 3]))
        before = keys.clone()
        write(tiles, key.transpose(0, 1), value.transpose(0, 1), keys, values)
        assert torch.equal(keys[:, tiles.slots], key.transpose(0, 1)), "every new key is in its slot"
        assert torch.equal(values[:, tiles.slots], value.transpose(0, 1))
        others = torch.ones(slots, dtype=torch.bool, device=DEVICE).index_fill_(0, tiles.slots, False)
        assert torch.equal(keys[:, others], before[:, others]), "and in no other"
        found = attend(tiles, query.transpose(0, 1), keys, values, 1 / math.sqrt(width), window, softcap)
        expected = reference(query.transpose(0, 1), keys, values, parts, blocks, 1 / math.sqrt(width), window, softcap)
        error = (found.double() - expected).norm() / expected.norm()
        assert error < TOLERANCE[dtype], (error, rows_per_tile, window, softcap, parts)


def test_a_row_is_bitwise_the_same_with_more_candidates_behind_it_and_in_any_company() -> None:
    from forerun.runtime.paged_kernel import attend

    generator = torch.Generator(DEVICE).manual_seed(3)
    heads, kv_heads, width, start = 8, 2, 64, 200
    blocks = [list(range(20)), list(range(20, 40))]
    keys, values = (
        torch.randn(kv_heads, 40 * SLOTS_PER_BLOCK, width, generator=generator, device=DEVICE).bfloat16() for _ in "kv"
    )
    query = torch.randn(16, heads, width, generator=generator, device=DEVICE).bfloat16()
    spare = 128  # tiles, so that every batch shares its keys out among as many programs
    alone = attend(tiles_of([(start, 1)], blocks[:1], 16, spare - 1), query[:1].transpose(0, 1), keys, values, 0.1)
    for count in (2, 7):
        tiles = tiles_of([(start, count)], blocks[:1], 16, spare - 1)
        assert torch.equal(attend(tiles, query[:count].transpose(0, 1), keys, values, 0.1)[0], alone[0])
    tiles = tiles_of([(start, 1), (130, 4)], blocks, 16, spare - 2)
    assert torch.equal(attend(tiles, query[:5].transpose(0, 1), keys, values, 0.1)[0], alone[0])
