"""Settings: which source wins, what is refused, and that a child process gets exactly its parent's config."""

import argparse
import dataclasses
from typing import Any

import pytest

from forerun import config
from forerun.config import ConfigError, DraftConfig, GatewayConfig, TargetConfig


def parsed(kind: type[Any], *words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, kind)
    return vars(parser.parse_args(words))


def test_a_flag_beats_a_variable_and_a_variable_beats_the_default() -> None:
    environment = {"FORERUN_PORT": "7", "FORERUN_HOST": "::1"}
    resolved = config.resolve(TargetConfig, parsed(TargetConfig, "--port", "8"), environment)
    assert (resolved.port, resolved.host, resolved.block_size) == (8, "::1", TargetConfig().block_size)


def test_a_variable_that_names_the_service_beats_one_for_all() -> None:
    environment = {"FORERUN_DEVICE": "cpu", "FORERUN_DRAFT_DEVICE": "cuda:1"}
    assert config.resolve(DraftConfig, {}, environment, prefix="draft").device == "cuda:1"
    assert config.resolve(TargetConfig, {}, environment, prefix="target").device == "cpu"


@pytest.mark.parametrize("kind", [TargetConfig, DraftConfig, GatewayConfig, config.CacheConfig])
def test_a_child_gets_its_parents_config_through_flags(kind: type[Any]) -> None:
    changed = dataclasses.replace(kind(), **{"drafts": ()} if kind is GatewayConfig else {})
    assert config.resolve(kind, parsed(kind, *config.flags_for(changed)), {}) == changed


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        (TargetConfig, {"port": "-1"}, "--port: -1 is too small, at least 0"),
        (TargetConfig, {"port": "65536"}, "--port: 65536 is too large, at most 65535"),
        (TargetConfig, {"port": "x"}, "--port: 'x' is not a whole number"),
        (TargetConfig, {"dtype": "int8"}, "--dtype: 'int8' is not one of auto, float32, bfloat16, float16"),
        (TargetConfig, {"grace_s": "nan"}, "--grace-s: nan is not a finite number"),
        (DraftConfig, {"ngram_min": "5"}, "ngram_max: 4 is less than ngram_min"),
        (GatewayConfig, {"draft_length": "8", "window": "4"}, "window: 4 is less than draft_length"),
        (GatewayConfig, {"reconnect_min_s": "9"}, "reconnect_max_s: 5 is less than reconnect_min_s"),
    ],
)
def test_a_bad_value_is_refused_with_the_settings_name(kind: type[Any], flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        config.resolve(kind, flags, {})


def test_a_bad_variable_is_named_as_the_variable() -> None:
    with pytest.raises(ConfigError, match="FORERUN_TARGET_THREADS: 'many' is not a whole number"):
        config.resolve(TargetConfig, {}, {"FORERUN_TARGET_THREADS": "many"}, prefix="target")


def test_a_misspelt_variable_is_refused_with_the_likely_one() -> None:
    with pytest.raises(ConfigError, match="did you mean FORERUN_TARGET_MODEL"):
        config.resolve(GatewayConfig, {}, {"FORERUN_TARGT_MODEL": "x"})


def test_lists_may_be_empty_and_ignore_blanks() -> None:
    assert config.resolve(GatewayConfig, {"drafts": ""}, {}).drafts == ()
    assert config.resolve(GatewayConfig, {"targets": "a:1, b:2,"}, {}).targets == ("a:1", "b:2")


def test_every_setting_has_a_flag_and_a_help_text() -> None:
    for kind in (config.CacheConfig, config.ClientConfig, *config.SERVICES.values()):
        parser = argparse.ArgumentParser()
        config.add_flags(parser, kind)
        text = parser.format_help()
        for item in dataclasses.fields(kind):
            assert f"--{item.name.replace('_', '-')}" in text
            assert item.metadata["help"]
