"""How a session wants its tokens drawn and when it wants to end: one value all three services share.

The gateway resolves a client's request into a complete `SamplingParams` (no unset fields), checks it, and
sends it unchanged to the target, which draws by it, and to the draft, which draws its candidates the same way.
It holds no tensors and draws nothing itself; `forerun.runtime.sampling` does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forerun.errors import InvalidArgument
from forerun.v1 import types_pb2

MAX_LOGPROBS = 20
MAX_TOP_K = 1 << 20
MAX_SEED = (1 << 64) - 1
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 256
MIN_REPETITION_PENALTY = struct.unpack("f", struct.pack("f", 0.01))[0]  # as it arrives over the wire: a little less


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The resolved sampling settings of one session. Zero or one means "off" where noted."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    seed: int = 0  # keys the noise, 64 bits
    presence_penalty: float = 0.0  # -2..2, output tokens
    frequency_penalty: float = 0.0  # -2..2, output tokens
    repetition_penalty: float = 1.0  # > 0, prompt and output tokens; 1 is off
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> -100..100
    min_tokens: int = 0  # no end token before this many output tokens
    max_tokens: int = 16  # output tokens, resumed ones included
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0: the drawn token's; n: and the n most likely

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def ends(self, end_token_ids: Iterable[int]) -> frozenset[int]:
        """The tokens that end a session, given the model's own end tokens."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else frozenset(end_token_ids))

    def validate(self, vocabulary_size: int) -> None:
        """Raises InvalidArgument naming the first field that is out of range."""
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, MAX_TOP_K)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidArgument("top_p", "must be greater than 0")
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("seed", self.seed, 0, MAX_SEED)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100.0)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidArgument("logit_bias", f"has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS}")
        for token_id, bias in self.logit_bias.items():
            _in_range("logit_bias", token_id, 0, vocabulary_size - 1)
            _in_range("logit_bias", bias, -100.0, 100.0)
        _in_range("max_tokens", self.max_tokens, 1, 1 << 31)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidArgument(
                "stop_token_ids", f"has {len(self.stop_token_ids)} entries, at most {MAX_STOP_TOKEN_IDS}"
            )
        for token_id in self.stop_token_ids:
            _in_range("stop_token_ids", token_id, 0, vocabulary_size - 1)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, min(MAX_LOGPROBS, vocabulary_size))


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value):
        raise InvalidArgument(name, "must be a finite number")
    if not low <= value <= high:
        raise InvalidArgument(name, f"is {_shown(value)}, must be from {_shown(low)} to {_shown(high)}")


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    """The message for the wire; complete, since every field of `params` is."""
    return types_pb2.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
        max_tokens=params.max_tokens,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs,
    )


def from_proto(message: types_pb2.SamplingParams) -> SamplingParams:
    """The value a message stands for; not validated."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=dict(message.logit_bias),
        min_tokens=message.min_tokens,
        max_tokens=message.max_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
    )
