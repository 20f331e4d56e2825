"""The chat template of a checkpoint: messages in, the text of a prompt out.

Renders the model's own Jinja template in a sandbox, with the functions and whitespace rules that transformers gives
it, so the text is the one the model was trained on. It knows nothing of token ids; `gateway.tokenizer` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import FailedPrecondition, InvalidArgument
from forerun.vocabulary import read_json, token_content

# Narrow on purpose: a role is pasted between the template's special tokens and must not be able to imitate one.
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# What evaluating a template can raise on input it did not expect; anything else is our own bug.
_RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation. Which roles exist is for the template to say."""

    role: str
    content: str


class ChatTemplate:
    """A compiled template and the special tokens it may name. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt's text, up to and including the header of the assistant's turn."""
        _check(messages)
        try:
            return self._template.render(
                **self._special_tokens,
                messages=[{"role": message.role, "content": message.content} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except _RENDER_ERRORS as error:
            raise InvalidArgument("messages", f"the model's chat template refused them: {error}") from error


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The folder's template, or None when the model has none. chat_template.jinja wins over tokenizer_config.json."""
    config = read_json(folder / "tokenizer_config.json", optional=True)
    path = folder / "chat_template.jinja"
    source = path.read_text("utf-8") if path.exists() else _default_template(config.get("chat_template"))
    if source is None:
        return None
    try:
        return ChatTemplate(source, _special_tokens(config))
    except jinja2.TemplateSyntaxError as error:
        raise FailedPrecondition(f"{folder}: the chat template is broken at line {error.lineno}: {error}") from error


def _default_template(value: object) -> str | None:
    """tokenizer_config.json holds one template or a list of named ones."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, under the names templates use for them."""
    contents = {name: token_content(value) for name, value in config.items() if name.endswith("_token")}
    return {name: content for name, content in contents.items() if content is not None}


def _check(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidArgument("messages", "must hold at least one message")
    for message in messages:
        if not _ROLE.fullmatch(message.role):
            raise InvalidArgument("messages", f"role {message.role!r} must be 1 to 64 letters, digits or any of _.-")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; when serving, it renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (how jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which would change the prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
