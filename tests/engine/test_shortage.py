"""An engine that gets too little memory says what did not fit, and what limits it."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.core.config import ConfigError
from octavo.core.engine import EngineCore
from octavo.engine import build
from octavo.engine.build import build_engine
from octavo.engine.shortage import describe_shortage, is_shortage
from octavo.observe import machine
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model

ROOT = Path(__file__).parents[2]
PROGRAM = """
import resource, sys
from octavo.api.async_llm import AsyncLLM
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    AsyncLLM(sys.argv[1], engine="process", max_model_len=64)
except Exception as error:
    print(error)
"""


def test_errors_that_mean_a_shortage() -> None:
    assert is_shortage(MemoryError())
    assert is_shortage(OSError(errno.ENOMEM, "x"))
    assert is_shortage(ImportError("libx.so: failed to map segment from shared object"))
    assert not is_shortage(OSError(errno.ENOENT, "x"))
    assert not is_shortage(ImportError("no module named x"))


def test_the_message_names_the_purpose_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.Memory(300 << 20, 20 << 20, "ulimit")
    monkeypatch.setattr("octavo.engine.shortage.memory", lambda: found)
    text = describe_shortage("load the weights", MemoryError("no more"))
    assert "to load the weights (no more): 20 MiB are free of the 300 MiB that ulimit" in text
    assert "raise that limit (ulimit -v" in text
    assert "free some" not in text


def test_a_refused_part_of_the_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> EngineCore:
        raise MemoryError

    monkeypatch.setattr(build, "reserve_step", refuse)
    with pytest.raises(ConfigError, match="memory to set up the KV cache and the runner"):
        build_engine(EngineArguments(str(make_model(tmp_path)), max_model_len=64))


@pytest.mark.slow
def test_an_engine_under_a_low_limit_of_address_space_says_what_did_not_fit(
    tmp_path: Path,
) -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    for megabytes in (300, 500, 700):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(make_model(tmp_path)), str(megabytes << 20)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "there is not enough memory" in ran.stdout
        assert f"{megabytes} MiB that ulimit allows" in ran.stdout
        assert "raise that limit (ulimit -v" in ran.stdout
