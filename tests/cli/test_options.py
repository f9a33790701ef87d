"""Every field has its flag; vLLM's flags are accepted, or refused with a reason."""

from __future__ import annotations

import logging
import re
import shlex
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.engine_options import engine_arguments, model_of
from octavo.cli.execute import make_parser
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.server_options import server_settings
from octavo.core.config import ConfigError
from octavo.options.engine import NOT_OPTIONS, EngineArguments, read_arguments
from octavo.options.foreign import FIXED, INERT, MISSING
from octavo.options.server import ServerSettings
from octavo.options.speculation import SpeculativeConfig
from octavo.options.transport import ServerSettingsError

KEY = "a-long-enough-key"


@cache
def serve_parser() -> Parser:
    return make_parser(COMMANDS["serve"])


def engine(*words: str) -> EngineArguments:
    return engine_arguments(serve_parser().parse_args(words))


def server(*words: str) -> ServerSettings:
    return server_settings(serve_parser().parse_args(words))


@pytest.mark.parametrize("command", ["serve", "run", "fit"])
def test_every_field_of_an_engine_has_a_flag(command: str) -> None:
    destinations = {action.dest for action in make_parser(COMMANDS[command])._actions}
    for field in fields(EngineArguments):
        assert field.name in destinations or field.name in NOT_OPTIONS


def test_every_field_of_the_server_has_a_flag() -> None:
    destinations = {action.dest for action in make_parser(COMMANDS["serve"])._actions}
    spelled_otherwise = {"api_keys": "api_key"}
    for field in fields(ServerSettings):
        assert spelled_otherwise.get(field.name, field.name) in destinations, field.name


def test_defaults_are_the_fields_own() -> None:
    assert engine() == EngineArguments()
    assert server() == ServerSettings()


def test_an_engine_as_asked_for() -> None:
    asked = engine(
        *("some/model", "--max-model-len", "32k", "--kv-cache-memory", "2GiB", "--max-num-seqs=8"),
        *("--no-enable-prefix-caching", "--dtype", "bfloat16", "--seed", "-3"),
        *("--max-num-batched-tokens", "1K", "--scheduling-policy", "priority"),
        *("--preallocate-kv-cache", "--itl-goal", "0.05", "--ttft-goal=2"),
    )
    assert asked == EngineArguments(
        model="some/model",
        max_model_len=32_000,
        kv_cache_memory_bytes=2 << 30,
        max_num_seqs=8,
        enable_prefix_caching=False,
        dtype="bfloat16",
        seed=-3,
        max_num_batched_tokens=1024,
        scheduling_policy="priority",
        preallocate_kv_cache=True,
        itl_goal=0.05,
        ttft_goal=2.0,
    )


def test_the_model_may_be_named_in_two_ways_but_once() -> None:
    assert engine("--model", "x").model == engine("x").model == "x"
    arguments = make_parser(COMMANDS["serve"]).parse_args(["x", "--model", "y"])
    with pytest.raises(UsageError, match="two models are named, 'x' and --model 'y'"):
        model_of(arguments)


def test_a_model_may_be_served_by_several_names() -> None:
    config = server("m", "--served-model-name", "a", "b", "a", "--strict")
    assert config.served_names == ("a", "b")
    assert ServerSettings(served_model_name="a").served_names == ("a",)
    for words in (["a", "m"], ["a", "b", "c d"]):
        with pytest.raises(UsageError, match=f"is '{words[-1]}' the model, or a name") as caught:
            engine("--served-model-name", *words)
        command = shlex.join(["octavo", "serve", words[-1], "--served-model-name", *words[:-1]])
        assert str(caught.value).endswith(f"Put the model first: {command}")
    assert engine("--served-model-name", "a").model == engine().model
    assert engine("--served-model-name", "a", "--model", "m").model == "m"


def test_a_template_may_stand_on_the_command_line() -> None:
    assert server("--chat-template", "{{ messages }}").chat_template == "{{ messages }}"


def test_underscores_are_dashes_and_auto_is_what_fits() -> None:
    for words in (("--max_model_len", "4096"), ("--max_model_len=4096",)):
        assert engine("m", *words).max_model_len == 4096
    for text in ("auto", "-1"):
        assert engine("m", "--max-model-len", text).max_model_len is None
    with pytest.raises(
        UsageError, match=r"no option --max_modl_len; did you mean --max-model-len\? "
    ):
        engine("m", "--max_modl_len", "5")
    with pytest.raises(UsageError, match="no option --enigma; see"):
        engine("m", "--enigma", "5")


def test_defaults_of_sampling_parameters_have_vllms_flags() -> None:
    asked = engine("--generation-config", "vllm", "--override-generation-config", '{"top_k": 3}')
    assert asked.generation_config == "vllm"
    assert asked.override_generation_config == {"top_k": 3}
    assert engine("--generation-config", "auto") == EngineArguments()


def test_speculation_is_a_json_object_or_short_flags() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 3}'
    expected = SpeculativeConfig("ngram", 7, 3, 2)
    assert engine("--speculative-config", text).speculative_config == expected
    assert engine("--spec-tokens", "3").speculative_config == SpeculativeConfig("ngram", 3)
    assert engine("--spec-method=ngram").speculative_config == SpeculativeConfig("ngram")
    with pytest.raises(UsageError, match="--spec-tokens and the key num_speculative_tokens of"):
        engine("--speculative-config", text, "--spec-tokens", "3")
    both = engine("--speculative-config.prompt_lookup_max=3", "--spec-method=ngram")
    assert both.speculative_config == SpeculativeConfig("ngram", 5, 3, 2)
    drafter = engine("--spec-tokens", "8", "--speculative-config", '{"model": "x"}')
    assert drafter.speculative_config == SpeculativeConfig("auto", 8, model="x")
    for wrong in ("{", "[]"):
        with pytest.raises(ConfigError, match="speculative_config: "):
            engine("--spec-tokens", "8", "--speculative-config", wrong)
    assert engine("--spec-method", "mtp").speculative_config == SpeculativeConfig("mtp")
    with pytest.raises(UsageError, match="invalid choice: 'mpt'"):
        engine("--spec-method", "mpt")
    with pytest.raises(ConfigError, match="there is no key 'methods'; did you mean method"):
        engine("--speculative-config", '{"methods": "ngram"}')
    with pytest.raises(ConfigError, match=r"num_speculative_tokens=0 must be from 1 to 64"):
        engine("--spec-tokens", "0")


def test_short_flags_are_vllms() -> None:
    words = ("-tp=1", "-pp", "1", "-dp", "1", "-dcp", "1", "-q", "None", "-O3", "-O", "0")
    assert engine("m", *words, "-cc", '{"mode": 3}') == EngineArguments(model="m")
    assert engine("-tp", "2").tensor_parallel_size == 2
    assert engine("-pp", "2").pipeline_parallel_size == 2
    contexts = engine("-tp", "4", "-dcp", "2", "-pcp", "4")
    assert contexts.decode_context_parallel_size == 2
    assert contexts.prefill_context_parallel_size == 4
    with pytest.raises(ConfigError, match="size=2 must divide tensor_parallel_size=3"):
        engine("-tp", "3", "-dcp", "2")
    with pytest.raises(ConfigError, match="size=2 must divide tensor_parallel_size=1"):
        engine("-pcp", "2")


def test_flags_without_effect_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    alone = ("--trust-remote-code", "--cudagraph-metrics", "--disable-log-requests")
    assert engine(*alone, "--swap-space", "4", "m").model == "m"
    assert "swap_space (" in caplog.text
    caplog.clear()
    engine("--disable-uvicorn-access-log", "--max-log-len", "10")
    assert "disable_uvicorn_access_log (uvicorn is not used;" in caplog.text
    assert "max_log_len" in caplog.text


def test_flags_may_say_what_is_the_case_anyhow() -> None:
    words = ("--pipeline-parallel-size", "1", "--quantization", "None", "--kv-cache-dtype", "auto")
    assert engine(*words, "--no-fully-sharded-loras", "m") == EngineArguments(model="m")
    assert engine("--pipeline-parallel-size", "2").pipeline_parallel_size == 2
    with pytest.raises(ConfigError, match="fully_sharded_loras=True is not possible"):
        engine("--fully-sharded-loras")


def test_all_of_vllms_engine_flags_are_known() -> None:
    flags = make_parser(COMMANDS["serve"]).flags()
    assert all("--" + name.replace("_", "-") in flags for name in (*INERT, *FIXED))


@pytest.mark.parametrize("name", MISSING)
def test_options_of_what_there_is_not_get_the_reason_and_no_near_miss(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    for words in ([flag, "x"], [f"{flag}=x"], [flag]):
        with pytest.raises(UsageError, match=f"^{flag} is not supported: ") as caught:
            engine("m", *words)
        assert "did you mean" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"^{name} is not supported: "):
        read_arguments("m", {name: 1})


def test_no_option_is_in_two_tables() -> None:
    names = [*INERT, *FIXED, *MISSING, *(field.name for field in fields(EngineArguments))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--async-scheduling=yes", "--async-scheduling takes no value; write --async-scheduling, "),
        ("--async-scheduling=yes", "or --no-async-scheduling for the opposite"),
        ("--no-async-scheduling=1", "write --async-scheduling, or --no-async-scheduling for the"),
        ("--async_scheduling=true", "--async-scheduling takes no value"),
        (
            "--strict=1",
            "--strict takes no value; write --strict, or --no-strict for the opposite; see",
        ),
    ],
)
def test_a_flag_with_a_value_too_many_is_explained(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        engine("m", word)
    assert not engine("m", "--no-async-scheduling").async_scheduling


def test_a_server_as_asked_for(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}", "utf-8")
    config = server(
        *("--host", "0.0.0.0", "--port", "0", "--api-key", KEY, "--served-model-name", "it"),
        *("--allowed-origins", '["https://a.example", "https://b.example"]'),
        *("--allowed-host", "one", "--allowed-host", "two", "--no-explain", "--strict"),
        *("--max-body-bytes", "1MiB", "--drain-seconds", "2", "--metrics-names", "vllm"),
        *("--chat-template", str(template)),
    )
    assert config == ServerSettings(
        host="0.0.0.0",
        port=0,
        api_keys=(KEY,),
        served_model_name=("it",),
        allowed_origins=("https://a.example", "https://b.example"),
        allowed_hosts=("one", "two"),
        enable_explain=False,
        strict=True,
        max_body_bytes=1 << 20,
        drain_seconds=2.0,
        metrics_names="vllm",
        chat_template="{{ messages }}",
    )


@pytest.mark.parametrize("flag", ["--allowed-origins", "--cors-origins"])
@pytest.mark.parametrize(
    "words",
    [
        ["https://a.example,http://b.example:81/", "localhost"],
        ["https://a.example, http://b.example:81/ ,localhost"],
        ['["https://a.example", "http://b.example:81/"]', "localhost"],
    ],
)
def test_origins_may_be_given_with_commas(flag: str, words: list[str]) -> None:
    """A list that counted as one origin would let no page call; llama-server has commas too."""
    config = server(*[word for value in words for word in (flag, value)])
    assert config.allowed_origins == ("https://a.example", "http://b.example:81/", "localhost")


def test_keys_come_from_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfile-key-1\n", "utf-8")
    monkeypatch.setenv("OCTAVO_API_KEY", "environment-key, file-key-1")
    config = server("--api-key", KEY, "--api-key-file", str(file))
    assert config.api_keys == (KEY, "file-key-1", "environment-key")


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (
            ["--cache-scope", "all"],
            ServerSettingsError,
            "cache_scope='all' must be one of key, global",
        ),
        (["--allowed-origins", "[1]"], UsageError, "is not a JSON list of names"),
        (["--allowed-origins", "[x"], UsageError, "is not a JSON list of names"),
        (["--allowed-origins", "app.example"], ServerSettingsError, "the origin of no page"),
        (["--allowed-origins", "https://*.example"], ServerSettingsError, "the origin of no page"),
        (["--allowed-origins", "https://a.example/app"], ServerSettingsError, "origin of no page"),
        (["--allowed-origins", "localhost,"], ServerSettingsError, "has '', which is the origin"),
        (["--host", "0.0.0.0"], ServerSettingsError, "there is no API key"),
        (
            ["--api-key", "short", "--host", "0.0.0.0"],
            ServerSettingsError,
            "fewer than 8 characters",
        ),
        (["--api-key", ""], ServerSettingsError, "an API key is empty"),
        (["--root-path", "llm"], ServerSettingsError, "must begin with /"),
        (["--ssl-keyfile", "x"], ServerSettingsError, "no effect without ssl_certfile"),
        (["--ssl-cert-reqs", "3"], ServerSettingsError, "must be between 0 and 2"),
        (["--ssl-cert-reqs", "2"], ServerSettingsError, "needs ssl_ca_certs"),
        (
            ["--chat-template", "/no/such"],
            ConfigError,
            "chat_template='/no/such' cannot be read: no such file or directory; give a file",
        ),
        (["--chat-template", "/"], ConfigError, "cannot be read: is a directory"),
        (["--chat-template", "{% if %}"], ConfigError, "is not valid in line 1"),
        (["--served-model-name", ""], ServerSettingsError, "must have 1 to 512 characters"),
        (["--api-key-file", "/"], ServerSettingsError, "key file / cannot be read: is a directory"),
    ],
)
def test_a_server_that_cannot_be(words: list[str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        server(*words)


def test_levels() -> None:
    parse = make_parser(COMMANDS["serve"]).parse_args
    assert parse(["--uvicorn-log-level", "trace"]).log_level == "DEBUG"
    assert logging.getLevelName(logging.INFO) == parse([]).log_level
    with pytest.raises(UsageError, match="'loud' is not a level"):
        parse(["--log-level", "loud"])
