"""Gumbel noise that depends on (seed, absolute position, token id) and on nothing else.

Draft and target add the same noise to their own log-probabilities: that is why their draws agree so often, and why
the target's draw is the same with any draft. It is a pure function: no generator, no state, no stream to keep in
step. The bits are Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"),
equal on every device; the two logarithms after them may differ between devices in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

MASK = 0xFFFFFFFF  # words are 32 bits wide and live in int64 tensors
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
UNIT = (2.0 - 2.0**-23) * 2.0**-33  # the float32 just below 2^-32, so that the largest word stays below 1
CPU_ENTRIES = 1 << 16  # hashed together: about what a core's cache holds the scratch memory of
GPU_ENTRIES = 1 << 22  # hashed together: bounds the scratch memory, some 16 bytes an entry


def gumbel_noise(
    seeds: Sequence[int], positions: Sequence[int], vocabulary_size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Standard Gumbel noise, float32 `[R, V]`: row r belongs to `seeds[r]` at `positions[r]`, both 0..2^64-1.

    An entry depends on its own seed, position and token id only, not on the other rows or on V. Values lie in
    [-2.82, 22.88]; the upper side, where the winners are, has float32's full relative precision.
    """
    device = torch.device(device)
    rows = [(s & MASK, s >> 32, p & MASK, p >> 32) for s, p in zip(seeds, positions, strict=True)]
    blocks = -(-vocabulary_size // 4)
    noise = torch.empty(len(rows), blocks, 4, dtype=torch.float32, device=device)
    step = max(1, (CPU_ENTRIES if device.type == "cpu" else GPU_ENTRIES) // vocabulary_size)  # rows
    for start in range(0, len(rows), step):
        chunk = noise[start : start + step]
        low, high, position, position_high = to_device(rows[start : start + step], torch.int64, device).T[:, :, None]
        counter = (_block_numbers(blocks, device), position, position_high, torch.zeros_like(position))
        for w, word in enumerate(philox(counter, (low, high))):
            chunk[:, :, w] = word
        _gumbel_from_words_(chunk)
    return noise.view(len(rows), 4 * blocks)[:, :vocabulary_size]


def to_device(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of (nested) Python numbers, without waiting for the device: a step in flight goes on, the host too."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Four 32-bit words a counter, by Philox4x32-10; counters and keys are int64 in [0, 2^32) and broadcast together.

    The keys must have the counters' number of dimensions. A product of two words wraps around in int64, which keeps
    its 64 bits; words that only meet an xor next carry a wrong upper half until the mask that follows it.
    """
    x0, x1, x2, x3 = counter
    schedule = (torch.stack(key) + _key_steps(key[0].dim(), key[0].device)) & MASK  # [ROUNDS, 2, *key]
    for round_key in schedule.unbind():
        key0, key1 = round_key.unbind()
        product0, product1 = x0 * MULTIPLIERS[0], x2 * MULTIPLIERS[1]
        x0, x1 = ((product1 >> 32) ^ x1).bitwise_xor_(key0).bitwise_and_(MASK), product1
        x2, x3 = ((product0 >> 32) ^ x3).bitwise_xor_(key1).bitwise_and_(MASK), product0
    return [x0, x1 & MASK, x2, x3 & MASK]


def _gumbel_from_words_(words: Tensor) -> Tensor:
    """In place: v = (word + 1/2) / 2^32, then -log(-log1p(-v)). Small v gives large noise and is exact there."""
    return words.add_(0.5).mul_(-UNIT).log1p_().neg_().log_().neg_()


@lru_cache(maxsize=8)
def _block_numbers(blocks: int, device: torch.device) -> Tensor:
    """`[blocks]`: the first counter word, token id // 4."""
    return torch.arange(blocks, device=device)


@lru_cache(maxsize=8)
def _key_steps(dimensions: int, device: torch.device) -> Tensor:
    """`[ROUNDS, 2, 1, ...]`: what each round adds to the two key words."""
    steps = torch.tensor([[i * step for step in KEY_STEPS] for i in range(ROUNDS)], device=device)
    return steps.view(ROUNDS, 2, *[1] * dimensions)
