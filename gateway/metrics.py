"""What a gateway counts for Prometheus: requests, latencies, speculation, and how its replicas are.

Names that begin with `vllm:` are vLLM's, so that dashboards made for it work here. Counters are raw; ratios, such as
the acceptance rate, are a query's business.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from forerun.metrics import LATENCY_BUCKETS, LoopCollector, counter, gauge
from forerun.v1 import gateway_pb2
from gateway.round import Round, SpeculationTally

if TYPE_CHECKING:
    from gateway.dispatcher import Dispatcher
    from gateway.service import GatewayService


class RequestMetrics:
    """Counted as requests go on. All methods are called on the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.speculation = SpeculationTally()
        self.prompt_tokens = 0
        self.wait_ns = 0
        self._requests = Counter(
            "forerun_requests", "Requests that ended, by status code.", ["code"], registry=self.registry
        )
        self._first = self._histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.")
        self._between = self._histogram("vllm:inter_token_latency_seconds", "Between tokens, over each message's.")
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.")

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(name, help, buckets=LATENCY_BUCKETS, registry=self.registry)

    def add_prompt(self, tokens: int) -> None:
        """A request's prompt is about to be computed."""
        self.prompt_tokens += tokens

    def add_round(self, finished: Round) -> None:
        """A round's tokens are the client's."""
        self.speculation.add(finished)
        self.wait_ns += finished.wait_ns

    def add_first(self, seconds: float) -> None:
        """A request's first token came so long after it."""
        self._first.observe(seconds)

    def add_tokens(self, tokens: int, seconds: float) -> None:
        """So many tokens in one message, so long after the one before."""
        for _ in range(tokens):
            self._between.observe(seconds / tokens)

    def end(self, code: str, seconds: float) -> None:
        """A request ended."""
        self._requests.labels(code).inc()
        self._whole.observe(seconds)


def registry_for(service: GatewayService, dispatcher: Dispatcher) -> CollectorRegistry:
    """The registry with all there is. To be called on the event loop."""

    def read() -> list[Metric]:
        return [*_speculation(service.metrics), *_now(service, dispatcher)]

    registry = service.metrics.registry
    registry.register(LoopCollector(asyncio.get_running_loop(), read))
    return registry


def _speculation(metrics: RequestMetrics) -> Iterable[Metric]:
    tally = metrics.speculation
    yield counter("vllm:prompt_tokens", "Tokens of prompts.", metrics.prompt_tokens)
    yield counter("vllm:generation_tokens", "Tokens committed and taken by clients.", tally.committed)
    yield counter("forerun_rounds", "Rounds, plain ones included.", tally.rounds)
    yield counter("vllm:spec_decode_num_drafts", "Rounds that verified candidates.", _at(tally.drafted_per_position, 0))
    yield counter("vllm:spec_decode_num_draft_tokens", "Candidates verified.", tally.drafted)
    yield counter("vllm:spec_decode_num_accepted_tokens", "Candidates accepted.", tally.accepted)
    yield counter("forerun_rollbacks", "Rounds in which a candidate was refuted.", tally.rollbacks)
    yield counter("forerun_wait_seconds", "That targets waited for candidates, over all rounds.", metrics.wait_ns / 1e9)
    by_position = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos", "Candidates accepted, by position.", labels=["position"]
    )
    for position, accepted in enumerate(tally.accepted_per_position or [0]):
        by_position.add_metric([str(position)], accepted)
    yield by_position


def _now(service: GatewayService, dispatcher: Dispatcher) -> Iterable[Metric]:
    yield gauge("vllm:num_requests_running", "Requests being answered.", service.running_requests)
    yield gauge("vllm:num_requests_waiting", "Requests that wait for their turn.", service.waiting_requests)
    yield gauge("forerun_buffered_tokens", "Tokens that wait for clients.", service.buffered_tokens)
    yield gauge("forerun_draft_length", "Candidates a round at the present load.", dispatcher.draft_length)
    replicas = GaugeMetricFamily("forerun_replicas", "Model services, by kind and state.", labels=["kind", "state"])
    for kind, links in (("target", dispatcher.targets), ("draft", dispatcher.drafts)):
        states = Tally(int(link.state) for link in links)
        for state in gateway_pb2.ReplicaState.values()[1:]:
            name = gateway_pb2.ReplicaState.Name(state).removeprefix("REPLICA_STATE_").lower()
            replicas.add_metric([kind, name], states[state])
    yield replicas


def _at(values: list[int], index: int) -> int:
    return values[index] if index < len(values) else 0
