"""Ends inside an accepted draft: whatever ends an answer, at whatever place of a draft it falls, nothing follows it.

The draft is told what the target would say for ever, so that its candidates run past every end; eight of them are
verified together, and the end is moved over the places of the first draft and into the second one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from forerun.v1 import target_pb2, types_pb2
from tests.trio import RIGHT, VOCABULARY_SIZE, Answer, Pair, Trio, make_pair, trio
from tests.wire import TargetWire, good_sampling

SEED = 5
DRAFT_LENGTH = 8
PLACES = range(12)  # the end is this output token, counted from 0
LONG = 32
CONTEXT_LENGTH = 96
END_TOKEN_IDS = [2, *range(40, 240, 8)]
# Byte-level BPE: ids 3..96 are the printable characters. Without end tokens, which min_tokens would forbid.
ASCII_BIAS = {token_id: 90.0 for token_id in range(3, 97) if token_id not in END_TOKEN_IDS}

PLAIN, DRAFTED = 0, DRAFT_LENGTH


@pytest.fixture(scope="module")
def ending_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Many end tokens, and a context that is soon full."""
    folder = tmp_path_factory.mktemp("ending")
    return make_pair(folder, eos_token_id=END_TOKEN_IDS, context_length=CONTEXT_LENGTH)


@pytest.fixture(scope="module")
def running(loop: asyncio.Runner, ending_pair: Pair) -> Iterator[Trio]:
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(trio(ending_pair, RIGHT)))
    loop.run(stack.aclose())


@pytest.fixture(scope="module")
def endless(loop: asyncio.Runner, running: Trio) -> dict[tuple[int, ...], list[int]]:
    """Prompts and what the target says to them if nothing ends it. The draft knows it, too."""
    print(f"prompts with seed {SEED}")
    source = random.Random(SEED)
    prompts = [tuple(source.randrange(3, VOCABULARY_SIZE) for _ in range(8)) for _ in range(150)]

    async def speak() -> list[Answer]:
        calls = [running.generate(prompt, PLAIN, max_tokens=LONG, ignore_eos=True) for prompt in prompts]
        return list(await asyncio.gather(*calls))

    spoken = {prompt: answer.ids for prompt, answer in zip(prompts, loop.run(speak()), strict=True)}
    for prompt, answer in spoken.items():
        running.teach(prompt, answer)
    return spoken


async def both(running: Trio, prompt: tuple[int, ...], **fields: Any) -> tuple[Answer, Answer]:
    """The answer without and with a draft."""
    plain = await running.generate(prompt, PLAIN, **fields)
    drafted = await running.generate(prompt, DRAFTED, include_rounds=True, **fields)
    return plain, drafted


def check(plain: Answer, drafted: Answer, expected_ids: list[int], reason: str) -> None:
    """Same answer, no trace of anything after it, and the end really lay inside an accepted draft."""
    count = len(expected_ids)
    assert plain.ids == drafted.ids == expected_ids
    assert plain.reason == drafted.reason == reason
    assert plain.text == drafted.text
    for answer in (plain, drafted):
        assert answer.finished is not None
        assert answer.finished.completion_tokens == count
        assert len(answer.logprobs) == count
    for mine, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert list(mine.top_token_ids) == list(theirs.top_token_ids)
    rounds, usage = drafted.rounds, drafted.usage
    assert [token_id for round in rounds for token_id in round.committed_token_ids] == expected_ids
    assert sum(round.accepted_count for round in rounds) == usage.accepted_tokens <= count
    assert len(rounds) == usage.rounds
    assert usage.mean_accepted_length == pytest.approx(count / usage.rounds)
    assert usage.rollbacks == 0
    if count > 2:  # the first token, or two, come without candidates
        assert usage.accepted_tokens > 0
        assert usage.rounds < count


@pytest.mark.parametrize("place", PLACES)
def test_end_token(loop: asyncio.Runner, running: Trio, endless: dict[tuple[int, ...], list[int]], place: int) -> None:
    prompt, answer = next(
        (prompt, answer)
        for prompt, answer in endless.items()
        if answer[place] in END_TOKEN_IDS and not set(answer[:place]) & set(END_TOKEN_IDS)
    )
    plain, drafted = loop.run(both(running, prompt, max_tokens=LONG, logprobs=2))
    check(plain, drafted, answer[: place + 1], "stop")
    assert plain.finished is not None and plain.finished.stop == ""
    shown = running.gateways[0].parts.tokenizer.decode([answer[place]])  # empty for a special one
    spoken, _ = loop.run(both(running, prompt, max_tokens=LONG, include_stop=True))
    assert spoken.text.endswith(shown) or "\ufffd" in shown


@pytest.mark.parametrize("place", PLACES)
def test_end_token_is_an_ordinary_one_if_ignored_or_too_early(
    loop: asyncio.Runner, running: Trio, endless: dict[tuple[int, ...], list[int]], place: int
) -> None:
    prompt, answer = next((p, a) for p, a in endless.items() if a[place] in END_TOKEN_IDS)
    plain, drafted = loop.run(both(running, prompt, max_tokens=LONG, ignore_eos=True, logprobs=0))
    check(plain, drafted, answer, "length")
    # Before min_tokens an end token is not drawn at all, so another token stands in its place.
    plain, drafted = loop.run(both(running, prompt, max_tokens=LONG, min_tokens=place + 1, logprobs=0))
    assert plain.result == drafted.result
    assert len(plain.ids) > place and not set(plain.ids[: place + 1]) & set(END_TOKEN_IDS)


@pytest.mark.parametrize("place", PLACES)
def test_stop_token(loop: asyncio.Runner, running: Trio, endless: dict[tuple[int, ...], list[int]], place: int) -> None:
    prompt, answer = next((p, a) for p, a in endless.items() if a[place] not in a[:place])
    fields = {"max_tokens": LONG, "ignore_eos": True, "stop_token_ids": [answer[place]], "logprobs": 2}
    check(*loop.run(both(running, prompt, **fields)), answer[: place + 1], "stop")


@pytest.mark.parametrize("place", PLACES)
def test_max_tokens(loop: asyncio.Runner, running: Trio, endless: dict[tuple[int, ...], list[int]], place: int) -> None:
    prompt, answer = next(iter(endless.items()))
    fields = {"max_tokens": place + 1, "ignore_eos": True, "logprobs": 2}
    check(*loop.run(both(running, prompt, **fields)), answer[: place + 1], "length")


@pytest.mark.parametrize("place", PLACES)
def test_context_length(loop: asyncio.Runner, running: Trio, place: int) -> None:
    source = random.Random(SEED + place)
    prompt = tuple(source.randrange(3, VOCABULARY_SIZE) for _ in range(CONTEXT_LENGTH - place - 1))
    answer = loop.run(running.generate(prompt, PLAIN, ignore_eos=True)).ids
    assert len(answer) == place + 1
    running.teach(prompt, answer + answer)
    check(*loop.run(both(running, prompt, ignore_eos=True, logprobs=2)), answer, "length")
    check(*loop.run(both(running, prompt, ignore_eos=True, logprobs=2, max_tokens=LONG)), answer, "length")


# Stop strings


class Spelling:
    """An endless answer in printable characters, and where each of its tokens begins in the text."""

    def __init__(self, running: Trio, prompt: tuple[int, ...], ids: list[int]) -> None:
        self.prompt, self.ids = prompt, ids
        pieces = [running.gateways[0].parts.tokenizer.decode([token_id]) for token_id in ids]
        self.text = "".join(pieces)
        self.starts = [sum(map(len, pieces[:number])) for number in range(len(pieces) + 1)]

    def stop_at(self, place: int) -> str:
        """A string that is complete with token `place` and not before, of as many tokens as there are, up to three."""
        end = self.starts[place + 1]
        for begin in range(self.starts[max(0, place - 2)], -1, -1):
            if self.text.find(self.text[begin:end]) == begin:
                return self.text[begin:end]
        raise AssertionError("a beginning of the text occurs first at its beginning")


@pytest.fixture(scope="module")
def spelling(loop: asyncio.Runner, running: Trio) -> Spelling:
    prompt = (50, 60, 70, 80, 50, 60)
    answer = loop.run(running.generate(prompt, PLAIN, max_tokens=LONG, ignore_eos=True, logit_bias=ASCII_BIAS))
    running.teach(prompt, answer.ids)
    spelt = Spelling(running, prompt, answer.ids)
    assert answer.text == spelt.text and spelt.text.isprintable()
    return spelt


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_stop_string(loop: asyncio.Runner, running: Trio, spelling: Spelling, place: int, include_stop: bool) -> None:
    stop = spelling.stop_at(place)
    fields = {"max_tokens": LONG, "ignore_eos": True, "logit_bias": ASCII_BIAS, "logprobs": 2}
    others = ["never said", stop + "\n"]
    plain, drafted = loop.run(both(running, spelling.prompt, stop=[*others, stop], include_stop=include_stop, **fields))
    check(plain, drafted, spelling.ids[: place + 1], "stop")
    end = spelling.starts[place + 1]
    assert drafted.text == spelling.text[: end if include_stop else end - len(stop)]
    assert drafted.finished is not None and drafted.finished.stop == stop
    loop.run(running.wait_until_idle())


@pytest.mark.parametrize("min_tokens", [1, 4, 9, 13])
@pytest.mark.parametrize("place", [0, 3, 8])
def test_stop_string_before_min_tokens_is_ordinary_text(
    loop: asyncio.Runner, running: Trio, spelling: Spelling, place: int, min_tokens: int
) -> None:
    stop = spelling.stop_at(place)
    fields = {"max_tokens": LONG, "ignore_eos": True, "logit_bias": ASCII_BIAS, "logprobs": 2}
    plain, drafted = loop.run(both(running, spelling.prompt, stop=[stop], min_tokens=min_tokens, **fields))
    ends = [n for n in range(LONG) if spelling.text[: spelling.starts[n + 1]].endswith(stop) and n >= min_tokens]
    count = ends[0] + 1 if ends else LONG
    check(plain, drafted, spelling.ids[:count], "stop" if ends else "length")


def test_stop_string_that_ends_with_the_last_token_wins(
    loop: asyncio.Runner, running: Trio, spelling: Spelling
) -> None:
    for place in PLACES:
        stop = spelling.stop_at(place)
        fields = {"max_tokens": place + 1, "ignore_eos": True, "logit_bias": ASCII_BIAS, "logprobs": 0}
        plain, drafted = loop.run(both(running, spelling.prompt, stop=[stop], **fields))
        check(plain, drafted, spelling.ids[: place + 1], "stop")


def test_beginning_of_a_stop_string_is_shown_at_the_end(
    loop: asyncio.Runner, running: Trio, spelling: Spelling
) -> None:
    for place in PLACES:
        held = spelling.text[: spelling.starts[place + 1]][-3:]
        fields = {"max_tokens": place + 1, "ignore_eos": True, "logit_bias": ASCII_BIAS, "logprobs": 0}
        plain, drafted = loop.run(both(running, spelling.prompt, stop=[held + "\n"], **fields))
        check(plain, drafted, spelling.ids[: place + 1], "length")
        assert drafted.text == spelling.text[: spelling.starts[place + 1]]


# The target by itself, against candidates that no honest draft would send


@pytest.mark.parametrize("end", ["end token", "stop token", "max_tokens", "context length"])
@pytest.mark.parametrize("place", range(1, 9))
def test_target_cuts_right_candidates_that_run_past_the_end(
    loop: asyncio.Runner,
    running: Trio,
    endless: dict[tuple[int, ...], list[int]],
    end: str,
    place: int,
) -> None:
    """One verdict for a whole draft, nine tokens of which the end leaves place + 1; then the session is gone."""
    prompt, answer = next(
        (list(prompt), answer)
        for prompt, answer in endless.items()
        if answer[place] not in answer[:place]
        and (end != "end token" or answer[place] in END_TOKEN_IDS)
        and (end != "end token" or not set(answer[:place]) & set(END_TOKEN_IDS))
    )
    sampling = good_sampling(max_tokens=LONG, ignore_eos=end != "end token")
    if end == "stop token":
        sampling.stop_token_ids.append(answer[place])
    elif end == "max_tokens":
        sampling.max_tokens = place + 1
    elif end == "context length":
        source = random.Random(SEED + place)
        prompt = [source.randrange(3, VOCABULARY_SIZE) for _ in range(CONTEXT_LENGTH - place - 1)]
        answer = loop.run(running.generate(prompt, PLAIN, ignore_eos=True)).ids + answer

    async def test() -> list[target_pb2.TargetResponseEntry]:
        wire = TargetWire(running.target.stub.Verify())
        await wire.greet()
        opening = target_pb2.TargetOpen(
            prompt_token_ids=prompt, sampling=sampling, commit_limit=len(prompt), draft_length=DRAFT_LENGTH
        )
        await wire.say(1, open=opening)
        offer = target_pb2.OfferCandidates(epoch=1, start_position=len(prompt), token_ids=answer[:DRAFT_LENGTH])
        await wire.say(1, candidates=offer)
        # Only now may it commit: candidates and leave are there together.
        await wire.say(1, configure=target_pb2.ConfigureTarget(commit_limit=CONTEXT_LENGTH))
        heard = [await wire.hear()]
        await wire.say(1, configure=target_pb2.ConfigureTarget(commit_limit=CONTEXT_LENGTH))
        heard.append(await wire.hear())
        wire.call.cancel()
        return heard

    first, second = loop.run(test())
    assert list(first.verdict.token_ids) == answer[: place + 1]
    assert first.verdict.finish_reason == (
        types_pb2.FINISH_REASON_STOP if "token" in end and end != "max_tokens" else types_pb2.FINISH_REASON_LENGTH
    )
    assert first.verdict.accepted_count <= len(first.verdict.token_ids)
    assert second.WhichOneof("entry") == "unknown_session"
    loop.run(running.wait_until_idle())
