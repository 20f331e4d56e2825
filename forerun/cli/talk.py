"""One chat with a gateway: asks with all that was said before, shows the answer as it comes, and keeps count.

Answers go to stdout, all else to stderr. An answer that is interrupted or breaks off is kept as far as it came.
"""

from __future__ import annotations

import sys
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from forerun.cli import rounds
from forerun.cli.client import explaining
from forerun.cli.conversation import Conversation
from forerun.cli.failure import Failure
from forerun.cli.generate import footer
from forerun.client import Answer, Client, Message, Options, SpeculationUsage, Stream
from forerun.errors import ForerunError

RETRIES = 5  # three seconds in all: time for a gateway to be started again


class Talk:
    """The state of a chat: what was said, how to answer, and what the answers cost.

    `unanswered` is a prompt that got no answer, so that it can be tried again.
    """

    def __init__(
        self, client: Client, conversation: Conversation, options: Options, timeout_s: float | None = None
    ) -> None:
        self.client = client
        self.conversation = conversation
        self.options = options
        self.timeout_s = timeout_s
        self.answers: list[Answer] = []
        self.unanswered: str | None = None
        self._out = Console(highlight=False, soft_wrap=True)
        self._notes = Console(stderr=True, highlight=False)

    def note(self, text: str | Text) -> None:
        """Says something that is not part of the conversation."""
        self._print(text, "dim")

    def complain(self, failure: Failure) -> None:
        """Says that something went wrong; the chat goes on."""
        self._print(str(failure), "red")

    def _print(self, text: str | Text, style: str) -> None:
        # A terminal's lines break between words; in a file or a pipe they stay whole.
        self._notes.print(text, style=style, markup=False, soft_wrap=not self._notes.is_terminal)

    def ask(self, prompt: str, again: bool = False) -> None:
        """Says something and shows what is answered. `again`: a seed that was given is not used a second time.

        Raises Failure if there is no answer, or only a part of one. Ctrl-C ends the answer, and is passed on.
        """
        self.conversation.turns.append(Message("user", prompt))
        options = self.options.copy()
        if again:
            options["seed"] = None
        with explaining(self.client.address):
            stream = self.client.generate(
                self.conversation.messages, timeout=self.timeout_s, retries=RETRIES, **options
            )
            try:
                with stream:
                    self._show(stream)
            except KeyboardInterrupt:
                self._end(stream, f"stopped after {len(stream.answer.token_ids)} tokens")
                raise
            except ForerunError:
                self._end(stream, "")
                raise
            else:
                self._end(stream, footer(stream.answer))

    def retry(self) -> None:
        """Asks the last prompt again, in place of its answer."""
        prompt = self.unanswered or self.conversation.undo()
        if prompt is None:
            raise Failure("nothing has been asked yet")
        self.ask(prompt, again=True)

    def _show(self, stream: Stream) -> None:
        painter = rounds.Painter() if self.options.get("include_rounds") else None
        for chunk in stream:
            if painter is None:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
            else:
                self._out.print(painter.paint(chunk), end="")

    def _end(self, stream: Stream, cost: str) -> None:
        """Keeps what has come. A prompt without an answer does not stay in the conversation."""
        if stream.text or stream.answer.ended:
            print(flush=True)
            self.conversation.turns.append(Message("assistant", stream.text))
            self.unanswered = None
        else:
            self.unanswered = self.conversation.undo()
        if stream.answer.ended:
            self.answers.append(stream.answer)
        if cost:
            self.note(cost)

    def stats(self) -> str:
        """What all answers together cost."""
        tokens = sum(answer.finished.completion_tokens for answer in self.answers)
        seconds = sum(answer.finished.timing.total_ns for answer in self.answers) / 1e9
        pace = f"{tokens / seconds:.1f} tok/s, first tokens included" if seconds else "no time"
        counts = f"{len(self.answers)} answers, {tokens} tokens, {pace}"
        return f"{counts}; {rounds.summary(_sum([answer.finished.speculation for answer in self.answers]))}"


def _sum(usages: list[SpeculationUsage]) -> SpeculationUsage:
    count = sum(usage.rounds for usage in usages)
    committed = sum(usage.mean_accepted_length * usage.rounds for usage in usages)
    return SpeculationUsage(
        rounds=count,
        drafted_tokens=sum(usage.drafted_tokens for usage in usages),
        accepted_tokens=sum(usage.accepted_tokens for usage in usages),
        accepted_per_position=_by_position([usage.accepted_per_position for usage in usages]),
        drafted_per_position=_by_position([usage.drafted_per_position for usage in usages]),
        mean_accepted_length=committed / count if count else 0.0,
        rollbacks=sum(usage.rollbacks for usage in usages),
    )


def _by_position(counts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
