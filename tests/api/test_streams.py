"""Streams of `AsyncLLM` under failures, and the request table's outputs event by event."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, RequestError, RequestOutputKind, SamplingParams
from octavo.api.continuation import Continuation
from octavo.api.outputs import CompletionOutput, EngineDeadError, RequestOutput
from octavo.api.requests import FailedRequestError, Options, RequestTable, check_request
from octavo.api.sinks import joined
from octavo.client.journal.client import coalesce
from octavo.core.request import Request, TokenEvent
from octavo.core.stats import RequestStats
from octavo.text.tokenizer import Tokenizer
from tests.api.tiny import core_of, make_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
DELTA = RequestOutputKind.DELTA


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(directory, block_size=4, num_gpu_blocks_override=200, max_num_batched_tokens=32)


@pytest.fixture
def engine(directory: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(
        directory, block_size=4, num_gpu_blocks_override=200, max_num_batched_tokens=32
    )
    yield engine
    engine.close()


async def collect(
    engine: AsyncLLM, prompt: Any, sampling: SamplingParams, name: str | None = None
) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, sampling, name)]


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 300))


# failures


def _not_finite(prompt: Any, output: Any, logits: Any) -> Any:
    return np.full_like(logits, np.nan)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_failure_ends_its_own_stream_only(engine: AsyncLLM, kind: RequestOutputKind) -> None:
    bad = SamplingParams(
        n=2, max_tokens=12, seed=1, logits_processors=(_not_finite,), output_kind=kind
    )

    async def both() -> list[RequestOutput]:
        good = asyncio.create_task(collect(engine, "x", GREEDY))
        with pytest.raises(FailedRequestError, match="request mine: logits processor") as raised:
            await collect(engine, "x", bad, "mine")
        assert raised.value.reason == "error"
        return await good

    assert len(run(both())[-1].outputs[0].token_ids) == 12
    assert not engine._sinks
    assert len(engine._table) == 0


def test_an_error_in_one_event_does_not_affect_others(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = engine._table.receive

    def broken(event: TokenEvent) -> Any:
        if event.request_id.startswith("bad#") and event.position == 3:
            raise OSError("unforeseen")
        return receive(event)

    monkeypatch.setattr(engine._table, "receive", broken)

    async def both() -> list[RequestOutput]:
        good = asyncio.create_task(collect(engine, "x", LONG))
        with pytest.raises(FailedRequestError, match="OSError: unforeseen"):
            await collect(engine, "x", LONG, "bad")
        return await good

    assert len(run(both())[-1].outputs[0].token_ids) == 100
    assert engine.is_well()


def test_a_text_that_cannot_be_made_fails_alone(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Continuation.push

    def broken(stream: Continuation, event: TokenEvent) -> bool:
        if stream._sampling.seed == 77 and event.position:
            raise UnicodeError("no such character")
        return push(stream, event)

    monkeypatch.setattr(Continuation, "push", broken)

    async def both() -> list[RequestOutput]:
        good = asyncio.create_task(collect(engine, "x", GREEDY))
        with pytest.raises(RequestError, match="UnicodeError: no such character"):
            await collect(engine, "x", replace(LONG, seed=77))
        return await good

    assert len(run(both())[-1].outputs[0].token_ids) == 12


def test_wrong_options_never_reach_the_engine() -> None:
    with pytest.raises(RequestError, match="priority='a' must be a whole number"):
        Options(priority="a")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="lora=3 must be a string"):
        Options(lora=3)  # type: ignore[arg-type]


# event loops


def test_an_engine_outlives_an_event_loop_but_serves_one_at_a_time(engine: AsyncLLM) -> None:
    first = run(collect(engine, "x", GREEDY))
    assert run(collect(engine, "x", GREEDY))[-1].outputs == first[-1].outputs

    async def in_two_loops() -> None:
        assert await collect(engine, "x", GREEDY)
        with pytest.raises(RuntimeError, match="in use in another event loop"):
            await asyncio.to_thread(asyncio.run, collect(engine, "x", GREEDY))

    run(in_two_loops())


def test_the_open_requests_of_an_ended_loop_are_aborted(engine: AsyncLLM) -> None:
    """A closed loop's requests are aborted although no `finally` of its streams has run."""
    gate = threading.Event()

    def wait_at_three(prompt: Any, output: Any, logits: Any) -> Any:
        assert len(output) < 3 or gate.wait(300)
        return logits

    loop = asyncio.new_event_loop()
    stream = engine.generate("x", replace(LONG, logits_processors=(wait_at_three,)), "left")
    loop.run_until_complete(anext(stream))
    loop.close()
    gate.set()
    assert run(collect(engine, "x", GREEDY, "left"))[-1].finished  # the same name, anew
    core = core_of(engine)
    engine.close()
    assert not engine._sinks
    assert len(engine._table) == 0
    while core.has_work:
        core.step()
    assert core.scheduler.stats.num_finished["abort"] == 1


def test_the_engine_notices_that_a_loop_has_ended(engine: AsyncLLM) -> None:
    gate = threading.Event()

    def wait_at_three(prompt: Any, output: Any, logits: Any) -> Any:
        assert len(output) < 3 or gate.wait(300)
        return logits

    loop = asyncio.new_event_loop()
    stream = engine.generate("x", replace(LONG, logits_processors=(wait_at_three,)))
    loop.run_until_complete(anext(stream))
    loop.close()
    gate.set()
    core = core_of(engine)
    while core.scheduler.sequences:
        time.sleep(0.001)
    engine.close()
    assert core.scheduler.stats.num_finished == {"abort": 1}
    assert not engine._sinks
    assert len(engine._table) == 0


def test_methods_known_from_other_engines(engine: AsyncLLM) -> None:
    async def look() -> None:
        tokenizer = await engine.get_tokenizer()
        prompt = tokenizer.encode("The quick brown fox jumps")
        await collect(engine, prompt, GREEDY)
        warm = await collect(engine, prompt, GREEDY)
        assert await engine.reset_prefix_cache()
        cold = await collect(engine, prompt, GREEDY)
        assert warm[-1].num_cached_tokens
        assert cold[-1].num_cached_tokens == 0
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="the engine is closed"):
            await collect(engine, prompt, GREEDY)

    run(look())


# deltas, statistics and ends, event by event


@pytest.fixture
def table(llm: LLM) -> RequestTable:
    return RequestTable(llm._model)


def opened(table: RequestTable, sampling: SamplingParams) -> list[Request]:
    return table.open("mine", check_request(table._model, "x", sampling), 0.0)


def test_deltas_hold_only_what_is_new(engine: AsyncLLM, llm: LLM) -> None:
    asked = SamplingParams(
        n=3, seed=3, max_tokens=9, ignore_eos=True, prompt_logprobs=0, logprobs=0
    )
    stream = run(collect(engine, "A day in", replace(asked, output_kind=DELTA)))
    assert sum(output.prompt_logprobs is not None for output in stream) == 1
    ends = [each for output in stream for each in output.outputs if each.finished()]
    assert sorted(each.index for each in ends) == [0, 1, 2]
    assert [output.finished for output in stream].count(True) == 1
    (whole,) = llm.generate("A day in", asked)
    (sent,) = [output.prompt_logprobs for output in stream if output.prompt_logprobs]
    assert sent == whole.prompt_logprobs
    for sample in whole.outputs:
        parts = [each for output in stream for each in output.outputs if each.index == sample.index]
        assert [token for part in parts for token in part.token_ids] == sample.token_ids
        assert [one for part in parts for one in part.logprobs or ()] == sample.logprobs
        assert all(part.token_ids or part.finished() for part in parts)


def test_a_finished_continuation_is_not_sent_again(table: RequestTable) -> None:
    first, second = opened(table, SamplingParams(n=2, output_kind=DELTA))
    seen = []
    for event in (
        TokenEvent(first.request_id, 0, (70,)),
        TokenEvent(second.request_id, 0, (70,), "length"),
        TokenEvent(first.request_id, 1, (70,)),
        TokenEvent(first.request_id, 2, (70,), "length"),
    ):
        output, _ = table.receive(event)
        assert output is not None
        seen.append([(each.index, each.finish_reason) for each in output.outputs])
    assert seen == [[(0, None)], [(1, "length")], [(0, None)], [(0, "length")]]


def test_tokens_that_come_at_once_with_a_failure_are_kept(table: RequestTable) -> None:
    (request,) = opened(table, SamplingParams())
    name = request.request_id
    events = [
        TokenEvent(name, 0, (70,)),
        TokenEvent(name, 1, (71,)),
        TokenEvent(name, 2, (), "error", message="it broke"),
    ]
    for event in coalesce(events):
        output, _ = table.receive(event)
    assert output is not None
    (sample,) = output.outputs
    assert (sample.token_ids, sample.finish_reason, sample.error) == ([70, 71], "error", "it broke")


def test_two_deltas_of_different_continuations_make_one() -> None:
    def delta(index: int, text: str, **fields: Any) -> RequestOutput:
        return RequestOutput("a", "x", [1], [CompletionOutput(index, text, [7])], **fields)

    sent: Any = [None, {}]
    both = joined(delta(1, "a", prompt_logprobs=sent), delta(0, "b"))
    both = joined(both, delta(1, "c", finished=True))
    assert [(each.index, each.text, each.token_ids) for each in both.outputs] == [
        (0, "b", [7]),
        (1, "ac", [7, 7]),
    ]
    assert both.prompt_logprobs is sent
    assert both.finished


def test_the_first_continuations_statistics_are_the_requests(table: RequestTable) -> None:
    def stats(num_cached: int) -> RequestStats:
        return RequestStats(0.0, 1, 0.0, num_cached_tokens=num_cached)

    first, second = opened(table, SamplingParams(n=2))
    early = TokenEvent(second.request_id, 0, (70,), "length", stats=stats(1))
    output, _ = table.receive(early)
    assert output is not None
    assert (output.num_cached_tokens, output.metrics) == (None, None)
    output, _ = table.receive(TokenEvent(first.request_id, 0, (70,), "length", stats=stats(0)))
    assert output is not None
    assert output.num_cached_tokens == 0


@pytest.mark.parametrize("includes", [False, True])
@pytest.mark.parametrize(("min_tokens", "stops"), [(0, True), (2, False)])
def test_a_stop_string_completed_at_the_end_counts(
    table: RequestTable, includes: bool, min_tokens: int, stops: bool
) -> None:
    """Half a character at the end becomes U+FFFD, which may be the stop string."""
    tokenizer = table._model.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    half = tokenizer.token_to_id("Ã")  # the byte C3 of byte-level vocabularies
    assert half is not None
    sampling = SamplingParams(
        max_tokens=1 + min_tokens,
        min_tokens=min_tokens,
        stop=("\ufffd",),
        include_stop_str_in_output=includes,
    )
    (request,) = opened(table, sampling)
    output, aborts = table.receive(TokenEvent(request.request_id, 0, (half,), "length"))
    assert output is not None
    (sample,) = output.outputs
    expected = ("stop", "\ufffd", "\ufffd" if includes else "")
    if not stops:
        expected = ("length", None, "\ufffd")  # type: ignore[assignment]
    assert (sample.finish_reason, sample.stop_reason, sample.text) == expected
    assert aborts == []
