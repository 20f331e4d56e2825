"""`make demo`: the whole product in a minute, on a real model: `python -m forerun.cli.demo`.

It starts the services with `forerun up`, answers one prompt with and without speculation, shows the rounds and the
trace of the request, compares texts and speeds of that and of other kinds of prompts, and stops everything. It exits 1
if any texts differ.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from forerun import config, trace_view
from forerun.bench import dataset
from forerun.cli import background, rounds
from forerun.cli.client import ask, asked
from forerun.cli.comparison import Comparison, verdict
from forerun.cli.failure import FAILED, Failure
from forerun.cli.services import pulled
from forerun.client import Answer
from forerun.errors import Unavailable
from forerun.otlp_sink import OtlpSink, ReceivedSpan
from forerun.v1 import gateway_pb2

PROMPT = "Why is the sky blue?"
MAX_TOKENS = 96
COMPARED_TOKENS = 64
SHOWN_ROUNDS = 12
SHOWN_SPANS = 8
SERVICES = {"forerun-gateway", "forerun-draft", "forerun-target"}
FREE_PORTS = ("--port=0", "--target-port=0", "--draft-port=0")


def request(prompt: str, max_tokens: int, speculate: bool) -> gateway_pb2.GenerateRequest:
    """A greedy request, so that both answers are to be the same."""
    return gateway_pb2.GenerateRequest(
        chat=gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role="user", content=prompt)]),
        max_tokens=max_tokens,
        temperature=0.0,
        speculation=gateway_pb2.Speculation(enabled=speculate),
        include_rounds=True,
    )


def traced_to(sink: OtlpSink) -> dict[str, str]:
    """The variables that send the services' spans to `sink`, soon."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "500"}


def beginning_of(log: Path) -> str:
    """The first line of a log, where `forerun up` says what it chose."""
    return log.read_text(errors="replace").partition("\n")[0]


def speak(console: Console, address: str, message: gateway_pb2.GenerateRequest) -> Answer:
    """Prints an answer as it comes, coloured by rounds."""
    painter = rounds.Painter()
    with asked(address, message) as stream:
        for chunk in stream:
            console.print(painter.paint(chunk), end="", soft_wrap=True)
    console.print()
    return stream.answer


def heading(console: Console, text: str) -> None:
    """Begins a part of the demo."""
    console.print()
    console.rule(f"[bold]{text}", align="left", style="bright_black")


def complete(spans: Sequence[ReceivedSpan], answer: Answer) -> bool:
    """Whether all services have sent their part of the answer's trace."""
    trace = [span for span in spans if span.trace_id == answer.started.trace_id]
    seen = sum(span.name == "round" for span in trace)
    return {span.service for span in trace} >= SERVICES and seen >= answer.finished.speculation.rounds


async def show_trace(console: Console, sink: OtlpSink, answer: Answer) -> None:
    """Draws the answer's trace, once it has arrived."""
    try:
        await sink.wait_for(lambda spans: complete(spans, answer), timeout_s=10.0)
    except TimeoutError:
        console.print("(not all spans have arrived)", style="dim")
    console.print(trace_view.render(sink.spans, answer.started.trace_id, max_children=SHOWN_SPANS))


async def compare(console: Console, address: str) -> list[Comparison]:
    """One prompt of each kind in `forerun bench`'s own set, both ways, which goes first in turns."""
    first: dict[str, str] = {}
    for prompt in dataset.built_in():
        first.setdefault(prompt.category, prompt.turns[0])
    with console.status("") as status:
        found = []
        for number, (kind, text) in enumerate(first.items()):
            status.update(f"one prompt of each kind: {kind}, {number + 1} of {len(first)}")
            answers = {
                speculate: await asyncio.to_thread(ask, address, request(text, COMPARED_TOKENS, speculate))
                for speculate in ((False, True) if number % 2 else (True, False))
            }
            found.append(Comparison(kind, answers[False], answers[True]))
    return found


async def demonstrate(console: Console, sink: OtlpSink, address: str, log: Path) -> int:
    """One prompt both ways with rounds and trace, some more without, verdict."""
    choices = beginning_of(log).removeprefix("forerun │ ")
    console.print(f"gateway on {address}; {choices}; their log is {log}", style="dim", soft_wrap=True)
    for speculate in (False, True):
        await asyncio.to_thread(ask, address, request(PROMPT, 8, speculate))  # warm-up, so that the speeds are fair
    heading(console, "plain: the target alone")
    console.print(PROMPT, style="italic")
    plain = await asyncio.to_thread(speak, console, address, request(PROMPT, MAX_TOKENS, False))
    heading(console, "speculative: the draft proposes, the target decides")
    speculative = await asyncio.to_thread(speak, console, address, request(PROMPT, MAX_TOKENS, True))
    console.print(rounds.legend())
    heading(console, "its rounds")
    console.print(rounds.table(speculative.rounds[:SHOWN_ROUNDS]))
    more = len(speculative.rounds) - SHOWN_ROUNDS
    console.print(f"... and {more} more" if more > 0 else "", style="dim")
    console.print(rounds.summary(speculative.finished.speculation))
    heading(console, "its trace, over three processes")
    await show_trace(console, sink, speculative)
    heading(console, "both speeds, both texts")
    return verdict(console, [Comparison("the sky", plain, speculative), *await compare(console, address)])


async def demo(console: Console, log: Path, options: Sequence[str]) -> int:
    """Everything between the pull and the exit code."""
    async with OtlpSink() as sink:
        with console.status("starting target, draft and gateway") as status:
            async with background.services([*FREE_PORTS, *options], log, traced_to(sink)) as reachable:
                status.stop()
                code = await demonstrate(console, sink, reachable.address, log)
                console.print("stopping", style="dim")
    console.print("stopped", style="dim")
    return code


def main() -> int:
    """Runs the demo; 0 if the texts are identical."""
    parser = argparse.ArgumentParser(prog="python -m forerun.cli.demo", description="Shows forerun at work.")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="for `forerun up`, after --")
    options: list[str] = parser.parse_args().options
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    try:
        if not options:  # `up` would pull as well, but its progress goes to the log
            pulled(config.TargetConfig().model, config.resolve(config.CacheConfig, {}))
        log = Path(tempfile.mkdtemp(prefix="forerun-demo-")) / "services.log"
        return asyncio.run(demo(console, log, options))
    except (Failure, Unavailable, config.ConfigError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
