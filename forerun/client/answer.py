"""What a client receives: the events of one answer, and the answer that they add up to.

The events mirror the messages of protos/forerun/v1/gateway.proto, field by field, as plain frozen values: what a field
means is said there. Until an event has arrived, an `Answer` holds one in which all is empty or zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.logprobs import TokenLogprobs
from forerun.v1 import gateway_pb2


@dataclass(frozen=True, slots=True)
class Started:
    """Comes first: what is about to be generated."""

    request_id: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    seed: int = 0
    model: str = ""
    model_revision: str = ""
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round."""

    index: int = 0
    draft_token_ids: tuple[int, ...] = ()
    draft_texts: tuple[str, ...] = ()
    committed_token_ids: tuple[int, ...] = ()
    committed_texts: tuple[str, ...] = ()
    accepted_count: int = 0
    epoch: int = 0
    round_ns: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    draft_ns: int = 0
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some text, whole characters, and the tokens that completed it. Printed, it is its text."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    token_texts: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SpeculationUsage:
    """What speculation did."""

    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    drafted_per_position: tuple[int, ...] = ()
    mean_accepted_length: float = 0.0
    rollbacks: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates among those verified; zero without any."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went."""

    time_to_first_token_ns: int = 0
    time_per_output_token_ns: int = 0
    total_ns: int = 0
    queue_ns: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Comes last. `finish_reason` is "stop", "length", "cancelled" or "error"."""

    finish_reason: str = ""
    stop: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    speculation: SpeculationUsage = SpeculationUsage()
    timing: Timing = Timing()


@dataclass(slots=True)
class Answer:
    """All that has come for one request, over all calls that it took. Printed, it is its text.

    After a resumption `started` and `finished` are those of the last call: their times and rounds are of its part.
    """

    request: gateway_pb2.GenerateRequest = field(default_factory=gateway_pb2.GenerateRequest, repr=False)
    started: Started = Started()
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finished: Finished = Finished()

    def __str__(self) -> str:
        return self.text

    def add(self, event: Started | Chunk | Finished) -> None:
        """Takes in what came next."""
        match event:
            case Started():
                self.started = event
            case Finished():
                self.finished = event
            case Chunk():
                self.text += event.text
                self.token_ids.extend(event.token_ids)
                self.token_texts.extend(event.token_texts)
                self.logprobs.extend(event.logprobs)
                self.rounds.extend(event.rounds)

    @property
    def ended(self) -> bool:
        """Whether it is complete, as opposed to cancelled here or broken off."""
        return bool(self.finished.finish_reason)

    @property
    def tokens_per_second(self) -> float:
        """The pace after the first token; zero with fewer than two."""
        pace_ns = self.finished.timing.time_per_output_token_ns
        return 1e9 / pace_ns if pace_ns else 0.0

    def unfinished(self) -> Answer:
        """A copy to go on with."""
        return dataclasses.replace(
            self,
            token_ids=list(self.token_ids),
            token_texts=list(self.token_texts),
            logprobs=list(self.logprobs),
            rounds=list(self.rounds),
            finished=Finished(),
        )


def event_of(response: gateway_pb2.GenerateResponse) -> Started | Chunk | Finished | None:
    """The event in a response; None for one that this client does not know."""
    name = response.WhichOneof("event")
    event: Started | Chunk | Finished | None = _value(getattr(response, name)) if name else None
    return event


def _value(message: Any) -> Any:
    """A message as its plain value; fields that the value does not have are left out."""
    return _MAKERS[message.DESCRIPTOR.name](message)


def _mirror(kind: type[Any]) -> Callable[[Any], Any]:
    """Makes a `kind` from the message of the same name."""
    names = [item.name for item in dataclasses.fields(kind)]

    def make(message: Any) -> Any:
        fields = message.DESCRIPTOR.fields_by_name
        return kind(*(_field(getattr(message, name), fields[name]) for name in names))

    return make


def _field(value: Any, descriptor: Any) -> Any:
    if descriptor.is_repeated:
        return tuple(map(_value, value)) if descriptor.message_type else tuple(value)
    if descriptor.message_type:
        return _value(value)
    if descriptor.enum_type:
        return descriptor.enum_type.values_by_number[value].name.removeprefix("FINISH_REASON_").lower()
    return value


def _logprobs(message: Any) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, tuple(zip(message.top_token_ids, message.top_logprobs, strict=True)))


_MAKERS: Mapping[str, Callable[[Any], Any]] = {
    "TokenLogprobs": _logprobs,
    **{kind.__name__: _mirror(kind) for kind in (Started, Round, Chunk, SpeculationUsage, Timing, Finished)},
}
