"""What decoding really takes, beside what the rounds that measure a draft length say it does.

Those rounds are the quiet ones. Prompts, which a draft has to compute, too, drafts that catch up, and pauses make
others longer, and with a draft more than without: with short answers and several sessions a draft length that looked a
fifth faster than plain decoding was a tenth slower. Policy only: it knows no session and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_TOKENS = 4_000  # after which what was measured counts half
PRIOR_TOKENS = 200  # before which the quiet rounds are believed


@dataclass(slots=True)
class Surcharge:
    """Of one load, with drafts or without."""

    _real_s: float = 0.0
    _expected_s: float = 0.0
    _tokens: float = 0.0

    def add(self, tokens: int, real_s: float, expected_s: float) -> None:
        """A round, measured or not: its tokens, what it took, and what these tokens take in quiet rounds."""
        if self._tokens > MEMORY_TOKENS:
            self._real_s, self._expected_s, self._tokens = self._real_s / 2, self._expected_s / 2, self._tokens / 2
        self._real_s += real_s
        self._expected_s += expected_s
        self._tokens += tokens

    @property
    def factor(self) -> float:
        """How many times as long as expected decoding takes; at least 1."""
        if not self._tokens:
            return 1.0
        prior_s = PRIOR_TOKENS * self._expected_s / self._tokens
        return max(1.0, (self._real_s + prior_s) / (self._expected_s + prior_s))
