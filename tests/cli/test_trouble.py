"""Errors become messages, and only bugs of Octavo are called bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import RequestError
from octavo.backends.interface import OldModuleError
from octavo.backends.select import NoBackendError
from octavo.cli import main
from octavo.cli.commands import FAILED, USAGE
from octavo.cli.trouble import as_flags, explain
from octavo.client.errors import EngineStartError
from octavo.core.config import ConfigError
from octavo.loader.errors import SourceError
from octavo.options.transport import ServerSettingsError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("max_num_seqs=0 must be more"), "--max-num-seqs=0 must be more"),
        (RequestError("too long"), "too long"),
        (SourceError("is gone", path=Path("/x")), "/x: is gone"),
        (ServerSettingsError("no key"), "no key"),
        (EngineStartError("set max_model_len"), "set --max-model-len"),
        (FileNotFoundError(2, "No such file", "/x"), "/x: no such file"),
        (ServerSettingsError("port=-1 must"), "--port=-1 must"),
    ],
)
def test_users_mistakes(error: Exception, text: str) -> None:
    assert explain(error) == text


@pytest.mark.parametrize(
    ("error", "beginning"),
    [
        (ModuleNotFoundError("", name="torch"), "the reference backend needs PyTorch"),
        (ModuleNotFoundError("", name="numpy.linalg"), "the package numpy is not installed"),
        (MemoryError(), "there is not enough memory; `octavo fit MODEL`"),
    ],
)
def test_what_is_missing(error: Exception, beginning: str) -> None:
    assert explain(error).startswith(beginning)
    assert "defect" not in explain(error)


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), ValueError("x"), AssertionError(), ModuleNotFoundError("x", name="octavo.x")],
)
def test_defects(error: Exception) -> None:
    assert explain(error).startswith(type(error).__name__)
    assert "bug in Octavo. --debug" in explain(error)


@pytest.mark.parametrize("kind", [NoBackendError, OldModuleError])
def test_a_module_that_must_be_built_again_is_no_bug(kind: type[Exception]) -> None:
    """`git pull` without another build leads there, and the message says what to do."""
    assert explain(kind("build it again (`make setup`)")) == "build it again (`make setup`)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_model_len=5, lower block_size", "--max-model-len=5, lower --block-size"),
        ("the seed and the model", "the seed and the model"),  # words, not options
        ("seed=x and port=1", "--seed=x and --port=1"),  # with their values, they are
        ("served_model_name='' must", "--served-model-name='' must"),
        ("my_max_model_len max_model_lens", "my_max_model_len max_model_lens"),
        ("--max-model-len", "--max-model-len"),
        (
            "speculative_config: quantization='int8' is not possible beside dtype='float32'",
            "--speculative-config: quantization='int8' is not possible beside --dtype='float32'",
        ),
        (
            "speculative_config: max_model_len is not supported",
            "--speculative-config: max_model_len is not supported",
        ),
    ],
)
def test_options_are_named_as_they_are_typed(text: str, told: str) -> None:
    assert as_flags(text) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "-pp", "2", "--enable-lora"], "leave one of them out"),
        (["serve", "-dcp", "2"], "must divide"),
        (["serve", "-pp", "2", "--packed-cache"], "leave one of them out"),
        (["serve", "-asc", "4"], "-asc=4 is not possible: there is one front end"),
        (["serve", "--device", "tpu"], "--device='tpu' is not possible: the backends compute"),
        (["serve", "-ep"], "-ep divides the experts among the ranks"),
        (["serve", "--kv-cache-memory", "0"], "--kv-cache-memory=0 must be at least 1"),
        (["serve", "--port", "-1"], "--port=-1 must be between"),
    ],
)
def test_a_flag_is_named_as_it_was_typed(
    tiny: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], "--model", tiny, *words[1:]]) == USAGE
    assert told in capsys.readouterr().err


def test_the_log_names_flags_where_it_speaks_of_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--enable-sleep-mode", "-O3", "--port", "0"]
    assert main(["serve", "nosuch", *words]) == FAILED
    logged = capsys.readouterr().err.splitlines()[0]
    assert (
        "--enable-sleep-mode (every engine can sleep; POST /sleep on the --admin-socket)" in logged
    )
    assert "--optimization-level (models are not compiled)" in logged


def test_the_seed_of_a_request_is_not_the_engines() -> None:
    spellings = {"seed": "--seed", "sampling_seed": "--sampling-seed"}
    assert explain(RequestError("seed=x is"), spellings) == "--sampling-seed=x is"
    assert explain(ConfigError("seed=x is"), spellings) == "--seed=x is"
