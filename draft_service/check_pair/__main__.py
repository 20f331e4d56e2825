"""`python -m draft_service.check_pair`: behind `forerun check-pair`, which gives every flag."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from draft_service.check_pair import report
from draft_service.check_pair.advice import advise
from draft_service.check_pair.measure import Report, measure
from draft_service.check_pair.pair import Pair, VocabulariesDiffer, load_pair
from draft_service.check_pair.prompts import PROMPTS
from forerun.config import CacheConfig, ConfigError, DraftConfig, TargetConfig, add_flags, resolve
from forerun.errors import ForerunError


def main(arguments: list[str] | None = None) -> int:
    """0 when it was measured, whatever the advice; 1 if the pair does not fit or cannot be loaded."""
    flags = _parser().parse_args(arguments)
    given = vars(flags)
    try:
        draft = resolve(DraftConfig, given, {})
        of_target = {name: given[f"target_{name}"] for name in ("dtype", "device", "threads")}
        target = resolve(TargetConfig, {"model": draft.target, **of_target}, {})
        cache = resolve(CacheConfig, given, {}).folder
        _check(flags, target, draft, cache)
    except VocabulariesDiffer as error:
        if flags.json:
            print(json.dumps(report.refusal(draft.target, draft.model, error), indent=1))
        return _fail(error.message)
    except (ConfigError, ForerunError) as error:
        return _fail(str(error))
    return 0


def _check(flags: argparse.Namespace, target: TargetConfig, draft: DraftConfig, cache: Path) -> None:
    pair = load_pair(target, draft, cache, PROMPTS[: flags.prompts], flags.tokens)
    with _progress() as show:
        measured = measure(pair, draft, flags.draft_length, flags.tokens, flags.temperature, show)
    advice, subject = advise(measured), _subject(pair, target, draft, measured.asked.committed, flags.temperature)
    if flags.json:
        print(json.dumps(report.as_json(subject, measured, advice), indent=1))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        report.show(console, subject, measured, advice)


def _subject(pair: Pair, target: TargetConfig, draft: DraftConfig, tokens: int, temperature: float) -> report.Subject:
    model, head = pair.target.runner.model, pair.draft.head if pair.draft is not None else None
    return report.Subject(
        target=target.model,
        draft=draft.model,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        threads=pair.target.threads,
        vocabulary_size=pair.vocabulary.size,
        draft_vocabulary=len(head.token_ids) if head is not None else pair.vocabulary.size,
        prompts=len(pair.prompts),
        tokens=tokens,
        temperature=temperature,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m draft_service.check_pair", description=__doc__)
    add_flags(parser, DraftConfig)
    add_flags(parser, CacheConfig)
    for name in ("dtype", "device", "threads"):
        parser.add_argument(f"--target-{name}", required=True)
    parser.add_argument("--draft-length", type=int, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--json", action="store_true")
    return parser


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total)

        yield show


def _fail(message: str) -> int:
    print(f"forerun check-pair: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
