"""Variables of the environment are options, and `octavo config` says what each setting is from."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from octavo import env
from octavo.cli import main
from octavo.cli.commands import COMMANDS, OK, USAGE
from octavo.cli.execute import make_parser
from octavo.cli.serve import Settings, settings_of
from octavo.options.speculation import SpeculativeConfig

PARSER = make_parser(COMMANDS["serve"])


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables that are options, and keys, from the environment of the test."""
    for name in (*env.settings(), env.API_KEY, "OCTAVO_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def settings(*words: str) -> Settings:
    return settings_of(PARSER.parse_args(words))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[str, str]]:
    """Return what `octavo config` prints: the origin and the value of each setting."""
    capsys.readouterr()
    assert main(["config", *words]) == OK
    output = capsys.readouterr().out.splitlines()
    head = output[0]
    starts = head.index("from"), head.index("value")
    return {
        line[: starts[0]].strip(): (line[starts[0] : starts[1]].strip(), line[starts[1] :])
        for line in output[1:]
    }


def test_variables_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OCTAVO_MODEL": "some/model",
        "OCTAVO_PORT": "9001",
        "OCTAVO_MAX_MODEL_LEN": "32k",
        "OCTAVO_LOG_PROMPTS": "yes",
        "OCTAVO_ENABLE_PREFIX_CACHING": "off",
        "OCTAVO_STRICT": "0",
        "OCTAVO_SERVED_MODEL_NAME": "one,two",
        "OCTAVO_ALLOWED_HOSTS": '["a.example", "b.example"]',
        "OCTAVO_SPECULATIVE_CONFIG": '{"method": "ngram"}',
        "OCTAVO_LORA_MODULES": '{"name": "an-adapter", "path": "p,q"}',
        "OCTAVO_WATCHDOG_SECONDS": "7",
        "OCTAVO_TENSOR_PARALLEL_SIZE": "1",  # vLLM's, and harmless
        "OCTAVO_JOURNAL": "",  # as good as unset
    }.items():
        monkeypatch.setenv(name, value)
    server, timing, engine, *_ = settings()
    assert (engine.model, engine.max_model_len) == ("some/model", 32_000)
    assert (engine.enable_prefix_caching, engine.enable_lora) == (False, True)
    assert engine.speculative_config == SpeculativeConfig("ngram")
    assert (server.port, server.log_prompts, server.strict) == (9001, True, False)
    assert server.served_model_name == ("one", "two")
    assert server.allowed_hosts == ("a.example", "b.example")
    assert [(each.name, str(each.path)) for each in server.lora_modules] == [("an-adapter", "p,q")]
    assert (server.journal, timing.watchdog_seconds) == (None, 7)


def test_flags_go_before_variables_and_those_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax-num-seqs: 2\nidle-seconds: 3\nmodel: file\n", "utf-8")
    monkeypatch.setenv("OCTAVO_CONFIG", str(file))
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("OCTAVO_PORT", "5")
    server, _, engine, *_ = settings("--port", "6")
    found = (server.port, engine.max_num_seqs, server.idle_seconds, engine.model)
    assert found == (6, 4, 3, "file")
    assert settings("word").engine.model == "word"
    other = tmp_path / "other.yaml"
    other.write_text("idle-seconds: 8")
    server, _, engine, *_ = settings("--config", str(other))
    assert (server.idle_seconds, server.port, engine.model) == (8, 5, "smollm2")


def test_a_part_of_a_setting_replaces_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flags of single keys, and llama-server's two types of the cache, are the whole's."""
    file = tmp_path / "serve.yaml"
    file.write_text("speculative-config: {method: suffix}\nkv-cache-dtype: auto", "utf-8")
    monkeypatch.setenv("OCTAVO_CACHE_TYPE_K", "q8_0")
    monkeypatch.setenv("OCTAVO_CACHE_TYPE_V", "q8_0")
    engine = settings("--config", str(file), "--spec-method", "ngram").engine
    assert engine.speculative_config == SpeculativeConfig("ngram")
    assert engine.kv_cache_dtype == "int8"


def test_keys_of_an_object_may_be_several_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """llama-server's flags of sampling, each of which is a key of one setting here."""
    file = tmp_path / "serve.yaml"
    file.write_text("temp: 0.5\ntop-k: 3", "utf-8")
    words = ["--config", str(file)]
    assert settings(*words).engine.override_generation_config == {"temperature": 0.5, "top_k": 3}
    monkeypatch.setenv("OCTAVO_TEMP", "0.6")
    monkeypatch.setenv("OCTAVO_TOP_P", "0.9")
    assert settings(*words).engine.override_generation_config == {"temperature": 0.6, "top_p": 0.9}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OCTAVO_MAX_MODL_LEN", "5", "there is no option --max-modl-len; did you mean --max-model"),
        ("OCTAVO_IMAGE", "a:b", "there is no option --image"),
        ("OCTAVO_PORT", "many", "argument --port: invalid int value"),
        ("OCTAVO_PORT", "70000", "OCTAVO_PORT=70000 must be between 0 and 65535"),
        ("OCTAVO_STRICT", "perhaps", "'perhaps' must be true or false"),
        ("OCTAVO_DCP_Q_REPLICATE", "1", "--dcp-q-replicate is not supported"),
        ("OCTAVO_SERVED_MODEL_NAME", "[a", "is not a JSON list"),
        ("OCTAVO_SERVED_MODEL_NAME", ",", "has no value"),
        ("OCTAVO_SSL_CERTFILE", "", "the server would be open without it"),
        ("OCTAVO_API_KEY_FILE", " ", "the server would be open without it"),
        ("OCTAVO_CONFIG", "none.yaml", "none.yaml cannot be read"),
        *((f"OCTAVO_{name}", "1", "it is no setting") for name in ("HELP", "DEBUG", "SHOW")),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    name: str,
    value: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["config", "--show"]) == USAGE
    output, error = capsys.readouterr()
    assert not output
    assert message in error
    assert name in error or name == "OCTAVO_CONFIG"
    assert len(error.splitlines()) == 1


def test_two_names_of_a_setting_in_one_source_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_CTX_SIZE", "64")
    monkeypatch.setenv("OCTAVO_MAX_MODEL_LEN", "128")
    assert main(["config"]) == USAGE
    error = capsys.readouterr().err
    assert "OCTAVO_CTX_SIZE" in error
    assert "OCTAVO_MAX_MODEL_LEN" in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OCTAVO_PORT", "tcp://10.0.0.1:8000"),
        ("OCTAVO_GRPC_PORT", "tcp://10.0.0.1:50051"),
        ("OCTAVO_SERVICE_HOST", "10.0.0.1"),
        ("OCTAVO_METRICS_SERVICE_PORT_HTTP", "8000"),
        ("OCTAVO_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("OCTAVO_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("OCTAVO_NAME", "/web/octavo"),
        ("OCTAVO_ENV_LANG", "C.UTF-8"),
        ("OCTAVO_CACHE", "/somewhere"),
        ("OCTAVO_CPU_ISA", " scalar "),
        ("OCTAVO_CPU_THREADS", "2"),
        ("OCTAVO_CPU_CALIBRATION", "off"),
    ],
)
def test_variables_that_others_set_are_no_options(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every container of Kubernetes has those of each service, such as one named octavo."""
    monkeypatch.setenv(name, value)
    assert main(["config"]) == OK
    assert "all settings have their defaults" in capsys.readouterr().out


def test_each_setting_is_shown_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("max-num-seqs: 2\nspeculative-config: {method: ngram}", "utf-8")
    monkeypatch.setenv("OCTAVO_PORT", "5")
    monkeypatch.setenv("OCTAVO_API_KEY", "a-secret-key,another-secret")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    words = ["m", "--config", str(file), "--lora-modules", "name=place", "--api-key", "third-key"]
    given = shown(capsys, *words)
    assert given["model"] == ("MODEL", "m")
    assert given["port"] == ("OCTAVO_PORT", "5")
    assert given["max-num-seqs"] == (f"{file}: max-num-seqs", "2")
    assert given["speculative-config"][0] == f"{file}: speculative-config"
    assert given["lora-modules"][0] == "--lora-modules"
    assert given["enable-lora"] == ("follows from others", "true")
    assert given["allow-runtime-lora-updating"][0] == "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    assert given["api-keys"] == ("--api-key, OCTAVO_API_KEY", "3 (not shown)")
    everything = shown(capsys, "--show", *words)
    assert everything.items() >= given.items()
    assert everything["host"] == ("default", "127.0.0.1")
    assert everything["watchdog-seconds"] == ("default", "30.0")
    assert everything["log-level"] == ("default", "INFO")
    assert "a-secret-key" not in str(everything)
    assert "another-secret" not in str(everything)


def test_a_long_value_is_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}\n" * 100)
    origin, value = shown(capsys, "--chat-template", str(template))["chat-template"]
    assert origin == "--chat-template"
    assert len(value) < 250


def test_what_is_refused_when_serving_is_refused_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--host", "0.0.0.0"]) == USAGE
    assert "there is no API key" in capsys.readouterr().err


def test_a_setting_of_a_file_is_no_command(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    for text in ("debug: true", "help: true"):
        file.write_text(text)
        assert main(["config", "--config", str(file)]) == USAGE


def test_the_log_names_the_variables_that_are_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_MODEL", str(tmp_path / "nothing"))
    logging.getLogger("octavo.cli").setLevel(logging.NOTSET)
    assert main(["serve"]) != OK
    assert "variables: OCTAVO_MODEL" in capsys.readouterr().err
