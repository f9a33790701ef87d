"""Flags of vLLM, llama-server and SGLang: each is followed, refused by name, or cannot matter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from octavo import env
from octavo.cli import main
from octavo.cli.commands import COMMANDS, USAGE
from octavo.cli.engine_options import engine_arguments
from octavo.cli.execute import make_parser
from octavo.cli.flags.foreign import ALONE
from octavo.cli.flags.other_servers import KEYS, OTHERS, SAME, check_other_flags
from octavo.cli.parsing import Parser, UsageError
from octavo.cli.server_options import server_settings
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.foreign import FIXED, INERT, MISSING, SYNONYMS
from octavo.options.server import ServerSettings
from octavo.options.speculation import SpeculativeConfig
from tests.damage.models import write_gguf_model

# The flags of `vllm serve` 0.33, with their short forms, and "!" behind those without a value.
VLLM = [
    line.split() for line in (Path(__file__).parent / "vllm_flags.txt").read_text().splitlines()
]


@cache
def serve_parser() -> Parser:
    return make_parser(COMMANDS["serve"])


@pytest.fixture
def parser() -> Parser:
    return serve_parser()


def engine(*words: str) -> EngineArguments:
    arguments = serve_parser().parse_args(words)
    check_other_flags(arguments)
    return engine_arguments(arguments)


def server(*words: str) -> ServerSettings:
    arguments = serve_parser().parse_args(words)
    check_other_flags(arguments)
    return server_settings(arguments)


def spellings() -> Iterator[tuple[str, bool]]:
    for words in VLLM:
        for flag in words:
            if flag != "!":
                yield flag, "!" in words


@pytest.mark.parametrize("is_alone", [True, False])
def test_no_flag_of_vllm_is_unknown(parser: Parser, is_alone: bool) -> None:
    """Each is a flag here too, or its error gives the reason."""
    for flag in (flag for flag, each in spellings() if each is is_alone):
        try:
            parser.parse_args([flag] if is_alone else [flag, "1"])
        except UsageError as error:
            told = str(error)
            for wrong in ("no option", "expected one argument", "one argument too many"):
                assert wrong not in told, told


def test_the_list_of_vllms_flags_is_whole() -> None:
    assert len(VLLM) > 300
    names = {flag.removeprefix("--").replace("-", "_") for flag, _ in spellings()}
    assert {"gpu_memory_utilization", "kv_transfer_config", "api_key", "config"} <= names
    assert not {name for name in ALONE if name in names} - {
        words[0].removeprefix("--").replace("-", "_") for words in VLLM if words[-1] == "!"
    }


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--device", "tpu"], "device"),
        (["--tokenizer-mode", "mistral"], "tokenizer_mode"),
        (["--api-server-count", "4"], "api_server_count"),
        (["--task", "transcription"], "task"),
        (["--model-impl", "transformers"], "model_impl"),
        (["--enable-log-outputs"], "enable_log_outputs"),
        (["--allowed-methods", '["GET"]'], "allowed_methods"),
        (["--allowed-headers", "[]"], "allowed_headers"),
        (["--logprobs-mode", "processed_logits"], "logprobs_mode"),
        (["--response-role", "robot"], "response_role"),
        (["--ignore-patterns", "*.safetensors"], "ignore_patterns"),
        (["--ignore-patterns", "*.bin", "model*"], "ignore_patterns"),
        (["--revision", "v1"], "revision"),
        (
            ["--structured-outputs-config", '{"disable_any_whitespace": true}'],
            "structured_outputs_config",
        ),
        (["--structured-outputs-config.reasoning_parser", "qwen3"], "structured_outputs_config"),
    ],
)
def test_what_cannot_be_done_is_refused(words: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.* is not possible: "):
        engine("m", *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "none"),
        ("--runner", "pooling"),
        ("--allowed-methods", '["*"]'),
        ("--ignore-patterns", "*.bin", "original/**/*"),
        ("--revision", "main"),
        ("--language-model-only",),
        ("--enable-reasoning",),
        ("--enable-sleep-mode",),
        ("--guided-decoding-backend", "xgrammar"),
        ("--structured-outputs-config", '{"backend": "guidance"}'),
        ("--structured-outputs-config.backend=xgrammar",),
        ("-cc.cudagraph_mode=FULL", "-O", "2"),
        ("--quantization", "None"),
    ],
)
def test_what_is_the_case_is_accepted(words: tuple[str, ...]) -> None:
    assert engine("m", *words) == EngineArguments(model="m")


def test_a_fixed_option_refuses_another_value() -> None:
    for name, (is_so, reason) in FIXED.items():
        patterns = ["*.json"] if name == "ignore_patterns" else {"other": 1}
        assert not is_so(patterns), name
        assert reason
        with pytest.raises(ConfigError, match=f"^{name}=.* is not possible: "):
            read_arguments("m", {name: patterns})


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["-c", "4096"], "max_model_len", 4096),
        (["--ctx-size", "0"], "max_model_len", None),
        (["--context-length=2048"], "max_model_len", 2048),
        (["-np", "3"], "max_num_seqs", 3),
        (["-t", "-1"], "num_threads", 0),
        (["--mem-fraction-static", "0.5"], "gpu_memory_utilization", 0.5),
        (["--disable-radix-cache"], "enable_prefix_caching", False),
        (["--no-enable-prefix-caching", "--cache-prompt"], "enable_prefix_caching", True),
        (["--temp", "0.5", "--top-k=3"], "override_generation_config", None),
        (["-q", "gguf"], "quantization", "gguf"),
        (["--tp", "2"], "tensor_parallel_size", 2),
        (["--tp", "2", "--ep-size", "2"], "enable_expert_parallel", True),
        (["-tp", "4", "-ep"], "enable_expert_parallel", True),
        (["--ep", "1"], "enable_expert_parallel", False),
        (["-ngl", "0", "-fa", "on", "--jinja", "--numa", "numactl"], "seed", 0),
    ],
)
def test_flags_of_other_servers_mean_the_same(words: list[str], name: str, value: object) -> None:
    found = getattr(engine("m", *words), name)
    expected = {"temperature": 0.5, "top_k": 3} if name == "override_generation_config" else value
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "task", "pooled"), [("none", "token_embed", None), ("mean", None, "MEAN")]
)
def test_no_pooling_is_the_vectors_of_tokens(kind: str, task: object, pooled: object) -> None:
    found = engine("m", "--pooling", kind).pooler_config
    assert found is not None
    assert (found.task, found.seq_pooling_type) == (task, pooled)


@pytest.mark.parametrize(
    "words",
    [("-m", "x.gguf"), ("-hf", "org/name:Q4_K_M"), ("--model-path", "x"), ("--model-id=x",)],
)
def test_the_model_has_other_servers_names_too(words: tuple[str, ...]) -> None:
    assert engine(*words).model == words[-1].rpartition("=")[2]


def test_servers_settings_have_other_names_too() -> None:
    config = server(
        *(
            "m",
            "-a",
            "me",
            "--ssl-cert-file",
            "c",
            "--ssl-key-file",
            "k",
            "--shutdown-timeout",
            "5",
        ),
        *("--max-num-queued-tokens", "99", "--api-prefix", "/llm"),
        *("--sse-keep-alive-interval", "3", "--chat-template-kwargs", '{"a": 1}'),
    )
    assert config == ServerSettings(
        served_model_name=("me",),
        ssl_certfile=Path("c"),
        ssl_keyfile=Path("k"),
        drain_seconds=5.0,
        max_waiting_tokens=99,
        root_path="/llm",
        ping_seconds=3.0,
        default_chat_template_kwargs={"a": 1},
    )


@pytest.mark.parametrize(
    "words", [("m", "-a", "me, fim"), ("--alias=me,fim", "m"), ("-a", "me,fim", "m")]
)
def test_aliases_of_a_model_are_divided_by_commas(words: tuple[str, ...]) -> None:
    assert server(*words).served_model_name == ("me", "fim")
    assert server("m", "--served-model-name", "me,fim").served_model_name == ("me,fim",)


@pytest.mark.parametrize(
    "words",
    [
        ("-ngl", "99"),
        ("--control-vector", "x"),
        ("--cache-type-k", "q4_0"),
        ("--cache-type-v", "q8_0", "-ctk", "bf16"),
        ("--cache-type-k", "q5_1", "-ctv", "q5_1"),
        ("--kv-cache-dtype", "fp8", "-ctk", "q8_0", "-ctv", "q8_0"),
        ("--offline",),
        ("--ep-size", "2"),
        ("--ep-size", "2", "--tp", "4"),
        ("-n", "5"),
        ("--grammar", "root ::= x"),
        ("--reasoning-budget", "0"),
        ("--speculative-model", "x"),
        ("--spec-ngram-simple-size-n", "3"),
        ("--speculative-ngram-max-match-window-size", "3"),
        ("--speculative-accept-threshold-acc", "0.9"),
        ("--spec-synth-len", "3"),
        ("--mirostat-lr", "0.1"),
        ("--cors-credentials",),
    ],
)
def test_what_other_servers_would_do_is_refused_by_name(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"^{words[0]}.* is not supported: "):
        engine("m", *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("NEXTN", "--speculative-num-steps", "3"), SpeculativeConfig("mtp", 3)),
        (("EAGLE",), SpeculativeConfig("mtp")),
        (
            ("EAGLE3", "--speculative-draft-model-path", "x", "--speculative-eagle-topk", "1"),
            SpeculativeConfig("eagle3", model="x"),
        ),
        (("STANDALONE", "--model-draft", "x"), SpeculativeConfig("draft_model", model="x")),
        (
            ("DFLASH", "--speculative-draft-model-path", "x", "--speculative-num-steps", "7"),
            SpeculativeConfig("dflash", 7, model="x"),
        ),
        *(
            (
                ("EAGLE3", "--model-draft=x", f"--speculative-draft-model-quantization={given}"),
                SpeculativeConfig("eagle3", model="x", quantization=meant),
            )
            for given, meant in (("fp8", "fp8"), ("unquant", "bf16"))
        ),
    ],
)
def test_sglangs_algorithms_are_methods(
    words: tuple[str, ...], expected: SpeculativeConfig
) -> None:
    assert engine("m", "--speculative-algorithm", *words).speculative_config == expected
    with pytest.raises(ConfigError, match="method='DSPARK' is not supported"):
        engine("m", "--speculative-algorithm", "DSPARK")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--spec-type", "none"), None),
        (("--spec-type", "ngram-mod"), SpeculativeConfig("ngram")),
        (("--spec-default",), SpeculativeConfig("ngram")),
        (
            ("--spec-type", "draft-simple", "-hfrd", "x", "--spec-draft-threads", "3"),
            SpeculativeConfig("draft_model", model="x"),
        ),
        (("--spec-type=draft-mtp", "--spec-draft-n-max", "3"), SpeculativeConfig("mtp", 3)),
        (("--spec-type", "draft-dflash", "-md", "x"), SpeculativeConfig("dflash", model="x")),
    ],
)
def test_llama_servers_types_of_drafts_are_methods(
    words: tuple[str, ...], expected: SpeculativeConfig | None
) -> None:
    assert engine("m", *words).speculative_config == expected
    for other in ("ngram-cache", "draft-dspark", "ngram-mod,draft-mtp"):
        with pytest.raises(UsageError, match=f"^--spec-type {other} is not supported: name one"):
            engine("m", "--spec-type", other)


@pytest.mark.parametrize(
    ("keys", "values", "expected"),
    [
        ("f16", "bf16", "auto"),
        ("bf16", None, "auto"),
        ("q8_0", "q8_0", "int8"),
        ("q4_0", "q4_0", "int4"),
    ],
)
def test_llama_servers_types_of_kv_are_followed(
    keys: str, values: str | None, expected: str
) -> None:
    words = ("m", "-ctk", keys, *(("--cache-type-v", values) if values else ()))
    assert engine(*words).kv_cache_dtype == expected
    assert engine(*words, "--kv-cache-dtype", expected).kv_cache_dtype == expected


def test_llama_servers_flags_of_reasoning_pooling_and_its_page_are_followed() -> None:
    for flag in ("-rea", "--reasoning"):
        for word, expected in (("on", True), ("auto", True), ("off", False)):
            asked = server("m", flag, word, "--reasoning-effort", "low")
            assert asked.default_chat_template_kwargs == {
                "enable_thinking": expected,
                "reasoning_effort": "low",
            }
    with pytest.raises(UsageError, match="--reasoning maybe is not supported"):
        server("m", "--reasoning", "maybe")
    found = engine("m", "--pooling", "mean").pooler_config
    assert found is not None
    assert found.seq_pooling_type == "MEAN"
    assert not server("m", "--no-ui").console
    assert server("m", "--ui", "--slots").console


def test_llama_servers_flags_of_slots_metrics_and_sleep_are_followed() -> None:
    assert not server("m", "--no-slots").list_slots
    assert server("m", "--slots").list_slots
    assert server("m", "--metrics").metrics_names == "llamacpp"
    assert server("m").metrics_names == "octavo"
    assert server("m", "--sleep-idle-seconds", "90").sleep_idle_seconds == 90
    assert server("m", "--sleep-idle-seconds", "-1").sleep_idle_seconds is None


def test_each_flag_of_another_server_has_one_meaning(parser: Parser) -> None:
    flags = [flag for row in OTHERS for flag in row.flags]
    assert len(set(flags)) == len(flags)
    assert not set(flags) & (SAME.keys() | KEYS.keys())
    known = set(parser.flags())
    assert {*SAME.values(), *(re.split("[.=]", target)[0] for target in KEYS.values())} <= known
    named = {word.strip(";,") for row in OTHERS for word in row.reason.split() if word[:2] == "--"}
    assert named <= known | {"--predict", "--nnodes", "--reverse-prompt", "--node-rank"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--max-modl-len", "--max-model-len"),
        ("--num-ctx", "--max-model-len"),
        ("--ctx", "--max-model-len"),
        ("--token", "--api-key"),
        ("--workers", "--prompt-workers"),
        ("--sslcertfile", "--ssl-certfile"),
    ],
)
def test_a_near_name_is_the_one_that_is_meant(word: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"no option {word}; did you mean {meant}\?"):
        engine("m", word, "1")


@pytest.mark.parametrize("word", ["--enable-thoughts", "--max-bar", "--block-list"])
def test_no_name_is_suggested_that_shares_a_word_alone(word: str) -> None:
    with pytest.raises(UsageError, match=f"no option {word}; see"):
        engine("m", word, "1")


def test_synonyms_lead_to_flags_and_are_none(parser: Parser) -> None:
    flags = {flag.removeprefix("--").replace("-", "_") for flag in parser.flags()}
    assert set(SYNONYMS.values()) <= flags
    own = {field.name for kind in (EngineArguments, ServerSettings) for field in fields(kind)}
    assert not SYNONYMS.keys() & {*own, *INERT, *FIXED, *MISSING}
    with pytest.raises(ConfigError, match=r"no option 'num_ctx'; did you mean max_model_len\?"):
        read_arguments("m", {"num_ctx": 5})


def test_several_keys_are_given_at_once() -> None:
    assert server("m", "--api-key", "first-key", "second-key").api_keys == (
        "first-key",
        "second-key",
    )
    assert server("m", "--api-key", "a-key-1", "--api-key=a-key-2").api_keys == (
        "a-key-1",
        "a-key-2",
    )
    with pytest.raises(UsageError, match="put the model first") as caught:
        engine("--api-key", "a-secret-key", "model")
    assert "a-secret-key" not in str(caught.value)


def test_a_directory_for_downloads_is_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert engine("m", "--download-dir", str(tmp_path)) == EngineArguments(model="m")
    assert env.hub_cache_directory() == tmp_path
    assert env.child_environment({})["HF_HUB_CACHE"] == str(tmp_path)


def test_the_format_of_the_files_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = write_gguf_model(tmp_path / "m", "gpt2")
    assert main(["fit", str(path), "-q", "gguf"]) == 0
    assert main(["fit", str(path), "-q", "awq"]) == USAGE
    assert "-q='awq': the model's gguf files are not quantised" in capsys.readouterr().err


def test_files_of_floats_are_quantised_at_load(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory bill is that of the flag that says how."""
    bills = []
    for words in (["-q", "int8"], ["--cpu-weights", "int8"], []):
        assert main(["fit", tiny, "--backend", "native", "--memory", "8GiB", *words]) == 0
        bills.append(capsys.readouterr().out)
    assert bills[0] == bills[1] != bills[2]


def test_no_flag_without_a_setting_is_in_two_tables() -> None:
    assert not INERT.keys() & FIXED.keys()
    assert not MISSING.keys() & {*INERT, *FIXED}
    assert {*ALONE} <= {*INERT, *FIXED}


def test_a_command_that_cannot_be_followed_fails_before_it_loads(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", tiny, "--device", "tpu", "--port", "0"]) == USAGE
    assert "--device='tpu' is not possible" in capsys.readouterr().err
    assert main(["serve", tiny, "-ngl", "33", "--port", "0"]) == USAGE
    assert "-ngl 33 is not supported" in capsys.readouterr().err
    assert main(["fit", tiny, "--quantization", "mxfp8"]) == USAGE
    assert "the model's files are not quantised" in capsys.readouterr().err
