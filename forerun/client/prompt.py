"""What a client sends: a prompt and options, as Python writes them, made into a request.

What is not given, or None, stays unset, for the gateway to default; protos/forerun/v1/gateway.proto says to what.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, TypedDict, Unpack

from forerun.errors import InvalidArgument
from forerun.v1 import gateway_pb2


class Message(NamedTuple):
    """One turn of a conversation. A pair or a mapping with the same two keys will do as well."""

    role: str
    content: str


# Text is one user turn; a sequence of turns is a conversation; a sequence of numbers is token ids.
Prompt: TypeAlias = str | Sequence[tuple[str, str] | Mapping[str, str]] | Sequence[int]


class Options(TypedDict, total=False):
    """How to answer. The names are the request's own, but for those explained here."""

    system: str | None  # a system turn before the prompt
    raw: bool | None  # continue the text as it stands, without the chat template
    model: str | None
    parse_special_tokens: bool | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str] | None
    include_stop: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    logprobs: int | None
    speculate: bool | None  # False: plain decoding
    draft_length: int | None
    window: int | None
    include_rounds: bool | None


def make_request(prompt: Prompt, **options: Unpack[Options]) -> gateway_pb2.GenerateRequest:
    """The request. Raises InvalidArgument for a value that no request can hold, TypeError for an unknown option."""
    request = gateway_pb2.GenerateRequest()
    _set_prompt(request, prompt, options.get("system"), bool(options.get("raw")))
    for name, value in options.items():
        if name in ("system", "raw"):
            continue
        if name not in Options.__annotations__:
            close = difflib.get_close_matches(name, Options.__annotations__, n=1)
            raise TypeError(f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        if value is not None:
            try:
                _set(request, name, value)
            except (TypeError, ValueError) as error:
                raise InvalidArgument(name, str(error)) from None
    return request


def _set_prompt(request: gateway_pb2.GenerateRequest, prompt: Prompt, system: str | None, raw: bool) -> None:
    is_tokens = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], SupportsIndex)
    if system is not None and (raw or is_tokens):
        raise InvalidArgument("system", "needs turns, and this prompt has none")
    try:
        if is_tokens:
            request.tokens.ids.extend(prompt)  # type: ignore[arg-type]
        elif isinstance(prompt, str) and raw:
            request.text = prompt
        else:
            turns = [Message("user", prompt)] if isinstance(prompt, str) else [_message(turn) for turn in prompt]
            turns = turns if system is None else [Message("system", system), *turns]
            for role, content in turns:
                request.chat.messages.add(role=role, content=content)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("prompt", str(error)) from None


def _message(turn: object) -> Message:
    match turn:
        case {"role": str(role), "content": str(content), **rest} if not rest:
            return Message(role, content)
        case (str(role), str(content)):
            return Message(role, content)
    raise InvalidArgument("prompt", f"{turn!r} is not a turn: give (role, content) or a dict with these two keys")


def _set(request: gateway_pb2.GenerateRequest, name: str, value: Any) -> None:
    match name:
        case "stop":
            request.stop.extend([value] if isinstance(value, str) else value)
        case "stop_token_ids":
            request.stop_token_ids.extend(value)
        case "logit_bias":
            request.logit_bias.update(value)
        case "speculate":
            request.speculation.enabled = bool(value)
        case "draft_length" | "window":
            setattr(request.speculation, name, value)
        case _:
            setattr(request, name, value)
