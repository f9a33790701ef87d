"""A text with an adapter is that of a model into which the adapter was merged.

The engines here are real ones of a tiny model, in this process and in one of their own, over the
backend that defines the meaning.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.client import inline
from octavo.client.client import EngineClient
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.confine.filter import why_unavailable
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.options.engine import EngineArguments
from octavo.wire.commands import LoadFile
from tests.adapters.made import Projection, make_arrays, write_adapter
from tests.api.tiny import make_model
from tests.client.clients import Caller, error_code, eventually, patient, process_of, run

pytestmark = pytest.mark.slow

PROMPT = tuple(range(5, 45))  # more than two blocks
SCALE = 2.0  # alpha / rank
NAMES = ("plain", "a", "b", "c")
# The model itself has none but float32, so that its engine has not loaded what others need.
DTYPES: dict[str, Any] = {"a": np.float32, "b": ml_dtypes.bfloat16, "c": np.float16}


def name_of(number: int) -> str:
    """Return the name of an adapter's private copy."""
    return blake2b(b"%d" % number, digest_size=32).hexdigest()


class Files:
    """A model, three adapters of it, and the models that these are merged into."""

    def __init__(self, directory: Path) -> None:
        self.model = directory / "plain"
        self.model.mkdir()
        make_model(self.model)
        self.adapters = directory / "adapters"
        self.adapters.mkdir()
        weights = load_file(self.model / "model.safetensors")
        modules = [
            Projection(name.removesuffix(".weight"), len(array), array.shape[1], False)
            for name, array in weights.items()
            if "_proj" in name
        ]
        self.lora: dict[str, str | None] = {"plain": None}
        for number, name in enumerate(NAMES[1:]):
            arrays = make_arrays(modules, seed=number, dtype=DTYPES[name])
            self.lora[name] = digest = name_of(number)
            write_adapter(self.adapters / digest, arrays, lora_alpha=4 * SCALE)
            arrays = {key: array.astype(np.float32) for key, array in arrays.items()}
            merged = dict(weights)
            for each in modules:
                stem = f"base_model.model.{each.name}"
                down, up = (arrays[f"{stem}.lora_{half}.weight"] for half in "AB")
                merged[f"{each.name}.weight"] = weights[f"{each.name}.weight"] + SCALE * (up @ down)
            shutil.copytree(self.model, directory / name)
            save_file(merged, str(directory / name / "model.safetensors"))
        self.texts = {name: self._text_of(directory / name) for name in NAMES}
        assert len(set(map(tuple, self.texts.values()))) == len(NAMES), "each changes the text"

    def _text_of(self, model: Path) -> list[int]:
        arguments = EngineArguments(model=str(model), **settings())
        return run_inline(arguments, {"only": request("only", None)})["only"]

    def arguments(self, **more: Any) -> EngineArguments:
        adapters = {
            "enable_lora": True,
            "max_loras": 2,
            "max_cpu_loras": 2,
            "max_lora_rank": 8,
            "adapter_directory": str(self.adapters),
        }
        return EngineArguments(model=str(self.model), **{**settings(), **adapters, **more})

    def requests(self, count: int, **more: Any) -> dict[str, Request]:
        """Return requests for all texts in turn, by number."""
        return {
            f"{number}": request(f"{number}", self.lora[NAMES[number % len(NAMES)]], **more)
            for number in range(count)
        }

    def check(self, tokens: Mapping[str, Sequence[int]]) -> None:
        for name, found in tokens.items():
            assert list(found) == self.texts[NAMES[int(name) % len(NAMES)]], f"request {name}"


def settings() -> dict[str, Any]:
    return {
        "backend": "torch",
        "dtype": "float32",
        "num_gpu_blocks_override": 60,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }


def request(name: str, lora: str | None, prompt: Sequence[int] = PROMPT, **more: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **more})
    return Request(name, array("i", prompt), sampling, time.monotonic(), lora=lora)


def with_client(client: EngineClient, world: Callable[[Caller], Awaitable[None]]) -> None:
    """Run a world with a client's engine, and close it."""
    try:
        run(lambda: world(Caller(client)))  # type: ignore[arg-type]
    finally:
        client.close()


def run_inline(arguments: EngineArguments, requests: Mapping[str, Request]) -> dict[str, list[int]]:
    """Return the tokens of requests that run together in an engine of this process."""
    found: dict[str, list[int]] = {}

    async def world(caller: Caller) -> None:
        caller.send(*requests.values())
        await caller.all_ended()
        assert all(end.finish_reason == "length" for end in caller.ends.values()), caller.ends
        found.update(caller.tokens)

    with_client(inline.start(arguments, None, None), world)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    pytest.importorskip("octavo.backends.adapters", reason="no backend computes adapters here")
    return Files(tmp_path_factory.mktemp("models"))


def test_each_request_gets_the_text_of_its_merged_model(files: Files) -> None:
    """More adapters are asked for than memory may hold at once."""
    files.check(run_inline(files.arguments(), files.requests(12)))


def test_a_sequence_that_is_preempted_goes_on_with_its_adapter(files: Files) -> None:
    arguments = files.arguments(num_gpu_blocks_override=12, enable_prefix_caching=False)
    files.check(run_inline(arguments, files.requests(8)))


def test_a_factor_multiplies_what_an_adapter_adds(files: Files) -> None:
    digest = files.lora["a"]
    requests = {
        "0": request("0", f"{digest}*0.0"),
        "1": request("1", f"{digest}*1.0"),
        "4": request("4", None),
        "5": request("5", digest),
    }
    files.check(run_inline(files.arguments(), requests))


def test_adapters_share_no_prefix(files: Files) -> None:
    """The same prompt again is computed anew, but with the same adapter."""

    async def world(caller: Caller) -> None:
        cached = []
        for number in (0, 1, 5, 2, 4, 6):
            name = f"{number}"
            caller.send(request(name, files.lora[NAMES[number % len(NAMES)]]))
            await caller.until(partial(caller.ends.__contains__, name))
            stats = caller.ends[name].stats
            assert stats is not None
            cached.append(stats.num_cached_tokens > 0)
        assert cached == [False, False, True, False, True, True]
        files.check(caller.tokens)

    with_client(inline.start(files.arguments(), None, None), world)


def test_one_that_cannot_be_loaded_fails_its_own_request(files: Files, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    shutil.copytree(files.adapters, adapters)
    wrong = adapters / name_of(7)
    arrays = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.ones((4, 9))}
    write_adapter(wrong, arrays)

    async def world(caller: Caller) -> None:
        caller.send(*files.requests(4).values(), request("wrong", wrong.name))
        caller.send(request("absent", name_of(8)), request("none", "../adapters"))
        await caller.all_ended()
        ends = {name: caller.ends[name] for name in ("wrong", "absent", "none")}
        assert [end.finish_reason for end in ends.values()] == ["impossible", "error", "error"]
        assert "q_proj.lora_A" in str(ends["wrong"].message)
        files.check({name: tokens for name, tokens in caller.tokens.items() if name.isdigit()})

    with_client(inline.start(files.arguments(adapter_directory=str(adapters)), None, None), world)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_saved_matrices_take_the_places_of_the_models(
    backend: str, files: Files, tmp_path: Path
) -> None:
    names = ("model.embed_tokens.weight", "lm_head.weight")
    weights = load_file(files.model / "model.safetensors")
    saved = {name: np.ascontiguousarray(weights[name][::-1]) for name in names}
    shutil.copytree(files.model, tmp_path / "merged")
    save_file({**weights, **saved}, str(tmp_path / "merged" / "model.safetensors"))
    adapters = tmp_path / "adapters"
    arrays = {f"base_model.model.{name}": array for name, array in saved.items()}
    write_adapter(adapters / name_of(1), arrays, modules_to_save=["embed_tokens", "lm_head"])
    mixed = {"saved": request("saved", name_of(1)), "plain": request("plain", None)}
    more: dict[str, Any] = {"backend": backend, "adapter_directory": str(adapters)}
    found = run_inline(files.arguments(max_saved_loras=1, **more), mixed)
    for model, name in ((files.model, "plain"), (tmp_path / "merged", "saved")):
        arguments = EngineArguments(model=str(model), **{**settings(), "backend": backend})
        assert run_inline(arguments, {name: request(name, None)})[name] == found[name]
    assert found["saved"] != found["plain"]

    async def world(caller: Caller) -> None:
        caller.send(*mixed.values())
        await caller.all_ended()
        assert caller.ends["saved"].finish_reason == "impossible"
        assert "max_saved_loras" in str(caller.ends["saved"].message)
        assert caller.tokens["plain"] == found["plain"]

    with_client(inline.start(files.arguments(**more), None, None), world)


@pytest.fixture
def process(files: Files) -> Iterator[ProcessClient]:
    if why_unavailable() is not None:
        pytest.skip("this kernel has no filters of system calls")
    client = make_client(
        files.arguments(), [ProcessLauncher(directories=[files.adapters])], patient()
    )
    client.start()
    try:
        yield client
    finally:
        client.close()


def has_died(client: ProcessClient, count: int) -> bool:
    """Return whether so many engines of a client have ended."""
    return client.members[0].vitals.num_deaths >= count


def test_the_engine_that_follows_a_dead_one_loads_adapters_again(
    files: Files, process: ProcessClient
) -> None:
    """The texts go on as if nothing had happened; the journal names the adapters."""

    async def world() -> None:
        caller = Caller(process)
        for digest in files.lora.values():
            if digest is not None:
                command = LoadFile("lora", digest, str(files.adapters / digest))
                assert await error_code(process.command(command)) is None
        caller.send(*files.requests(12, max_tokens=24).values())
        for number in (1, 2):
            if caller.is_done():  # before the front end of a busy machine could kill another
                break
            await caller.another_event()
            os.kill(process_of(process).pid, signal.SIGKILL)
            await eventually(partial(has_died, process, number))
        await caller.all_ended()
        files.check(caller.tokens)

    asyncio.run(world())


def test_two_engines_have_the_same_adapters_and_continue_each_others_requests(
    files: Files,
) -> None:
    if why_unavailable() is not None:
        pytest.skip("this kernel has no filters of system calls")
    launchers = [ProcessLauncher(directories=[files.adapters]) for _ in range(2)]
    client = make_client(files.arguments(), launchers, patient())
    client.start()

    async def world() -> None:
        caller = Caller(client)
        for digest in files.lora.values():
            if digest is not None:
                command = LoadFile("lora", digest, str(files.adapters / digest))
                assert await error_code(client.command(command)) is None
        absent = await client.command(LoadFile("lora", name_of(9), str(files.adapters / "absent")))
        assert absent.error is not None
        assert absent.error.message.endswith("(engines that did it: none)")
        caller.send(*files.requests(12, max_tokens=24).values())
        assert all(len(member.requests) for member in client.members)
        await caller.another_event()
        os.kill(process_of(client).pid, signal.SIGKILL)
        await caller.all_ended()
        files.check(caller.tokens)

    try:
        asyncio.run(world())
    finally:
        client.close()
