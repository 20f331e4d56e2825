"""Draws one token for each row of logits in two launches: what `sampling.draw` computes for settings it calls simple.

Simple are greedy rows and rows with a temperature alone. The noise is that of `noise.gumbel_noise`, bit for bit up to
the two logarithms at its end. A row's vocabulary is shared out among several programs; a second kernel joins them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from forerun.runtime.noise import KEY_STEPS, MULTIPLIERS, ROUNDS, UNIT
from forerun.runtime.sampling import MIN_TEMPERATURE

PART = 2048  # tokens a program looks at
MAX_PARTS = 256  # so that a vocabulary has half a million tokens at most

_ROUNDS = tl.constexpr(ROUNDS)
_MULTIPLIER_0, _MULTIPLIER_1 = (tl.constexpr(number) for number in MULTIPLIERS)
_STEP_0, _STEP_1 = (tl.constexpr(number) for number in KEY_STEPS)
_UNIT, _MIN_TEMPERATURE = tl.constexpr(UNIT), tl.constexpr(MIN_TEMPERATURE)


@triton.jit
def _noise(token_id, seed, position):
    """Gumbel noise [PART] of the tokens."""
    x0 = (token_id // 4).to(tl.uint32)
    x1 = (position & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(x0)
    x2 = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(x0)
    x3 = tl.zeros_like(x0)
    key0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    key1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        product0, product1 = x0.to(tl.uint64) * _MULTIPLIER_0, x2.to(tl.uint64) * _MULTIPLIER_1
        x0, x1 = (product1 >> 32).to(tl.uint32) ^ x1 ^ key0, product1.to(tl.uint32)
        x2, x3 = (product0 >> 32).to(tl.uint32) ^ x3 ^ key1, product0.to(tl.uint32)
        key0, key1 = (key0 + _STEP_0).to(tl.uint32), (key1 + _STEP_1).to(tl.uint32)
    lane = token_id % 4
    word = tl.where(lane == 0, x0, tl.where(lane == 1, x1, tl.where(lane == 2, x2, x3)))
    # v = (word + 1/2) / 2^32, then -log(-log1p(-v)); small v as a series, where 1 - v would lose it
    v = (word.to(tl.float32) + 0.5) * _UNIT
    log_rest = tl.where(v < 1e-3, -v * (1 + v * (0.5 + v * (1.0 / 3 + v * 0.25))), tl.log(1 - v))
    return -tl.log(-log_rest)


@triton.jit
def _scan_kernel(logits, row_stride, vocabulary_size, seeds, positions, temperatures, parts, found, PART: tl.constexpr):
    """What one program found: best score, its token and that logit, log of the sum of exp, how many are no numbers."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token_id = part * PART + tl.arange(0, PART)
    inside = token_id < vocabulary_size
    logit = tl.load(logits + row * row_stride + token_id, inside, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + row).to(tl.float32)
    score = logit
    if temperature > 0:
        score = logit / tl.maximum(temperature, _MIN_TEMPERATURE) + _noise(
            token_id, tl.load(seeds + row), tl.load(positions + row)
        )
    score = tl.where(inside, score, float("-inf"))
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, token_id, vocabulary_size), 0)
    largest = tl.max(logit, 0)
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp(logit - safe), 0)
    wrong = tl.sum(((logit != logit) | (logit == float("inf"))).to(tl.int32), 0)
    place = found + (row * parts + part) * 5
    tl.store(place, best)
    tl.store(place + 1, winner.to(tl.float32))
    tl.store(place + 2, tl.sum(tl.where(token_id == winner, logit, 0.0), 0))
    tl.store(place + 3, safe + tl.log(total))
    tl.store(place + 4, wrong.to(tl.float32))


@triton.jit
def _join_kernel(found, drawn, kept, parts, PARTS: tl.constexpr, KEEPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    inside = part < parts
    place = found + (row * parts + part) * 5
    score = tl.load(place, inside, other=float("-inf"))
    token_id = tl.load(place + 1, inside, other=0.0)
    logit = tl.load(place + 2, inside, other=0.0)
    log_total = tl.load(place + 3, inside, other=float("-inf"))
    wrong = tl.sum(tl.load(place + 4, inside, other=0.0), 0)
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, token_id, 1e30), 0)
    its_logit = tl.sum(tl.where(inside & (token_id == winner) & (score == best), logit, 0.0), 0)
    largest = tl.max(log_total, 0)
    total = largest + tl.log(tl.sum(tl.exp(log_total - largest), 0))
    token = tl.where(wrong > 0, -1.0, winner)
    tl.store(drawn + row * 2, token)
    tl.store(drawn + row * 2 + 1, tl.exp(its_logit - total))
    if KEEPS:
        tl.store(kept + row, tl.maximum(token, 0.0).to(tl.int64))


@triton.jit
def _take_kernel(token_ids, kept, out):
    row = tl.program_id(0)
    token_id = tl.load(token_ids + row)
    drawn = tl.load(kept - 1 - token_id, token_id < 0, other=0)
    tl.store(out + row, tl.where(token_id < 0, drawn, token_id))


def take_drawn(token_ids: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """int64 [T]: the token ids, those below zero replaced by what `draw_rows` kept; see `drawn_by_row`."""
    out = torch.empty_like(token_ids)
    _take_kernel[(token_ids.shape[0],)](token_ids, kept, out, num_warps=1)
    return out


def draw_rows(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperatures: torch.Tensor,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """logits [R, V] and for each row seed, position (int64, as unsigned) and temperature (any float type, 0: greedy).

    Returns float32 [R, 2]: the token id drawn, or -1 where the row holds NaN or +infinity, and the model's own
    probability of it. Token ids up to 2^24 are exact. `kept`, int64 [R or more], gets the tokens, too; 0 for -1.
    """
    rows, vocabulary_size = logits.shape
    parts = triton.cdiv(vocabulary_size, PART)
    assert parts <= MAX_PARTS and logits.stride(1) == 1, logits.shape
    found = torch.empty(rows, parts, 5, device=logits.device)
    drawn = torch.empty(rows, 2, device=logits.device)
    _scan_kernel[(rows, parts)](
        logits, logits.stride(0), vocabulary_size, seeds, positions, temperatures, parts, found, PART, num_warps=8
    )
    _join_kernel[(rows,)](
        found, drawn, drawn if kept is None else kept, parts, triton.next_power_of_2(parts), kept is not None,
        num_warps=1,
    )  # fmt: skip
    return drawn
