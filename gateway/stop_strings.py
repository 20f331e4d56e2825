"""Finds stop strings in text that arrives in pieces, across the borders of the pieces.

The stop string that is complete first wins, as generation ends at that moment; of several that end with the same
character the longest wins, so that nothing of it stays in the text. The result does not depend on how the text was
cut into pieces. Each character costs constant amortised work for each stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.errors import InvalidArgument

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1024  # characters


class StopStrings:
    """The matcher of one stream. Holds back only the longest end of the text that may yet become a stop string."""

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        _check(stops)
        # Longest first, so that the first one found to end at a character is the one that wins.
        self._matchers = [_Matcher(stop) for stop in sorted(set(stops), key=lambda stop: (-len(stop), stop))]
        self._include_stop = include_stop
        self._held = ""
        self._matched = False

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """(the text that is safe to show, the stop string that is now complete or None).

        Unarmed text (before min_tokens) ends no stop string, but one that ends later may begin in it.
        """
        assert not self._matched, "text after a stop string"
        if not self._matchers:
            return text, None
        buffer = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            complete = [matcher.stop for matcher in self._matchers if matcher.step(character)]
            if complete and armed:
                self._matched, self._held = True, ""
                return buffer[: end if self._include_stop else end - len(complete[0])], complete[0]
        keep = len(buffer) - max(matcher.length for matcher in self._matchers)
        self._held = buffer[keep:]
        return buffer[:keep], None

    def flush(self) -> str:
        """The text held back, once nothing follows."""
        text, self._held = self._held, ""
        return text


class _Matcher:
    """Knuth, Morris and Pratt: how much of one stop string the text ends with, kept up to date by character."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # the text ends with stop[:length], and with no longer beginning of it
        self._fallback = _fallbacks(stop)

    def step(self, character: str) -> bool:
        """Whether the stop string is complete with this character."""
        while self.length and self.stop[self.length] != character:
            self.length = self._fallback[self.length - 1]
        if self.stop[self.length] == character:
            self.length += 1
        if self.length < len(self.stop):
            return False
        self.length = self._fallback[-1]
        return True


def _fallbacks(stop: str) -> list[int]:
    """For each beginning of `stop`: the length of its longest proper end that is a beginning too."""
    table = [0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = table[length - 1]
        if stop[length] == character:
            length += 1
        table.append(length)
    return table


def _check(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidArgument("stop", f"has {len(stops)} entries, at most {MAX_STOP_STRINGS}")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_STRING_LENGTH:
            raise InvalidArgument("stop", f"has {len(stop)} characters, must have 1 to {MAX_STOP_STRING_LENGTH}")
