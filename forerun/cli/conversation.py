"""What was said so far: the turns that a chat sends each time, and how they are kept in a file.

The file is JSON, `{"messages": [{"role": ..., "content": ...}, ...]}`, as other tools write it too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.cli.failure import Failure
from forerun.client import Message


class Conversation:
    """A system turn, if there is one, and then user and assistant in turn."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All turns, as they are sent."""
        return self.turns if self.system is None else [Message("system", self.system), *self.turns]

    def undo(self) -> str | None:
        """Takes back the last user turn and all that followed, and returns it. None: there is none."""
        for index in range(len(self.turns) - 1, -1, -1):
            if self.turns[index].role == "user":
                prompt = self.turns[index].content
                del self.turns[index:]
                return prompt
        return None

    def save(self, path: Path) -> None:
        """Writes the file. Raises Failure if it cannot."""
        document = {"messages": [message._asdict() for message in self.messages]}
        try:
            path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise Failure(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from None

    def load(self, path: Path) -> None:
        """Becomes what the file holds. Raises Failure, and stays as it is, if that is no conversation."""
        try:
            messages = [_message(turn) for turn in json.loads(path.read_text(encoding="utf-8"))["messages"]]
        except OSError as error:
            raise Failure(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, KeyError, TypeError):
            raise Failure(f"{path} holds no conversation: it should be what /save writes") from None
        system = messages.pop(0).content if messages and messages[0].role == "system" else None
        self.system, self.turns = system, messages


def _message(turn: Any) -> Message:
    role, content = turn["role"], turn["content"]
    if not (isinstance(role, str) and isinstance(content, str)):
        raise TypeError(turn)
    return Message(role, content)
