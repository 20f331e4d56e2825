"""Settings: which source wins, what is refused, and that a child process gets exactly its parent's config."""

import argparse
import dataclasses
from pathlib import Path
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


def written(folder: Path, text: str) -> dict[str, str]:
    """The flag that names a settings file with this text."""
    path = folder / "forerun.toml"
    path.write_text(text)
    return {"config": str(path)}


def test_a_variable_beats_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, '[target]\nport = 7\nhost = "::1"\nmax_patience_ms = 5\n')
    found = config.look_up(TargetConfig, file | {"device": "cpu"}, {"FORERUN_PORT": "8"}, "target")
    path = file["config"]
    assert found["port"] == (8, "FORERUN_PORT")
    assert found["host"] == ("::1", f"{path}: [target] host")
    assert found["max_patience_ms"] == (5.0, f"{path}: [target] max_patience_ms")
    assert found["device"] == ("cpu", "--device")
    assert found["block_size"] == (TargetConfig().block_size, "")


def test_each_service_reads_its_own_table_and_what_is_nobodys_stands_above(tmp_path: Path) -> None:
    file = written(
        tmp_path, 'cache = "/c"\naddress = "g:1"\n[draft]\nport = 7\n[gateway]\ndrafts = []\n[up]\nthreads = 3\n'
    )
    assert config.resolve(TargetConfig, file, {}).port == TargetConfig().port
    assert config.resolve(DraftConfig, file, {}).port == 7
    assert config.resolve(GatewayConfig, file, {}).drafts == ()
    assert config.resolve(config.UpConfig, file, {}).threads == 3
    assert config.resolve(config.CacheConfig, file, {}).cache == "/c"
    assert config.resolve(config.ClientConfig, file, {}).address == "g:1"


def test_the_file_may_be_named_by_a_variable_and_the_flag_goes_first(tmp_path: Path) -> None:
    by_flag = written(tmp_path, "[target]\nport = 7\n")
    (tmp_path / "other.toml").write_text("[target]\nport = 8\n")
    environment = {"FORERUN_CONFIG": str(tmp_path / "other.toml")}
    assert config.resolve(TargetConfig, {}, environment).port == 8
    assert config.resolve(TargetConfig, by_flag, environment).port == 7


def test_no_file_is_read_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "[target]\nport = 7\n")
    monkeypatch.chdir(tmp_path)
    assert config.resolve(TargetConfig, {}, {}).port == TargetConfig().port


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[target]\nprot = 1", "[target] has no setting prot; did you mean port?"),
        ("[draft]\nwindow = 3", "[draft] has no setting window; did you mean [gateway] window?"),
        ("[tagret]\nport = 1", "no service has a table [tagret]; did you mean [target]?"),
        ("port = 7", "above the tables there is no setting port; did you mean [target] port or"),
        ("cash = '/c'", "above the tables there is no setting cash; did you mean cache?"),
        ("target = 'm'", "target is a table: write [target], and its settings below"),
        ("[target]\nport = '7'", "[target] port: '7' is not a whole number"),
        ("[target]\nport = true", "[target] port: true is not a whole number"),
        ("[up]\nthreads = 1.5", "[up] threads: 1.5 is not a whole number"),
        ("[target]\nmodel = 1", "[target] model: 1 is not a string"),
        ("[target]\ngrace_s = 'x'", "[target] grace_s: 'x' is not a number"),
        ("[gateway]\ndrafts = 'a:1'", "[gateway] drafts: 'a:1' is not a list of strings"),
        ("[gateway]\ndrafts = [1]", "[gateway] drafts: [1] is not a list of strings"),
        ("[target]\nport = 70000", "[target] port: 70000 is too large, at most 65535"),
        ("[target]\ngrace_s = nan", "[target] grace_s: nan is not a finite number"),
        ("[target]\ndtype = 'int8'", "[target] dtype: 'int8' is not one of auto, float32"),
        ("[gateway\n", "is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused_with_file_table_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        for kinds in config.TABLES.values():
            for kind in kinds:
                config.look_up(kind, file, {})
    assert str(refused.value).startswith(f"{file['config']}: {message}")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: no such file or directory"):
        config.resolve(TargetConfig, {"config": str(tmp_path / "none.toml")}, {})
