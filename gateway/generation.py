"""One request from admission to its last message: a session, its text, and the client's stream.

Rounds come in as they happen and wait in a queue that the target's credit bounds; they go out as fast as the client
reads, and only then does the target get leave to commit more. It decides nothing about replicas or protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from forerun import span_attributes
from forerun.errors import DeadlineExceeded, ForerunError
from forerun.logprobs import TokenLogprobs
from forerun.telemetry import RequestTrace
from forerun.v1 import gateway_pb2, target_pb2, types_pb2
from gateway.dispatcher import Dispatcher
from gateway.metrics import RequestMetrics
from gateway.output import Delta, Output, OutputToken
from gateway.request import Prepared
from gateway.round import Round, SpeculationTally
from gateway.session import Session
from gateway.tokenizer import Tokenizer

_NUMBERS = itertools.count(1)


class Generation:
    """A request that was admitted. `responses` is consumed once; `close` is safe to repeat."""

    def __init__(
        self,
        prepared: Prepared,
        served: types_pb2.ServiceInfo,
        tokenizer: Tokenizer,
        dispatcher: Dispatcher,
        credit_tokens: int,
        trace: RequestTrace,
        metrics: RequestMetrics,
        arrived: float,
        deadline: float | None,
    ) -> None:
        self.request_id = secrets.token_hex(8)
        self._prepared = prepared
        self._served = served
        self._tokenizer = tokenizer
        self._dispatcher = dispatcher
        self._credit = credit_tokens
        self._trace = trace
        self._metrics = metrics
        self._arrived = arrived
        self._admitted = time.monotonic()
        self._first_token_at = 0.0
        self._last_chunk_at = 0.0
        self._queue: deque[tuple[Round, target_pb2.Verdict]] = deque()
        self._news = asyncio.Event()
        self._error: ForerunError | None = None
        self._output = Output(
            tokenizer, prepared.stops, include_stop=prepared.include_stop, min_tokens=prepared.params.min_tokens
        )
        self._released = len(prepared.resume_token_ids)
        self._tally = SpeculationTally()
        self._finish_reason = types_pb2.FINISH_REASON_UNSPECIFIED
        self._stop = ""
        self.session = Session(
            next(_NUMBERS),
            prepared.prompt_token_ids,
            prepared.resume_token_ids,
            prepared.params,
            prepared.speculation,
            tokenizer.vocabulary_size,
            self,
            trace.traceparent,
            deadline,
        )

    # What the session says

    def on_round(self, session: Session, finished: Round, verdict: target_pb2.Verdict) -> None:
        self._queue.append((finished, verdict))
        if session.awaits_candidates and self._first_token_at:
            self._dispatcher.give_way.hold(self._news)
        else:
            self._news.set()
        self._dispatcher.on_round(session, finished)
        if self._trace.traceparent:
            self._trace.round(
                session.session_id,
                finished.index,
                finished.started_unix_ns,
                finished.ended_unix_ns,
                span_attributes.verdict_attributes(verdict),
            )

    def on_candidates(self, session: Session) -> None:
        self._dispatcher.give_way.release(self._news)

    def on_failure(self, session: Session, error: ForerunError) -> None:
        self._error = error
        self._news.set()

    @property
    def buffered_tokens(self) -> int:
        """Tokens that wait for the client or for their text to be complete."""
        return sum(len(verdict.token_ids) for _, verdict in self._queue) + self._output.held_tokens

    # What the client gets

    async def responses(self) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
        """Everything for the client, in order. Raises the ForerunError that ends the request early."""
        yield gateway_pb2.GenerateResponse(started=self._started())
        self._replay()
        if not self._finish_reason:
            self.session.allow(self.session.committed_length + self._credit)
            self._dispatcher.open(self.session, time.monotonic())
        while not self._finish_reason:
            await self._wait()
            chunk = self._take()
            if chunk is not None:
                yield gateway_pb2.GenerateResponse(chunk=chunk)
            if not self._finish_reason:
                self._raise_limit()
        self.close()
        yield gateway_pb2.GenerateResponse(finished=self._finished())

    @property
    def usage(self) -> span_attributes.Attributes:
        """What came out, for the request's span."""
        tally = self._tally
        return span_attributes.usage_attributes(
            input_tokens=self.session.prompt_length,
            output_tokens=self._released,
            finish_reason=types_pb2.FinishReason.Name(self._finish_reason).removeprefix("FINISH_REASON_").lower(),
            time_to_first_token_s=self._first_token_at - self._arrived if self._first_token_at else None,
            rounds=tally.rounds,
            drafted=tally.drafted,
            accepted=tally.accepted,
        )

    def close(self) -> None:
        """Frees what the request holds on all services."""
        self._dispatcher.close(self.session)

    def _raise_limit(self) -> None:
        """Gives the target leave for what the client has taken; in large portions, as each is a message."""
        limit = self._taken_length() + self._credit
        if limit - self.session.commit_limit >= max(1, self._credit // 2) and self.session.allow(limit):
            self._dispatcher.on_change(self.session)

    def _taken_length(self) -> int:
        """Committed tokens that left the queue: the client has them, or they wait for the rest of their text."""
        return self.session.committed_length - sum(len(verdict.token_ids) for _, verdict in self._queue)

    async def _wait(self) -> None:
        """Until there is something to send. Raises DeadlineExceeded, or what made the session fail."""
        if self.session.deadline is None:
            await self._wait_for_news()
        else:
            try:
                async with asyncio.timeout(max(0.0, self.session.deadline - time.monotonic())):
                    await self._wait_for_news()
            except TimeoutError:
                raise DeadlineExceeded("the deadline passed before the answer was complete") from None
        if not self._queue and self._error is not None:
            raise self._error

    async def _wait_for_news(self) -> None:
        while not self._queue and self._error is None:
            self._news.clear()
            await self._news.wait()
            await asyncio.sleep(0)  # the services hear of it first: they work while the client reads

    def _take(self) -> gateway_pb2.Chunk | None:
        """All that is queued as one chunk; None if its text is not complete yet."""
        deltas: list[Delta] = []
        rounds: list[Round] = []
        while self._queue and not self._finish_reason:
            finished, verdict = self._queue.popleft()
            deltas += self._push(verdict)
            if self._stop:
                released = self._released + sum(len(delta.tokens) for delta in deltas)
                finished = finished.cut(self.session.prompt_length + released - verdict.start_position)
            self._tally.add(finished)
            self._metrics.add_round(finished)
            rounds.append(finished)
        if self._finish_reason:
            self._queue.clear()  # a stop string cut before what follows
        return self._chunk(deltas, rounds)

    def _time(self, tokens: int) -> None:
        """Notes when tokens went out."""
        now = time.monotonic()
        if not self._first_token_at:
            self._first_token_at = now
            self._metrics.add_first(now - self._arrived)
        elif tokens:
            self._metrics.add_tokens(tokens, now - self._last_chunk_at)
        self._last_chunk_at = now

    def _push(self, verdict: target_pb2.Verdict) -> list[Delta]:
        ends = verdict.finish_reason == types_pb2.FINISH_REASON_STOP
        deltas = [self._output.push(_tokens(verdict), ends=ends)]
        if deltas[0].stop is None and verdict.finish_reason:
            deltas.append(self._output.finish())
        stop = next((delta.stop for delta in deltas if delta.stop is not None), None)
        if stop is not None:
            self._stop = stop
            self._finish_reason = types_pb2.FINISH_REASON_STOP
        else:
            self._finish_reason = verdict.finish_reason
        return deltas

    def _replay(self) -> None:
        """Puts detokenizer and stop matcher where the tokens that the client has left them."""
        resumed = self._prepared.resume_token_ids
        if not resumed:
            return
        params = self._prepared.params
        ends = params.ends(self._served.end_token_ids)
        ended = resumed[-1] in ends and len(resumed) > params.min_tokens
        stop = self._output.replay([OutputToken(token_id) for token_id in resumed], ends=ended)
        if stop is not None or ended:
            self._stop = stop or ""
            self._finish_reason = types_pb2.FINISH_REASON_STOP
        elif len(resumed) >= params.max_tokens or self.session.committed_length >= self._served.context_length:
            self._finish_reason = types_pb2.FINISH_REASON_LENGTH

    # Messages

    def _started(self) -> gateway_pb2.Started:
        return gateway_pb2.Started(
            request_id=self.request_id,
            prompt_token_ids=self._prepared.prompt_token_ids,
            seed=self._prepared.params.seed,
            model=self._served.model_id,
            model_revision=self._served.model_revision,
            trace_id=self._trace.trace_id,
        )

    def _chunk(self, deltas: Sequence[Delta], rounds: Sequence[Round]) -> gateway_pb2.Chunk | None:
        tokens = [token for delta in deltas for token in delta.tokens]
        self._time(len(tokens))
        self._released += len(tokens)
        chunk = gateway_pb2.Chunk(
            text="".join(delta.text for delta in deltas), token_ids=[token.token_id for token in tokens]
        )
        if self._prepared.params.logprobs is not None:
            chunk.logprobs.extend(_logprobs_message(token.logprobs) for token in tokens if token.logprobs is not None)
            chunk.token_texts.extend(self._tokenizer.token_text(token.token_id) for token in tokens)
        if self._prepared.include_rounds:
            chunk.rounds.extend(self._round_message(finished) for finished in rounds)
        return chunk if chunk.token_ids or chunk.text or chunk.rounds else None

    def _round_message(self, finished: Round) -> gateway_pb2.Round:
        text = self._tokenizer.token_text
        return gateway_pb2.Round(
            index=finished.index,
            draft_token_ids=finished.draft_token_ids,
            draft_texts=[text(token_id) for token_id in finished.draft_token_ids],
            committed_token_ids=finished.committed_token_ids,
            committed_texts=[text(token_id) for token_id in finished.committed_token_ids],
            accepted_count=finished.accepted_count,
            epoch=finished.epoch,
            round_ns=max(0, finished.ended_unix_ns - finished.started_unix_ns),
            step_ns=finished.step_ns,
            wait_ns=finished.wait_ns,
            draft_ns=finished.draft_ns,
            batch_size=finished.batch_size,
        )

    def _finished(self) -> gateway_pb2.Finished:
        tally = self._tally
        return gateway_pb2.Finished(
            finish_reason=self._finish_reason,
            stop=self._stop,
            prompt_tokens=self.session.prompt_length,
            completion_tokens=self._released,
            speculation=gateway_pb2.SpeculationUsage(
                rounds=tally.rounds,
                drafted_tokens=tally.drafted,
                accepted_tokens=tally.accepted,
                accepted_per_position=tally.accepted_per_position,
                drafted_per_position=tally.drafted_per_position,
                mean_accepted_length=tally.mean_accepted_length,
                rollbacks=tally.rollbacks,
            ),
            timing=self._timing(),
        )

    def _timing(self) -> gateway_pb2.Timing:
        now = time.monotonic()
        first = self._first_token_at or now
        later_tokens = self._released - len(self._prepared.resume_token_ids) - 1
        return gateway_pb2.Timing(
            time_to_first_token_ns=round((first - self._arrived) * 1e9),
            time_per_output_token_ns=round((now - first) / later_tokens * 1e9) if later_tokens > 0 else 0,
            total_ns=round((now - self._arrived) * 1e9),
            queue_ns=round((self._admitted - self._arrived) * 1e9),
        )


def _tokens(verdict: target_pb2.Verdict) -> list[OutputToken]:
    if not verdict.logprobs:
        return [OutputToken(token_id) for token_id in verdict.token_ids]
    return [
        OutputToken(
            token_id,
            TokenLogprobs(said.logprob, tuple(zip(said.top_token_ids, said.top_logprobs, strict=True))),
        )
        for token_id, said in zip(verdict.token_ids, verdict.logprobs, strict=True)
    ]


def _logprobs_message(logprobs: TokenLogprobs) -> types_pb2.TokenLogprobs:
    return types_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=[token_id for token_id, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )
