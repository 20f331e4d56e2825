"""What prompts cost the answers beside them: with a draft, which has to compute them too, and without one.

Rounds that share their steps with a prompt take longer than others. Where answers are short that is much of the time,
and a draft on the same machine makes it more; a choice that looked at undisturbed rounds alone would not see it. Policy
only: it knows no session and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY_TOKENS = 50_000  # of prompts and output, after which what was measured counts half
PRIOR_TOKENS = 2_000  # of prompts, before which both ways are held for alike


@dataclass(slots=True)
class Sum:
    """Seconds that rounds took longer, over all sessions, and the tokens of the prompts that made them."""

    seconds: float = 0.0
    tokens: float = 0.0

    def fade(self) -> None:
        """Makes room for news."""
        if self.tokens > MEMORY_TOKENS:
            self.seconds, self.tokens = self.seconds / 2, self.tokens / 2


@dataclass(slots=True)
class PromptCosts:
    """Of one load."""

    _plain: Sum = field(default_factory=Sum)
    _drafted: Sum = field(default_factory=Sum)

    def add_prompt(self, tokens: int, drafted: bool) -> None:
        """A prompt came, to sessions that speculate or that do not."""
        kept = self._drafted if drafted else self._plain
        kept.fade()
        kept.tokens += tokens

    def add_delay(self, seconds: float, drafted: bool) -> None:
        """A round beside a prompt took so much longer than one of its kind does."""
        (self._drafted if drafted else self._plain).seconds += seconds

    def seconds(self, drafted: bool) -> float:
        """For each token of a prompt."""
        tokens = self._plain.tokens + self._drafted.tokens
        if not tokens:
            return 0.0
        common = (self._plain.seconds + self._drafted.seconds) / tokens
        kept = self._drafted if drafted else self._plain
        return max(0.0, (kept.seconds + PRIOR_TOKENS * common) / (kept.tokens + PRIOR_TOKENS))


class PromptShare:
    """How many tokens of prompts come with each token of output."""

    def __init__(self) -> None:
        self._prompt = 0.0
        self._output = 0.0

    def add(self, prompt: int = 0, output: int = 0) -> None:
        """So many more."""
        self._prompt += prompt
        self._output += output
        if self._output > MEMORY_TOKENS:
            self._prompt, self._output = self._prompt / 2, self._output / 2

    @property
    def tokens(self) -> float:
        """Of prompts, for one of output."""
        return self._prompt / self._output if self._output else 0.0
