"""Sinks: requests whose outputs go to an object of the caller's instead of an iterator."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, RequestError, RequestOutputKind, SamplingParams
from octavo.api.outputs import CompletionOutput, EngineDeadError, RequestOutput
from octavo.api.sinks import WaitingSink
from tests.api.tiny import make_model

DELTA = RequestOutputKind.DELTA
LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, output_kind=DELTA)


class Collector:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[Exception] = []
        self.has_ended = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        if output.finished:
            self.has_ended.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.has_ended.set()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(make_model(tmp_path), block_size=4, num_gpu_blocks_override=200)
    yield engine
    engine.close()


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 300))


def test_a_sink_gets_every_output_that_an_iterator_would(engine: AsyncLLM) -> None:
    async def main() -> None:
        sink = Collector()
        name = engine.submit(engine.check("The quick", LONG), sink)
        await sink.has_ended.wait()
        engine.discard(name, sink)
        tokens = [token for each in sink.outputs for token in each.outputs[0].token_ids]
        iterated = [output async for output in engine.generate("The quick", LONG)]
        assert tokens == [token for each in iterated for token in each.outputs[0].token_ids]
        assert [each.finished for each in sink.outputs].count(True) == 1
        assert not sink.errors

    run(main())
    assert not engine._sinks


def test_a_discarded_sink_gets_nothing_more_and_its_id_is_free(engine: AsyncLLM) -> None:
    async def main() -> None:
        first, second = Collector(), Collector()
        request = engine.check("The quick", LONG)
        engine.submit(request, first, "mine")
        with pytest.raises(RequestError, match="in use") as raised:
            engine.submit(request, second, "mine")
        assert raised.value.param == "request_id"
        engine.discard("mine", second)  # not its request
        engine.discard("mine", first)
        engine.submit(request, second, "mine")
        await second.has_ended.wait()
        engine.discard("mine", second)
        assert not first.outputs

    run(main())


def test_a_sink_hears_of_the_engines_end(engine: AsyncLLM) -> None:
    async def main() -> None:
        sink = Collector()
        engine.submit(engine.check("The quick", LONG), sink)
        await asyncio.to_thread(engine.close)
        await sink.has_ended.wait()
        assert isinstance(sink.errors[0], EngineDeadError) or sink.outputs[-1].finished
        with pytest.raises(EngineDeadError):
            engine.submit(engine.check("x", LONG), sink)

    run(main())


def test_a_finished_output_survives_the_engines_end(engine: AsyncLLM) -> None:
    async def main() -> None:
        sink = WaitingSink(DELTA)
        name = engine.submit(engine.check("The quick", LONG), sink)
        while len(engine._table):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        await asyncio.sleep(0.001)  # `close` has scheduled the failing of requests in this loop
        output = await sink.get()
        assert output.finished
        assert len(output.outputs[0].token_ids) == 60
        engine.discard(name, sink)

    run(main())


def test_a_failed_sink_is_freed_without_a_collection() -> None:
    async def main() -> weakref.ref[WaitingSink]:
        sink = WaitingSink(DELTA)
        sink.fail(ValueError("broken"))
        with contextlib.suppress(ValueError):
            await sink.get()
        return weakref.ref(sink)

    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()


def test_outputs_that_wait_are_merged() -> None:
    def delta(text: str) -> RequestOutput:
        return RequestOutput("a", "x", [1], [CompletionOutput(0, text, [7])])

    async def main() -> None:
        for kind, expected in ((DELTA, "abc"), (RequestOutputKind.CUMULATIVE, "c")):
            sink = WaitingSink(kind)
            for text in "abc":
                sink.put(delta(text))
            assert (await sink.get()).outputs[0].text == expected
            sink.put(delta("d"))
            sink.fail(ValueError("broken"))
            with pytest.raises(ValueError, match="broken"):
                await sink.get()

    run(main())


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "code"),
    [
        ("", {}, "prompt", None),
        ([1, 300], {}, "prompt", None),
        ([5] * 900, {}, "prompt", "context_length_exceeded"),
        ("x", {"logprobs": 21}, "logprobs", None),
        ("x", {"prompt_logprobs": -1}, "prompt_logprobs", None),
        ("x", {"logits_processors": ("unknown",)}, "logits_processors", None),
        ("x", {"bad_words": [f"{n} x" for n in range(129)]}, "bad_words", None),
    ],
)
def test_a_refusal_names_the_parameter(
    engine: AsyncLLM, prompt: Any, fields: Any, param: str, code: str | None
) -> None:
    with pytest.raises(RequestError) as raised:
        engine.check(prompt, SamplingParams(**fields))
    assert (raised.value.param, raised.value.code) == (param, code)
