"""Attention over the paged cache for few new tokens a sequence, as Triton kernels: reads only the blocks in use.

A tile is a run of up to TILE_ROWS new tokens of one sequence. Each program takes one tile, one key head and every
n-th chunk of keys (flash decoding, Dao et al. 2023), so that one sequence alone keeps a GPU busy; a second kernel joins
the parts. Query heads that share a key head are rows of one product, so each key is read once.

The result of a row depends on its own keys alone: chunks lie at fixed positions, and chunks after the row's position
change nothing, not even a bit. So it is the same in any batch and with any number of candidates behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

CHUNK = 64  # keys a program takes at once
PROGRAMS = 132 * 2  # enough for every multiprocessor of a large GPU
MAX_PARTS = 16
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a batch, on the device; a fixed number of them, of which the unused have count 0.

    sequence      [N] int64, the row of `tables`
    first_row     [N] int64, where its rows begin in the batch
    count         [N] int64, how many they are
    start         [N] int64, the position of its first token
    tables        [S, P] int64, the blocks of each sequence in token order
    slots         [T] int64, where each row's key and value are written
    rows_per_tile at most so many rows in any of them; a power of two
    block_size    tokens of a block
    """

    sequence: torch.Tensor
    first_row: torch.Tensor
    count: torch.Tensor
    start: torch.Tensor
    tables: torch.Tensor
    slots: torch.Tensor
    rows_per_tile: int
    block_size: int

    def parts(self, kv_heads: int) -> int:
        """Among how many programs the keys of one tile and head are shared out: a function of shapes alone."""
        wanted = PROGRAMS // max(1, self.sequence.shape[0] * kv_heads)
        return min(MAX_PARTS, 1 << max(0, wanted.bit_length() - 1))


@triton.jit
def _write_kernel(
    key, value, keys, values, slots,
    key_row, key_head, value_row, value_head, keys_head, values_head,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    at = tl.arange(0, WIDTH)
    new = tl.load(key + row * key_row + head * key_head + at, at < KEY_WIDTH)
    tl.store(keys + head * keys_head + slot * KEY_WIDTH + at, new, at < KEY_WIDTH)
    new = tl.load(value + row * value_row + head * value_head + at, at < VALUE_WIDTH)
    tl.store(values + head * values_head + slot * VALUE_WIDTH + at, new, at < VALUE_WIDTH)


@triton.jit
def _attend_kernel(
    query, keys, values, out, partial, partial_max, partial_sum,
    tile_sequence, tile_row, tile_count, tile_start, tables,
    scale, softcap, window, query_row, query_head, keys_head, values_head, table_width,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_WIDTH: tl.constexpr, ROWS: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, PARTS: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(tile_count + tile)
    start = tl.load(tile_start + tile)
    length = start + count
    if count == 0 or part * KEYS >= length:
        return
    first_row = tl.load(tile_row + tile)
    table = tables + tl.load(tile_sequence + tile) * table_width
    M: tl.constexpr = ROWS * GROUP_WIDTH
    m = tl.arange(0, M)
    row, member = m // GROUP_WIDTH, m % GROUP_WIDTH
    real = (row < count) & (member < GROUP)
    head = kv_head * GROUP + member
    position = start + row
    k_at, v_at = tl.arange(0, KEY_PADDED), tl.arange(0, VALUE_PADDED)
    q = tl.load(
        query + ((first_row + row) * query_row + head * query_head)[:, None] + k_at[None, :],
        real[:, None] & (k_at < KEY_WIDTH)[None, :],
        other=0.0,
    )
    best = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, VALUE_PADDED], tl.float32)
    for begin in range(part * KEYS, length, PARTS * KEYS):
        n = begin + tl.arange(0, KEYS)
        inside = n < length
        slot = tl.load(table + n // BLOCK_SIZE, inside, other=0) * BLOCK_SIZE + n % BLOCK_SIZE
        k = tl.load(
            keys + kv_head * keys_head + slot[None, :] * KEY_WIDTH + k_at[:, None],
            inside[None, :] & (k_at < KEY_WIDTH)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if CAPPED:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        seen = n[None, :] <= position[:, None]
        if WINDOWED:
            seen = seen & (n[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        safe_best = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - safe_best[:, None])
        fade = tl.exp2(best - safe_best)
        v = tl.load(
            values + kv_head * values_head + slot[:, None] * VALUE_WIDTH + v_at[None, :],
            inside[:, None] & (v_at < VALUE_WIDTH)[None, :],
            other=0.0,
        )
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        best = new_best
    place = (first_row + row) * HEADS + head
    whole = real[:, None] & (v_at < VALUE_WIDTH)[None, :]
    if PARTS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + place[:, None] * VALUE_WIDTH + v_at[None, :], acc.to(out.dtype.element_ty), whole)
    else:
        place = place * PARTS + part
        tl.store(partial + place[:, None] * VALUE_WIDTH + v_at[None, :], acc, whole)
        tl.store(partial_max + place, best, real)
        tl.store(partial_sum + place, total, real)


@triton.jit
def _join_kernel(
    out, partial, partial_max, partial_sum, tile_row, tile_count, tile_start,
    HEADS: tl.constexpr, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    KEYS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    tile, head, row = tl.program_id(0) // ROWS, tl.program_id(1), tl.program_id(0) % ROWS
    count = tl.load(tile_count + tile)
    if row >= count:
        return
    length = tl.load(tile_start + tile) + count
    place = (tl.load(tile_row + tile) + row) * HEADS + head
    part, at = tl.arange(0, PARTS), tl.arange(0, VALUE_PADDED)
    written = part * KEYS < length
    best = tl.load(partial_max + place * PARTS + part, written, other=float("-inf"))
    total = tl.load(partial_sum + place * PARTS + part, written, other=0.0)
    weight = tl.exp2(best - tl.max(best, 0))
    rows = tl.load(
        partial + (place * PARTS + part)[:, None] * VALUE_WIDTH + at[None, :],
        written[:, None] & (at < VALUE_WIDTH)[None, :],
        other=0.0,
    )
    joined = tl.sum(rows * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + place * VALUE_WIDTH + at, joined.to(out.dtype.element_ty), at < VALUE_WIDTH)


def write(tiles: Tiles, key: torch.Tensor, value: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Puts the batch's keys [kv_heads, T, d] and values [kv_heads, T, v] into the pools [kv_heads, slots, d or v]."""
    kv_heads, rows, key_width = key.shape
    value_width = value.shape[2]
    assert key.stride(2) == value.stride(2) == 1, "the entries of a head must lie side by side"
    _write_kernel[(rows, kv_heads)](
        key, value, keys, values, tiles.slots,
        key.stride(1), key.stride(0), value.stride(1), value.stride(0), keys.stride(0), values.stride(0),
        key_width, value_width, triton.next_power_of_2(max(key_width, value_width)),
        num_warps=2,
    )  # fmt: skip


def attend(
    tiles: Tiles,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention of the batch's rows over the cache, which holds their own keys already.

    query [heads, T, d], keys [kv_heads, slots, d], values [kv_heads, slots, v] -> [T, heads, v] in the query's dtype.
    A window of 0 and a softcap of 0 mean none. Rows that belong to no tile are not written.
    """
    heads, rows, key_width = query.shape
    kv_heads, _, value_width = values.shape
    assert query.stride(2) == 1, "the entries of a head must lie side by side"
    group, parts = heads // kv_heads, tiles.parts(kv_heads)
    group_width = triton.next_power_of_2(group)
    tile_rows = max(tiles.rows_per_tile, 16 // group_width)  # a product has at least 16 rows
    out = torch.empty(rows, heads, value_width, dtype=query.dtype, device=query.device)
    partial = torch.empty(rows * heads * parts if parts > 1 else 1, value_width, device=query.device)
    partial_max, partial_sum = torch.empty(2, partial.shape[0], device=query.device)
    value_padded = triton.next_power_of_2(max(16, value_width))
    exact = query.dtype == torch.float32
    _attend_kernel[(tiles.sequence.shape[0], kv_heads, parts)](
        query, keys, values, out, partial, partial_max, partial_sum,
        tiles.sequence, tiles.first_row, tiles.count, tiles.start, tiles.tables,
        scaling, softcap, window, query.stride(1), query.stride(0), keys.stride(0), values.stride(0),
        tiles.tables.shape[1],
        heads, group, group_width, tile_rows,
        key_width, triton.next_power_of_2(max(16, key_width)), value_width, value_padded,
        tiles.block_size, CHUNK, parts, softcap != 0, window != 0, "ieee" if exact else "tf32",
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        _join_kernel[(tiles.sequence.shape[0] * tiles.rows_per_tile, heads)](
            out, partial, partial_max, partial_sum, tiles.first_row, tiles.count, tiles.start,
            heads, tiles.rows_per_tile, value_width, value_padded, CHUNK, parts,
            num_warps=2,
        )  # fmt: skip
    return out
