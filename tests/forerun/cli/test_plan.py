"""What `forerun up` decides before it starts anything."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from forerun import config
from forerun.cli.failure import Failure
from forerun.cli.plan import Plan, make_plan, share_threads

FREE = {"port": "0", "target_port": "0", "draft_port": "0"}


def plan(flags: Mapping[str, Any] = {}, environment: Mapping[str, str] = {}, cpu_count: int = 4) -> Plan:
    return make_plan(FREE | dict(flags), environment, cpu_count)


def test_the_default_is_the_embedded_pair_and_nothing_but_the_target_is_pulled() -> None:
    made = plan()
    assert made.draft is not None
    assert (made.target.model, made.draft.model, made.draft.target) == (
        "smollm2-135m",
        "ngram+smollm2-135m-draft",
        "smollm2-135m",
    )
    assert made.models == ["smollm2-135m"]
    assert [spec.name for spec in made.specs] == ["gateway", "target", "draft"]
    assert [spec.required for spec in made.specs] == [True, True, False]


def test_the_gateway_is_told_the_ports_that_were_chosen() -> None:
    made = plan()
    assert made.draft is not None
    assert made.gateway.targets == (f"127.0.0.1:{made.target.port}",)
    assert made.gateway.drafts == (f"127.0.0.1:{made.draft.port}",)
    assert len({made.gateway.port, made.target.port, made.draft.port, 0}) == 4


def test_another_target_gets_the_ngram_draft_unless_one_is_named() -> None:
    unnamed = plan({"target": "owner/model"})
    assert unnamed.draft is not None and unnamed.draft.model == "ngram"
    assert unnamed.gateway.model == "owner/model"
    named = plan({"target": "owner/model", "draft": "owner/small"})
    assert named.models == ["owner/model", "owner/small"]


def test_no_draft_means_two_services() -> None:
    made = plan({"draft": "none"})
    assert made.draft is None
    assert made.gateway.drafts == ()
    assert [spec.name for spec in made.specs] == ["gateway", "target"]


def test_the_drafts_device_follows_the_targets_unless_given() -> None:
    assert getattr(plan({"device": "cuda:0"}).draft, "device", "") == "cuda:0"
    both = plan({"device": "cuda:0", "draft_device": "cuda:1"})
    assert (both.target.device, getattr(both.draft, "device", "")) == ("cuda:0", "cuda:1")


def test_variables_reach_their_service_and_general_names_cannot_hit_the_wrong_one() -> None:
    made = plan(environment={"FORERUN_TARGET_MAX_SESSIONS": "3", "FORERUN_MODEL": "x", "FORERUN_PORT": "1"})
    assert made.draft is not None
    assert (made.target.max_sessions, made.draft.max_sessions) == (3, 64)
    assert (made.target.model, made.draft.model) == ("smollm2-135m", "ngram+smollm2-135m-draft")


def test_a_command_carries_all_settings() -> None:
    made = plan({"dtype": "bfloat16", "draft_length": "6", "window": "12"})
    for spec, (name, kind) in zip(made.specs, [("gateway", "gateway"), ("target", "target_service")], strict=False):
        assert spec.command[1:3] == ("-m", kind)
        parser = argparse.ArgumentParser()
        config.add_flags(parser, config.SERVICES[name])
        config.add_flags(parser, config.CacheConfig)
        flags = vars(parser.parse_args(spec.command[3:]))
        assert config.resolve(config.SERVICES[name], flags, {}) == getattr(made, name)
        assert config.resolve(config.CacheConfig, flags, {}) == made.cache


def test_a_port_in_use_is_refused_with_the_flag_to_change_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Failure, match=r"for the target, is in use; .* --target-port"),
    ):
        plan({"target_port": str(taken.getsockname()[1])})


def test_a_bad_setting_is_refused_before_anything_starts() -> None:
    with pytest.raises(config.ConfigError, match="window: 4 is less than draft_length"):
        plan({"draft_length": "8", "window": "4"})


def test_threads_are_shared_by_who_computes_when() -> None:
    assert share_threads(8, "model", run_ahead=False) == (8, 4)
    assert share_threads(2, "model", run_ahead=False) == (2, 1)
    assert share_threads(8, "model", run_ahead=True) == (6, 2)
    assert share_threads(1, "model", run_ahead=True) == (1, 1)
    assert share_threads(8, "ngram", run_ahead=True) == (8, 1)


def test_given_thread_counts_are_kept() -> None:
    made = plan(environment={"FORERUN_TARGET_THREADS": "3", "FORERUN_DRAFT_THREADS": "2"})
    assert (made.target.threads, getattr(made.draft, "threads", 0)) == (3, 2)
