"""Engines whose weights are mapped from an earlier start: equal bits, in every kind of engine."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, ConfigError, SamplingParams
from octavo.backends.native.packed_cache import sources
from octavo.cli.engine_options import add_engine_options, add_model, engine_arguments
from octavo.cli.parsing import Parser
from octavo.client.restart_policy import Timing
from octavo.engine_arguments import EngineArguments, read_arguments
from tests.api.tiny import make_model
from tests.client.clients import eventually

SAMPLING = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
PROMPT = [3, 4, 5, 6] * 5


@pytest.fixture(autouse=True)
def new_files_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count that a test has just written."""
    monkeypatch.setattr(sources, "SETTLED_SECONDS", -1.0)


def answer(model: Path, **options: Any) -> tuple[list[int], str]:
    """Return the tokens of an answer, and its log-probabilities to the last bit."""
    with LLM(str(model), max_model_len=64, backend="native", **options) as llm:
        (output,) = llm.generate({"prompt_token_ids": PROMPT}, SAMPLING, use_tqdm=False)
    return list(output.outputs[0].token_ids), repr(output.outputs[0].logprobs)


def age(file: Path) -> int:
    """Make a file look unused, and return its inode."""
    os.utime(file, (1, 1))
    return file.stat().st_ino


def is_mapped(file: Path, inode: int) -> bool:
    """Return whether a start has opened the file since then, and left it as it is."""
    found = file.stat()
    return found.st_mtime > 1 and found.st_ino == inode


def test_an_offline_engine_maps_what_an_earlier_one_packed(tmp_path: Path) -> None:
    """Panels are the same for every instruction set; each format of weights has its own."""
    model, place = make_model(tmp_path), tmp_path / "packed"
    packed = answer(model)
    assert answer(model, packed_cache=place) == packed
    (file,) = place.iterdir()
    inode = age(file)
    assert answer(model, packed_cache=place) == packed
    assert is_mapped(file, inode)
    inode = age(file)
    scalar = answer(model, cpu_isa="scalar")
    assert answer(model, cpu_isa="scalar", packed_cache=place) == scalar
    assert is_mapped(file, inode)
    as_int8 = answer(model, cpu_weights="int8")
    for _ in range(2):
        assert answer(model, cpu_weights="int8", packed_cache=place) == as_int8
    assert answer(model, packed_cache=place) == packed


def test_the_place_by_default_is_in_the_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    answer(make_model(tmp_path), packed_cache=True)
    assert len(list((tmp_path / "cache" / "packed").glob("*.panels"))) == 1


@pytest.mark.parametrize(
    ("given", "place", "size"),
    [
        ([], None, 64 << 30),
        (["--packed-cache"], "auto", 64 << 30),
        (["--packed-cache=here", "--packed-cache-size", "2GiB"], "here", 2 << 30),
    ],
)
def test_the_flags_give_the_directory_and_the_size(
    given: list[str], place: str | None, size: int
) -> None:
    parser = Parser()
    add_model(parser)
    add_engine_options(parser)
    found = engine_arguments(parser.parse_args(["smollm2", *given]))
    assert (found.packed_cache, found.packed_cache_bytes) == (place, size)


def test_values_without_a_sense_are_refused(tmp_path: Path) -> None:
    assert read_arguments("model", {"packed_cache": False}).packed_cache is None
    with pytest.raises(ConfigError, match="packed_cache=3 must be a name or a path"):
        read_arguments("model", {"packed_cache": 3})
    with pytest.raises(ConfigError, match="packed_cache_bytes=0 must be at least 1"):
        EngineArguments("model", packed_cache_bytes=0)
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    with pytest.raises(ConfigError, match="is for weights that the native engine packs"):
        LLM(str(make_model(tmp_path)), backend="torch", packed_cache=tmp_path)


@pytest.mark.slow
def test_an_engine_its_spare_and_its_successor_map_the_same_file(tmp_path: Path) -> None:
    """Each is confined after it has mapped the file; streams continue with equal bits."""
    model, place = make_model(tmp_path), tmp_path / "packed"
    expected = answer(model, packed_cache=place)
    (file,) = place.iterdir()
    inode = age(file)
    llm = AsyncLLM(
        str(model),
        engine="process",
        timing=Timing(spare_delay_seconds=0.1),
        max_model_len=64,
        packed_cache=place,
        spare_engine=True,
    )
    client: Any = llm._client

    async def one() -> tuple[list[int], str]:
        prompt: Any = {"prompt_token_ids": PROMPT}
        outputs = [output async for output in llm.generate(prompt, SAMPLING)]
        return list(outputs[-1].outputs[0].token_ids), repr(outputs[-1].outputs[0].logprobs)

    async def world() -> None:
        assert await one() == expected
        assert is_mapped(file, inode)
        for _ in range(2):
            before = client.supervisor.restarts.num_restarts

            def has_restarted(before: int = before) -> bool:
                return bool(client.supervisor.restarts.num_restarts > before)

            age(file)
            client.supervisor.run.process.popen.kill()
            await eventually(has_restarted)
            assert await one() == expected
            await eventually(lambda: is_mapped(file, inode))  # by the next spare

    try:
        asyncio.run(world())
    finally:
        llm.shutdown()
