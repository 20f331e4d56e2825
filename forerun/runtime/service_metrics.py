"""A model service's statistics as metrics for Prometheus: the counters that `GetStats` gives, under lasting names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from forerun.metrics import LoopCollector, counter, gauge
from forerun.v1 import types_pb2

GAUGES = {
    "open_sessions": ("forerun_sessions", "Open sessions, over all gateways."),
    "open_streams": ("forerun_streams", "Connected gateways."),
    "queued_entries": ("forerun_queued_entries", "Entries that wait to be written to gateways."),
}
COUNTERS = {
    "steps": ("forerun_steps", "Forward passes of a target, or proposal steps of a draft."),
    "rounds": ("forerun_rounds", "Verdicts given."),
    "drafted_tokens": ("forerun_drafted_tokens", "Candidates verified by a target, or proposed by a draft."),
    "accepted_tokens": ("forerun_accepted_tokens", "Candidates accepted."),
    "committed_tokens": ("forerun_committed_tokens", "Tokens committed."),
    "rollbacks": ("forerun_rollbacks", "Times a draft truncated its sequence."),
    "stale_entries": ("forerun_stale_entries", "Entries dropped because they were out of date or left a gap."),
    "failed_sessions": ("forerun_failed_sessions", "Sessions ended by a fault of their own."),
    "preemptions": ("forerun_preemptions", "Sequences whose cache was taken away to make room."),
    "reused_prompt_tokens": ("forerun_reused_prompt_tokens", "Prompt tokens found in the cache."),
}


def service_metrics(info: types_pb2.ServiceInfo, stats: types_pb2.ServiceStats) -> Iterable[Metric]:
    """All of them, now."""
    labels = {"model_name": info.model_id}
    for field, (name, help) in GAUGES.items():
        yield gauge(name, help, getattr(stats, field), labels)
    for field, (name, help) in COUNTERS.items():
        yield counter(name, help, getattr(stats, field), labels)
    used = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
    yield gauge("vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", used, labels)
    yield gauge("forerun_max_sessions", "Sessions that may be open at once.", info.max_sessions, labels)


def registry_for(info: types_pb2.ServiceInfo, read_stats: Callable[[], types_pb2.ServiceStats]) -> CollectorRegistry:
    """A registry with them. To be called on the service's event loop."""
    registry = CollectorRegistry()
    loop = asyncio.get_running_loop()
    registry.register(LoopCollector(loop, lambda: service_metrics(info, read_stats())))
    return registry
