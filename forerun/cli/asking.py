"""The flags that describe a request, and the options that they stand for.

`forerun generate` and `forerun chat` have them in common.
"""

from __future__ import annotations

import argparse

from forerun import config
from forerun.client import Options


def add_call_flags(group: argparse._ArgumentGroup) -> None:
    """Whom to ask, and for how long."""
    config.add_flags(group, config.ClientConfig)
    config.add_config_flag(group)
    group.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long [never]")
    group.add_argument("--system", metavar="TEXT", help="a system turn before the prompt")


def add_sampling_flags(group: argparse._ArgumentGroup, max_tokens: int) -> None:
    """How to draw, and when to end."""
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help="tokens at most [%(default)s]")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy [%(default)g]")
    group.add_argument("--top-p", type=float, metavar="X", help="keep the most likely tokens of this probability [1]")
    group.add_argument("--top-k", type=int, metavar="N", help="keep the N most likely tokens [all]")
    group.add_argument("--min-p", type=float, metavar="X", help="drop tokens below this share of the likeliest [0]")
    group.add_argument("--seed", type=int, metavar="N", help="makes the answer repeatable [random]")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")


def add_speculation_flags(group: argparse._ArgumentGroup) -> None:
    """How to speculate."""
    group.add_argument("--no-speculation", action="store_true", help="plain decoding by the target alone")
    group.add_argument("--draft-length", type=int, metavar="N", help="candidates a round [the gateway's]")
    group.add_argument("--window", type=int, metavar="N", help="candidates outstanding, run-ahead too [the gateway's]")


def options_of(arguments: argparse.Namespace) -> Options:
    """What the flags say; what was not given is None, for the gateway to default."""
    return Options(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        seed=arguments.seed,
        stop=arguments.stop,
        speculate=False if arguments.no_speculation else None,
        draft_length=arguments.draft_length,
        window=arguments.window,
        include_rounds=arguments.rounds or None,
    )
