"""What the client may see of a stream: text and tokens together, cut at the stop string.

Tokens are released whole: a token, its logprobs and its text leave in the same delta, once all of its characters are
complete and none can still become part of a stop string. So the text a client holds is always the text of the ids it
holds, and those ids alone bring a fresh Output to the same state. It decides nothing about when a stream ends
otherwise; `gateway.session` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.logprobs import TokenLogprobs
from gateway.detokenizer import make_detokenizer
from gateway.stop_strings import StopStrings
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One committed output token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What is newly released. After one with a `stop` nothing follows."""

    text: str = ""
    tokens: tuple[OutputToken, ...] = ()
    stop: str | None = None  # the stop string that ended the stream


class Output:
    """The output of one stream. Positions count characters of its text from the first output token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,  # leave the stop string, or the text of the end token, in the text
        min_tokens: int = 0,  # stop strings complete within this many tokens are ordinary text
    ) -> None:
        self._detokenizer = make_detokenizer(tokenizer)
        self._stops = StopStrings(stops, include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._pushed = 0  # tokens
        self._incomplete: list[OutputToken] = []  # the detokenizer still holds text of the last of these
        self._complete: deque[tuple[OutputToken, int]] = deque()  # with the position where its text ends
        self._text = ""  # from the released position on
        self._produced = 0  # position up to which the detokenizer gave text
        self._safe = 0  # position up to which no stop string can begin
        self._released = 0  # position up to which the client has the text
        self._closed = False

    @property
    def held_tokens(self) -> int:
        """How many tokens were pushed but not released."""
        return len(self._incomplete) + len(self._complete)

    def push(self, tokens: Sequence[OutputToken], *, ends: bool = False) -> Delta:
        """Takes the next tokens. `ends` says that the last one is an end token: its id counts, its text does not."""
        stop = self._take(tokens, ends)
        return self._cut(stop) if stop is not None else self._release()

    def finish(self) -> Delta:
        """Everything still held, once no token follows."""
        assert not self._closed, "the output has ended"
        stop = self._feed(self._detokenizer.flush())
        if stop is None:
            self._safe += len(self._stops.flush())
        return self._cut(stop)

    def replay(self, tokens: Sequence[OutputToken], *, ends: bool = False) -> str | None:
        """Takes tokens that the client already holds, with their text, from an earlier stream that broke.

        Comes first. Returns the stop string if they complete one: then the stream had ended.
        """
        assert self._pushed == 0, "replay comes before any other token"
        stop = self._take(tokens, ends)
        # The client has the text of these tokens to the end, whatever is still undecided here: the earlier stream
        # released them after it had seen what follows, and what follows will come again.
        self._incomplete.clear()
        self._complete.clear()
        self._text = ""
        self._released = self._produced + len(self._detokenizer.peek())
        self._closed = stop is not None
        return stop

    def _take(self, tokens: Sequence[OutputToken], ends: bool) -> str | None:
        """Feeds tokens until one completes a stop string; the rest is dropped."""
        assert not self._closed, "tokens after the end of the output"
        for position, token in enumerate(tokens, start=1):
            self._pushed += 1
            self._incomplete.append(token)
            silent = ends and position == len(tokens) and not self._include_stop
            stop = self._feed("" if silent else self._detokenizer.push(token.token_id))
            if stop is not None:
                return stop
            if not self._detokenizer.pending:
                self._complete.extend((token, self._produced) for token in self._incomplete)
                self._incomplete.clear()
        return None

    def _feed(self, text: str) -> str | None:
        overlap = max(0, self._released - self._produced)  # text that the client had before a replay
        self._text += text[overlap:]
        self._produced += len(text)
        safe, stop = self._stops.push(text, armed=self._pushed > self._min_tokens)
        self._safe += len(safe)
        return stop

    def _release(self) -> Delta:
        tokens = []
        end = self._released
        while self._complete and self._complete[0][1] <= self._safe:
            token, position = self._complete.popleft()
            tokens.append(token)
            end = max(end, position)
        return Delta(self._text_up_to(end), tuple(tokens))

    def _cut(self, stop: str | None) -> Delta:
        """All tokens so far, the text that is safe, and nothing ever after."""
        tokens = (*(token for token, _ in self._complete), *self._incomplete)
        self._complete.clear()
        self._incomplete.clear()
        self._closed = True
        return Delta(self._text_up_to(max(self._safe, self._released)), tokens, stop)

    def _text_up_to(self, end: int) -> str:
        length = end - self._released
        text, self._text = self._text[:length], self._text[length:]
        self._released = end
        return text
