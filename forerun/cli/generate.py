"""`forerun generate`: one prompt, one answer, on stdout; what it cost, on stderr.

Text goes out as it comes. `--json` prints one object at the end, `--rounds` colours the tokens and explains each round.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console

from forerun import config
from forerun.cli import rounds
from forerun.cli.asking import add_call_flags, add_sampling_flags, add_speculation_flags, options_of
from forerun.cli.client import asked
from forerun.cli.failure import INTERRUPTED, USAGE, Failure
from forerun.client import Answer, Chunk
from forerun.client.prompt import make_request
from forerun.errors import InvalidArgument
from forerun.v1 import gateway_pb2

EXAMPLES = """\
examples:
  forerun generate "Why is the sky blue?"
  forerun generate "Write a haiku about rivers." --temperature 0.8 --seed 7
  forerun generate "Count to ten." --rounds --draft-length 6
  forerun generate "Name three colours." --json | python -m json.tool
  git diff | forerun generate - --system "Summarise this change in one sentence."
  forerun generate --raw "The capital of France is" --max-tokens 8

The prompt is a user turn through the model's chat template, unless --raw is given. With the same seed (and always at
temperature 0) the answer is the same with speculation and without it. FORERUN_ADDRESS stands in for --address.
exit codes: 0 done, 1 failed, 2 wrong usage or a refused request, 130 interrupted
"""
_WIDE = 150  # columns of the table of rounds where there is no terminal to ask


def add_parser(commands: Any) -> None:
    """Adds the subcommand and its flags."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="ask a running gateway",
        description="Sends a prompt to a running gateway and prints the answer as it comes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("prompt", metavar="PROMPT", help="what to say; - reads it from stdin")
    call = parser.add_argument_group("call")
    add_call_flags(call)
    call.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without chat template")
    add_sampling_flags(parser.add_argument_group("sampling"), max_tokens=128)
    add_speculation_flags(parser.add_argument_group("speculation"))
    _add_output_flags(parser.add_argument_group("output"))


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="one JSON object instead of text")
    group.add_argument("--rounds", action="store_true", help="colour the tokens by origin and explain each round")
    group.add_argument("--logprobs", type=int, metavar="N", help="log probabilities, with the N most likely tokens")


def request_from(arguments: argparse.Namespace) -> gateway_pb2.GenerateRequest:
    """The request that the flags describe."""
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    options = options_of(arguments)
    options["system"], options["raw"], options["logprobs"] = arguments.system, arguments.raw, arguments.logprobs
    return make_request(prompt, **options)


def as_json(answer: Answer) -> dict[str, Any]:
    """The object that `--json` prints. Times are in seconds."""
    usage, timing = answer.finished.speculation, answer.finished.timing
    document: dict[str, Any] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finished.finish_reason,
        "seed": answer.started.seed,
        "usage": {
            "prompt_tokens": answer.finished.prompt_tokens,
            "completion_tokens": answer.finished.completion_tokens,
        },
        "speculation": {
            "rounds": usage.rounds,
            "drafted_tokens": usage.drafted_tokens,
            "accepted_tokens": usage.accepted_tokens,
            "accepted_per_position": list(usage.accepted_per_position),
            "mean_accepted_length": usage.mean_accepted_length,
            "rollbacks": usage.rollbacks,
        },
        "timing": {
            "ttft_s": timing.time_to_first_token_ns / 1e9,
            "tpot_s": timing.time_per_output_token_ns / 1e9,
            "total_s": timing.total_ns / 1e9,
        },
    }
    if answer.logprobs:
        document["logprobs"] = [{"logprob": entry.logprob, "top": dict(entry.top)} for entry in answer.logprobs]
    return document


def footer(answer: Answer) -> str:
    """What the answer cost, in one line."""
    finished, usage = answer.finished, answer.finished.speculation
    parts = [f"{finished.completion_tokens} tokens", f"{answer.tokens_per_second:.1f} tok/s"]
    parts.append(f"first after {finished.timing.time_to_first_token_ns / 1e9:.2f} s")
    if usage.drafted_tokens:
        parts.append(f"{usage.acceptance_rate:.0%} of {usage.drafted_tokens} candidates accepted")
        parts.append(f"{usage.mean_accepted_length:.2f} tokens a round")
    else:
        parts.append("no speculation")
    parts.append(f"ended by {finished.finish_reason}")
    return " · ".join(parts)


def run(arguments: argparse.Namespace) -> int:
    """Sends the request and prints what comes back."""
    if arguments.raw and arguments.system is not None:
        raise Failure("--raw has no turns, so --system cannot be used with it; leave one of them out", USAGE)
    try:
        request = request_from(arguments)
    except InvalidArgument as error:  # what no request can hold, such as a negative seed
        raise Failure(f"a number is out of range: {error}", USAGE) from None
    address = config.resolve(config.ClientConfig, vars(arguments)).address
    answer = Answer()
    # Wide and plain where there is no terminal: a table of rounds in a file is not to be cut at 80 columns.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    painter = rounds.Painter() if arguments.rounds and not arguments.json else None
    try:
        with asked(address, request, arguments.timeout) as stream:
            answer = stream.answer
            for chunk in stream:
                if not arguments.json:
                    _show(chunk, painter, console)
    except KeyboardInterrupt:
        print(f"\ncancelled after {len(answer.token_ids)} tokens", file=sys.stderr)
        return INTERRUPTED
    except Failure:
        if answer.text and not arguments.json:
            print(flush=True)  # the message must not continue the answer's last line
        raise
    _conclude(arguments, answer, console)
    return 0


def _show(chunk: Chunk, painter: rounds.Painter | None, console: Console) -> None:
    if painter is None:
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
    else:
        console.print(painter.paint(chunk), end="", soft_wrap=True)


def _conclude(arguments: argparse.Namespace, answer: Answer, console: Console) -> None:
    if arguments.json:
        print(json.dumps(as_json(answer) | _rounds_json(answer), ensure_ascii=False))
        return
    print(flush=True)
    for text, entry in zip(answer.token_texts, answer.logprobs, strict=True):
        top = "  ".join(f"{token_id}:{logprob:.3f}" for token_id, logprob in entry.top)
        print(f"{entry.logprob:8.3f}  {text!r:20} {top}".rstrip())
    if arguments.rounds:
        console.print()
        console.print(rounds.legend())
        console.print(rounds.table(answer.rounds))
        console.print(rounds.summary(answer.finished.speculation), style="bold")
    Console(stderr=True, highlight=False).print(footer(answer), style="dim", soft_wrap=True)


def _rounds_json(answer: Answer) -> dict[str, Any]:
    if not answer.rounds:
        return {}
    return {
        "rounds": [
            {
                "index": round.index,
                "draft_token_ids": list(round.draft_token_ids),
                "committed_token_ids": list(round.committed_token_ids),
                "accepted_count": round.accepted_count,
                "epoch": round.epoch,
                "round_s": round.round_ns / 1e9,
                "step_s": round.step_ns / 1e9,
                "wait_s": round.wait_ns / 1e9,
                "draft_s": round.draft_ns / 1e9,
            }
            for round in answer.rounds
        ]
    }
