"""Engines whose weights are mapped from an earlier start: equal bits, in every kind of engine."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, ConfigError, SamplingParams
from octavo.backends.native.packed_cache import sources
from octavo.backends.native.packed_cache.directory import PackedDirectory
from octavo.cli.engine_options import add_engine_options, add_model, engine_arguments
from octavo.cli.parsing import Parser
from octavo.engine.build import build_engine
from octavo.options.engine import EngineArguments, read_arguments
from tests.api.tiny import make_model
from tests.client.clients import eventually, patient

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
    """Instruction sets share a file; each setting of weights has one, and replaces no other."""
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
        inode = age(file)
        assert answer(model, cpu_weights="int8", packed_cache=place) == as_int8
        assert len(list(place.iterdir())) == 2
        assert answer(model, packed_cache=place) == packed
        assert is_mapped(file, inode)


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
        (["--packed-cache=here", "--packed-cache-bytes", "2GiB"], "here", 2 << 30),
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
    with pytest.raises(ConfigError, match=r"packed_cache_bytes=5 limits .* without packed_cache"):
        EngineArguments("model", packed_cache_bytes=5)
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    place = tmp_path / "packed"
    with pytest.raises(ConfigError, match=r"^packed_cache=.* is a setting of the native"):
        LLM("no model", backend="torch", packed_cache=place)
    assert not place.exists()


@pytest.mark.parametrize("named", ["", "~no such user/packed", "a\0b", "\ud800"])
def test_a_name_of_no_directory_is_refused(named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="packed_cache="):
        LLM(str(make_model(tmp_path)), packed_cache=named)


def in_the_way(place: Path) -> None:
    place.write_text("a file")


def writable_by_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def under_a_file(place: Path) -> None:
    place.parent.rmdir()
    place.parent.write_text("a file")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (in_the_way, "Not a directory"),
        (writable_by_all, r"other users may write to it \(chmod go-w\)"),
        (under_a_file, "File exists|Not a directory"),
    ],
)
def test_a_directory_that_cannot_be_used_ends_the_start_before_the_model_is_opened(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    place = tmp_path / "directory" / "packed"
    place.parent.mkdir()
    make(place)
    arguments = EngineArguments(str(tmp_path / "no model"), packed_cache=str(place))
    with pytest.raises(ConfigError, match=rf"packed_cache='{place}' cannot be used: ({reason})"):
        build_engine(arguments)


def test_a_directory_that_can_only_be_read_is_used_for_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that replaces another starts in any case, and a full disk ends no start."""

    def refuse(number: int) -> None:
        def make(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(PackedDirectory, "_make", make)

    model, place = make_model(tmp_path), tmp_path / "packed"
    arguments = EngineArguments(
        str(model), max_model_len=64, backend="native", packed_cache=str(place)
    )
    refuse(errno.EROFS)
    with pytest.raises(ConfigError, match=f"Read-only file system.*user {os.geteuid()} owns"):
        build_engine(arguments)
    build_engine(arguments, is_first=False)
    refuse(errno.ENOSPC)
    build_engine(arguments)
    assert caplog.text.count("packed weights are not kept") == 2
    monkeypatch.undo()
    monkeypatch.setattr(sources, "SETTLED_SECONDS", -1.0)
    build_engine(arguments)
    (file,) = place.iterdir()
    inode = age(file)
    refuse(errno.EROFS)
    build_engine(arguments)
    assert is_mapped(file, inode)


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
        timing=patient(spare_delay_seconds=0.1),
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
            before = client.engines[0].supervisor.restarts.num_restarts

            def has_restarted(before: int = before) -> bool:
                return bool(client.engines[0].supervisor.restarts.num_restarts > before)

            age(file)
            client.engines[0].supervisor.run.process.popen.kill()
            await eventually(has_restarted)
            assert await one() == expected
            await eventually(lambda: is_mapped(file, inode))  # by the next spare

    try:
        asyncio.run(world())
    finally:
        llm.shutdown()
