"""The settings of adapters: contradictions are refused before a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.parsing import UsageError
from octavo.cli.server_options import server_settings, with_adapters
from octavo.core.config import ConfigError
from octavo.options.adapters import num_resident
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.named_adapters import NamedAdapter
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from tests.cli.test_options import engine


def settings(*words: str) -> ServerSettings:
    return server_settings(make_parser(COMMANDS["serve"]).parse_args(["m", *words]))


def modules(*words: str) -> tuple[NamedAdapter, ...]:
    return settings(*words).lora_modules


def test_flags_and_options_have_vllms_names() -> None:
    words = ["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "3", "--max-lora-rank", "64"]
    words += ("--lora-dtype", "bfloat16", "--lora-target-modules", "q_proj", "o_proj", "q_proj")
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3}
    options |= {"max_lora_rank": 64, "lora_dtype": "bfloat16"}
    options["lora_target_modules"] = ["q_proj", "o_proj"]
    arguments = read_arguments("m", options)
    assert engine("m", *words) == arguments
    assert arguments.lora_target_modules == ("q_proj", "o_proj")


def test_memory_has_room_for_the_adapters_of_a_step() -> None:
    assert num_resident(EngineArguments()) == 0
    assert num_resident(EngineArguments(enable_lora=True, max_loras=3)) == 12
    assert num_resident(EngineArguments(enable_lora=True, max_cpu_loras=5)) == 5


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_loras": 2}, "max_loras=2 is a setting of adapters"),
        ({"lora_target_modules": ["q_proj"]}, "lora_target_modules=.* is a setting of adapters"),
        ({"enable_lora": True, "max_lora_rank": 7}, "max_lora_rank=7 must be one of 1, 8, 16"),
        ({"enable_lora": True, "max_cpu_loras": 3}, "max_cpu_loras=3 is less than max_loras=4"),
        ({"enable_lora": True, "max_loras": 0}, "max_loras=0 must be"),
        ({"enable_lora": True, "lora_dtype": "int8"}, "lora_dtype='int8' must be one of"),
        ({"enable_lora": True, "lora_target_modules": []}, "lora_target_modules=.* must be 1 to"),
        ({"enable_lora": True, "lora_target_modules": ["a/b"]}, "must be 1 to 256 names"),
        ({"enable_lora": True, "max_lora_bytes": 1 << 60}, "max_lora_bytes=.* is more than"),
        ({"enable_lora": "yes"}, "enable_lora='yes' must be True or False"),
        ({"adapter_directory": "/"}, "there is no option 'adapter_directory'"),
        ({"enable_lora": True, "fully_sharded_loras": True}, "fully_sharded_loras=True is not"),
        ({"lora_extra_vocab_size": 256}, "lora_extra_vocab_size is not supported"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_arguments("m", options)


def test_adapters_are_named_as_in_other_servers() -> None:
    sql = NamedAdapter("sql", "/a/sql")
    assert modules("--lora-modules", "sql=/a/sql") == (sql,)
    both = modules(
        "--lora-modules",
        "sql=/a/sql",
        '{"name": "law", "path": "/a=b", "base_model_name": "base"}',
        "--lora-paths",
        "x=/x",
        "/a/y",
        '{"lora_name": "z", "lora_path": "/z", "pinned": true}',
    )
    assert both == (
        sql,
        NamedAdapter("law", "/a=b", "base"),
        NamedAdapter("x", "/x"),
        NamedAdapter("/a/y", "/a/y"),
        NamedAdapter("z", "/z"),
    )


def test_llama_servers_adapters_apply_to_all_requests() -> None:
    assert modules("--lora", "/a/sql.gguf") == (
        NamedAdapter("sql", "/a/sql.gguf", is_default=True),
    )
    half = NamedAdapter("sql", "/a/sql.gguf", scale=0.5, is_default=True)
    assert modules("--lora-scaled", "/a/sql.gguf", "0.5") == (half,)
    assert modules("--lora-scaled", "/a/sql.gguf:0.5") == (half,)
    (named,) = modules("--lora-scaled", "/a/sql.gguf:0.5", "--lora-init-without-apply")
    assert not named.is_default


def test_naming_adapters_switches_them_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_adapters({}, settings("--lora-modules", "a=/a")) == {"enable_lora": True}
    assert with_adapters({}, settings("--lora-directory", "/a")) == {"enable_lora": True}
    assert with_adapters({}, settings()) == {}
    with pytest.raises(UsageError, match="--no-enable-lora"):
        with_adapters({"enable_lora": False}, settings("--lora-modules", "a=/a"))
    assert not settings().allow_runtime_lora_updating
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    assert settings("--api-key", "a-key").allow_runtime_lora_updating
    with pytest.raises(ServerSettingsError, match="need an API key"):
        settings()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--lora-modules", "a"), "'a' must be NAME=PATH"),
        (("--lora-modules", "=x"), "'=x' must be NAME=PATH"),
        (("--lora-modules", "{"), "is not valid JSON"),
        (("--lora-modules", '{"name": "a"}'), "must have texts as name and path"),
        (("--lora-modules", '{"name": 1, "path": "x"}'), "must have texts as name and path"),
        (("--lora-modules", '{"name": "a", "pth": "x"}'), "there is no key 'pth'"),
        (("--lora-modules", " a=x"), "an adapter's name must have"),
        (("--lora-modules", "a=x", "a=y"), "is the name of two models or adapters"),
        (("--lora-modules", "m=x", "--served-model-name", "m"), "is the name of two models"),
        (("--lora-modules", "a=x", "b=y", "--max-lora-names", "1"), "max_lora_names=1"),
        (("--lora", "a", "--lora", "b"), "would both apply to each request"),
        (("--lora-scaled", "a", "b"), "the scale 'b' must be a number"),
        (("--lora-scaled", "a", "1", "2"), "expected a FILE and a SCALE"),
    ],
)
def test_adapters_that_cannot_be_named_are_refused(words: tuple[str, ...], error: str) -> None:
    with pytest.raises((UsageError, ServerSettingsError), match=error):
        settings(*words)
