"""Errors become words, and only defects of ours are called so."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import RequestError
from octavo.cli.trouble import as_flags, explain
from octavo.core.config import ConfigError
from octavo.frontend.client import EngineStartError
from octavo.loader.errors import SourceError
from octavo.server.config import ServerConfigError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("max_num_seqs=0 must be more"), "--max-num-seqs=0 must be more"),
        (RequestError("too long"), "too long"),
        (SourceError("is gone", path=Path("/x")), "/x: is gone"),
        (ServerConfigError("no key"), "no key"),
        (EngineStartError("set max_model_len"), "set --max-model-len"),
        (FileNotFoundError(2, "No such file", "/x"), "[Errno 2] No such file: '/x'"),
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
    assert "defect of Octavo's. --debug" in explain(error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_model_len=5, lower block_size", "--max-model-len=5, lower --block-size"),
        ("the seed and the model", "the seed and the model"),  # words, not options
        ("my_max_model_len max_model_lens", "my_max_model_len max_model_lens"),
        ("--max-model-len", "--max-model-len"),
    ],
)
def test_options_are_named_as_they_are_typed(text: str, told: str) -> None:
    assert as_flags(text) == told
