"""From a client's message to a checked value: every field in range, every default filled in, the prompt as token ids.

Nothing is asked of a model before this has passed. Errors name the field as the client wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.config import MAX_DRAFT_LENGTH, MAX_WINDOW, GatewayConfig
from forerun.errors import InvalidArgument, NotFound
from forerun.sampling_params import SamplingParams
from forerun.v1 import gateway_pb2, types_pb2
from gateway.chat_template import ChatMessage
from gateway.session import SpeculationSettings
from gateway.tokenizer import Tokenizer

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256

_SEEDS = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be served."""

    prompt_token_ids: list[int]
    resume_token_ids: list[int]
    params: SamplingParams
    speculation: SpeculationSettings
    stops: tuple[str, ...]
    include_stop: bool
    include_rounds: bool


def check(request: gateway_pb2.GenerateRequest, config: GatewayConfig, vocabulary_size: int) -> None:
    """Raises InvalidArgument for whatever can be found wrong without the tokenizer."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidArgument("prompt", "one of text, chat and tokens must be set")
    if kind == "text" and not request.text:
        raise InvalidArgument("text", "must not be empty")
    if kind == "chat" and not request.chat.messages:
        raise InvalidArgument("chat.messages", "must hold at least one message")
    if kind == "tokens":
        _check_ids("tokens.ids", request.tokens.ids, vocabulary_size)
        if not request.tokens.ids:
            raise InvalidArgument("tokens.ids", "must hold at least one token")
    _check_ids("resume_token_ids", request.resume_token_ids, vocabulary_size)
    if len(request.stop) > MAX_STOP_STRINGS:
        raise InvalidArgument("stop", f"has {len(request.stop)} strings, at most {MAX_STOP_STRINGS}")
    for stop in request.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidArgument("stop", f"must be 1 to {MAX_STOP_CHARACTERS} characters, one has {len(stop)}")
    _speculation(request.speculation, config)
    _params(request, max_tokens=request.max_tokens if request.HasField("max_tokens") else 1 << 30, seed=0).validate(
        vocabulary_size
    )


def prepare(
    request: gateway_pb2.GenerateRequest,
    config: GatewayConfig,
    tokenizer: Tokenizer,
    served: types_pb2.ServiceInfo,
) -> Prepared:
    """Tokenizes and completes a checked request; slow for long prompts, so not for the event loop.

    Raises NotFound for another model, InvalidArgument for a prompt that does not fit.
    """
    if request.model and request.model != served.model_id:
        raise NotFound(f"model: {request.model!r} is not served here, {served.model_id!r} is")
    field, prompt = _prompt(request, tokenizer)
    if not prompt:
        raise InvalidArgument(field, "holds no tokens")
    room = served.context_length - len(prompt)
    if room < 1:
        raise InvalidArgument(field, f"is {len(prompt)} tokens, the context of {served.context_length} has no room")
    max_tokens = request.max_tokens if request.HasField("max_tokens") else room
    params = _params(request, max_tokens, request.seed if request.HasField("seed") else _SEEDS.getrandbits(64))
    params.validate(tokenizer.vocabulary_size)
    if len(request.resume_token_ids) > max_tokens:
        raise InvalidArgument(
            "resume_token_ids", f"holds {len(request.resume_token_ids)} tokens, max_tokens is {max_tokens}"
        )
    if len(request.resume_token_ids) > room:
        raise InvalidArgument("resume_token_ids", f"leaves no room in the context of {served.context_length}")
    return Prepared(
        prompt_token_ids=prompt,
        resume_token_ids=list(request.resume_token_ids),
        params=params,
        speculation=_speculation(request.speculation, config),
        stops=tuple(request.stop),
        include_stop=request.include_stop,
        include_rounds=request.include_rounds,
    )


def _prompt(request: gateway_pb2.GenerateRequest, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """The prompt's token ids, and the name of the field that they come from."""
    kind = request.WhichOneof("prompt")
    if kind == "tokens":
        return "tokens.ids", list(request.tokens.ids)
    field = "text" if kind == "text" else "chat.messages"
    try:
        if kind == "text":
            return field, tokenizer.encode_text(request.text, request.parse_special_tokens)
        messages = [ChatMessage(message.role, message.content) for message in request.chat.messages]
        return field, tokenizer.encode_chat(messages, request.parse_special_tokens)
    except InvalidArgument as error:  # the tokenizer has its own words for what it was given
        raise InvalidArgument(field, error.problem) from error


def _params(request: gateway_pb2.GenerateRequest, max_tokens: int, seed: int) -> SamplingParams:
    default = SamplingParams()

    def given(name: str) -> float:
        value: float = getattr(request, name) if request.HasField(name) else getattr(default, name)
        return value

    return SamplingParams(
        temperature=given("temperature"),
        top_k=int(given("top_k")),
        top_p=given("top_p"),
        min_p=given("min_p"),
        seed=seed,
        presence_penalty=given("presence_penalty"),
        frequency_penalty=given("frequency_penalty"),
        repetition_penalty=given("repetition_penalty"),
        logit_bias=dict(request.logit_bias),
        min_tokens=int(given("min_tokens")),
        max_tokens=max_tokens,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs if request.HasField("logprobs") else None,
    )


def _speculation(wish: gateway_pb2.Speculation, config: GatewayConfig) -> SpeculationSettings:
    if wish.HasField("draft_length") and not 1 <= wish.draft_length <= MAX_DRAFT_LENGTH:
        raise InvalidArgument("speculation.draft_length", f"is {wish.draft_length}, must be 1 to {MAX_DRAFT_LENGTH}")
    draft_length = wish.draft_length if wish.HasField("draft_length") else config.draft_length
    if wish.HasField("window") and not draft_length <= wish.window <= MAX_WINDOW:
        raise InvalidArgument(
            "speculation.window", f"is {wish.window}, must be from draft_length ({draft_length}) to {MAX_WINDOW}"
        )
    window = wish.window if wish.HasField("window") else config.window
    if wish.HasField("enabled") and not wish.enabled:
        return SpeculationSettings(0, 0)
    return SpeculationSettings(draft_length, window, adaptive=not wish.HasField("draft_length"))


def _check_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> None:
    if ids and max(ids) >= vocabulary_size:
        raise InvalidArgument(field, f"holds {max(ids)}, ids must be below {vocabulary_size}")
