"""What a line that begins with / does in `forerun chat`. Each command's docstring is its help."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from forerun.cli import rounds
from forerun.cli.failure import Failure
from forerun.cli.talk import Talk
from forerun.config import MAX_DRAFT_LENGTH


class Quit(Exception):
    """The chat is over."""


def obey(talk: Talk, line: str) -> None:
    """Carries out one command. Raises Failure if that is not possible, Quit to leave."""
    name, _, argument = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{close[0]}?" if close else "/help lists them"
        raise Failure(f"there is no command /{name}; {hint} (// begins a line that is no command)")
    command(talk, argument.strip())


def help_text() -> str:
    """A line for each command."""
    usages = {f"/{name} {_ARGUMENTS.get(name, '')}".rstrip(): command for name, command in COMMANDS.items()}
    width = max(map(len, usages))
    return "\n".join(f"{usage:<{width}}  {command.__doc__}" for usage, command in usages.items())


def _help(talk: Talk, argument: str) -> None:
    """this list"""
    talk.note(help_text())
    talk.note(r"Ctrl-C stops an answer, Ctrl-D leaves, \ at the end of a line goes on in the next")


def _system(talk: Talk, argument: str) -> None:
    """what the model is told first; - takes it away, nothing shows it"""
    if argument:
        talk.conversation.system = None if argument == "-" else argument
    talk.note(f"system: {talk.conversation.system or 'none'}")


def _reset(talk: Talk, argument: str) -> None:
    """forget what was said; the system turn and the settings stay"""
    talk.conversation.turns.clear()
    talk.unanswered = None
    talk.note("forgotten")


def _retry(talk: Talk, argument: str) -> None:
    """ask the last question again; at temperature 0 the answer is the same"""
    talk.retry()


def _undo(talk: Talk, argument: str) -> None:
    """take back the last question and its answer"""
    prompt = talk.conversation.undo()
    if prompt is None:
        raise Failure("nothing has been asked yet")
    talk.note(f"taken back: {prompt}")


def _save(talk: Talk, argument: str) -> None:
    """write the conversation to a file"""
    path = _path(argument, "/save")
    talk.conversation.save(path)
    talk.note(f"{len(talk.conversation.turns)} turns saved in {path}")


def _load(talk: Talk, argument: str) -> None:
    """go on with the conversation in a file"""
    path = _path(argument, "/load")
    talk.conversation.load(path)
    talk.unanswered = None
    talk.note(f"{len(talk.conversation.turns)} turns loaded from {path}")


def _temperature(talk: Talk, argument: str) -> None:
    """how freely to draw; 0 always takes the likeliest token"""
    if argument:
        talk.options["temperature"] = _real(argument, 0.0, 100.0)
    talk.note(f"temperature: {talk.options.get('temperature'):g}")


def _max(talk: Talk, argument: str) -> None:
    """tokens in an answer at most"""
    if argument:
        talk.options["max_tokens"] = _whole(argument, 1, 1 << 31)
    talk.note(f"max: {talk.options.get('max_tokens')} tokens")


def _draft(talk: Talk, argument: str) -> None:
    """candidates a round; - leaves it to the gateway"""
    if argument:
        length = None if argument == "-" else _whole(argument, 1, MAX_DRAFT_LENGTH)
        talk.options["draft_length"] = length
        if length and length > (talk.options.get("window") or length):  # which no gateway would take
            talk.options["window"] = None
    talk.note(f"draft: {talk.options.get('draft_length') or 'as the gateway is set'}")


def _off(talk: Talk, argument: str) -> None:
    """plain decoding: the target alone"""
    talk.options["speculate"] = False
    talk.note("speculation: off")


def _on(talk: Talk, argument: str) -> None:
    """speculation, if the gateway has a draft"""
    talk.options["speculate"] = None
    talk.note("speculation: on")


def _rounds(talk: Talk, argument: str) -> None:
    """colour the tokens by where they came from, or stop it"""
    shown = not talk.options.get("include_rounds")
    talk.options["include_rounds"] = shown
    talk.note(rounds.legend() if shown else "rounds: not shown")


def _stats(talk: Talk, argument: str) -> None:
    """what all answers together cost"""
    talk.note(talk.stats())


def _quit(talk: Talk, argument: str) -> None:
    """leave"""
    raise Quit


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise Failure(f"{command} needs the name of a file")
    return Path(argument).expanduser()


def _whole(text: str, low: int, high: int) -> int:
    if text.isdecimal() and low <= int(text) <= high:
        return int(text)
    raise Failure(f"{text!r} is not a whole number from {low} to {high}")


def _real(text: str, low: float, high: float) -> float:
    with suppress(ValueError):
        if low <= float(text) <= high:
            return float(text)
    raise Failure(f"{text!r} is not a number from {low:g} to {high:g}")


COMMANDS: Mapping[str, Callable[[Talk, str], None]] = {
    "help": _help,
    "system": _system,
    "reset": _reset,
    "retry": _retry,
    "undo": _undo,
    "save": _save,
    "load": _load,
    "temperature": _temperature,
    "max": _max,
    "draft": _draft,
    "off": _off,
    "on": _on,
    "rounds": _rounds,
    "stats": _stats,
    "quit": _quit,
}
_ARGUMENTS = {"system": "TEXT", "save": "FILE", "load": "FILE", "temperature": "X", "max": "N", "draft": "N"}
