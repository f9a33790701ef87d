"""`LLM` and `AsyncLLM` through their public methods, on a tiny model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo import LLM, AsyncLLM, BeamSearchParams, RequestError, RequestOutputKind, SamplingParams
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.core.sampling_params import LogitsProcessor
from tests.api.tiny import TEMPLATE, core_of, make_model, requests_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["The quick brown fox", "A day in", "Ein Tag wie", "x"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(str(directory), block_size=4, num_gpu_blocks_override=200, max_num_batched_tokens=32)


def at_three() -> tuple[threading.Event, LogitsProcessor]:
    """Return a gate, and a logits processor that waits for it before the fourth token."""
    gate = threading.Event()

    def held(prompt: Any, output: Any, logits: Any) -> Any:
        assert len(output) < 3 or gate.wait(300)
        return logits

    return gate, held


def only(outputs: list[RequestOutput]) -> Any:
    (output,) = outputs
    return output.outputs[0]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        alone = only(llm.generate(prompt, GREEDY))
        assert output.finished
        assert output.outputs[0].token_ids == alone.token_ids
        assert len(alone.token_ids) == 12
        assert alone.finish_reason == "length"


def test_prompts_may_be_token_ids(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    texts = llm.generate(PROMPTS[0], GREEDY)
    texts_too = {"prompt_token_ids": ids, "prompt": "any", "multi_modal_data": None}
    prompts: tuple[Any, ...] = (ids, {"prompt_token_ids": ids}, {"prompt": PROMPTS[0]}, texts_too)
    for prompt in prompts:
        assert only(llm.generate(prompt, GREEDY)).token_ids == only(texts).token_ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, 300], r"prompt_token_ids\[1\] is 300; the model's tokens are 0 to 299"),
        ([[1, True]], r"prompt_token_ids\[1\] is True"),
        ({"text": "x"}, "needs 'prompt' or 'prompt_token_ids'"),
        ({"prompt": "x", "multi_modal_data": {}}, "; multi_modal_data must be left out"),
        ([[2] * 128], "the prompt has 128 tokens; max_model_len=128 leaves no room"),
        ([3.5], "a prompt is a string or a list of token ids, not float"),
        ("", "the prompt has no tokens"),
    ],
)
def test_a_bad_prompt_is_refused_and_leaves_nothing_running(
    llm: LLM, prompt: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, GREEDY)
    assert len(only(llm.generate("x", GREEDY)).token_ids) == 12


def test_one_bad_prompt_among_good_ones_is_named_before_anything_runs(llm: LLM) -> None:
    prompts: list[Any] = ["x", [1, 300]]
    with pytest.raises(RequestError, match="300"):
        llm.generate(prompts, GREEDY)


def test_sampling_params_are_one_for_all_or_one_each(llm: LLM) -> None:
    short = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    outputs = llm.generate(["x", "y"], [short, GREEDY])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 12]
    with pytest.raises(RequestError, match="1 sampling_params for 2 prompts"):
        llm.generate(["x", "y"], [short])


def test_a_seed_fixes_the_text_in_any_company(llm: LLM) -> None:
    seeded = SamplingParams(seed=11, max_tokens=12, ignore_eos=True)
    alone = only(llm.generate("x", seeded)).token_ids
    many = llm.generate(PROMPTS, seeded)
    assert many[3].outputs[0].token_ids == alone
    other = SamplingParams(seed=12, max_tokens=12, ignore_eos=True)
    assert only(llm.generate("x", other)).token_ids != alone


def test_n_samples_differ_and_each_is_a_seeded_request_of_its_own(llm: LLM) -> None:
    several = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("A day in", several)
    texts = [sample.token_ids for sample in output.outputs]
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    requests = requests_of(llm, "A day in", several)
    assert len({id(request.prompt) for request in requests}) == 1  # however large n is
    assert len({tuple(text) for text in texts}) == 3
    second = SamplingParams(seed=6, max_tokens=8, ignore_eos=True)
    assert only(llm.generate("A day in", second)).token_ids == texts[1]


def test_a_stop_string_ends_the_text_before_itself(llm: LLM) -> None:
    whole = only(llm.generate("The quick", GREEDY)).text
    stop = whole[3:6]
    cut = only(
        llm.generate("The quick", SamplingParams(temperature=0.0, max_tokens=12, stop=(stop,)))
    )
    assert cut.text == whole[: whole.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_a_stop_token_is_among_the_ids_but_not_in_the_text(llm: LLM) -> None:
    whole = only(llm.generate("The quick", GREEDY))
    token = whole.token_ids[4]
    sampling = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(token,))
    cut = only(llm.generate("The quick", sampling))
    end = whole.token_ids.index(token)
    assert cut.token_ids == whole.token_ids[: end + 1]
    assert cut.stop_reason == token
    assert whole.text.startswith(cut.text)


def test_logprobs_are_of_the_chosen_and_the_likeliest(llm: LLM) -> None:
    asked = SamplingParams(
        temperature=0.0, max_tokens=4, logprobs=3, prompt_logprobs=1, ignore_eos=True
    )
    (output,) = llm.generate("The quick", asked)
    sample = output.outputs[0]
    assert sample.logprobs is not None
    pairs = list(zip(sample.logprobs, sample.token_ids, strict=True))
    total = sum(entry[token].logprob for entry, token in pairs)
    assert sample.cumulative_logprob == pytest.approx(total)
    for entry, token in pairs:
        assert len(entry) == 3
        assert entry[token].rank == 1
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert all(entry for entry in output.prompt_logprobs[1:])
    with pytest.raises(RequestError, match="logprobs=21 is more than max_logprobs=20"):
        llm.generate("x", SamplingParams(logprobs=21))


@pytest.mark.parametrize("seed", range(5))
def test_the_texts_of_single_tokens_are_together_the_text(llm: LLM, seed: int) -> None:
    """Characters of several tokens occur in the prompt and in the answer."""
    asked = SamplingParams(
        seed=seed, max_tokens=60, logprobs=2, prompt_logprobs=0, ignore_eos=True, temperature=2.0
    )
    prompt = "5 € — 𝄞ß"
    (output,) = llm.generate(prompt, asked)
    (sample,) = output.outputs
    assert sample.logprobs is not None
    shown = [
        entry[token].decoded_token
        for entry, token in zip(sample.logprobs, sample.token_ids, strict=True)
        if token not in llm.get_tokenizer().special_ids
    ]
    assert "".join(map(str, shown)) == sample.text
    assert output.prompt_logprobs is not None
    pairs = zip(output.prompt_logprobs, output.prompt_token_ids, strict=True)
    after = [entry[token].decoded_token for entry, token in pairs if entry is not None]
    assert "".join(map(str, after)) == prompt[1:]
    hidden = replace(asked, detokenize=False)
    (quiet,) = llm.generate(prompt, hidden)[0].outputs
    assert quiet.logprobs is not None
    assert {each.decoded_token for entry in quiet.logprobs for each in entry.values()} == {None}


def test_the_length_that_the_model_recommends_is_the_default(tmp_path: Path) -> None:
    recommended = {"max_new_tokens": 7, "temperature": 0.5}
    (make_model(tmp_path) / "generation_config.json").write_text(json.dumps(recommended))
    with LLM(str(tmp_path), num_gpu_blocks_override=20) as llm:
        defaults = llm.get_default_sampling_params()
        assert (defaults.max_tokens, defaults.temperature) == (7, 0.5)
        assert len(only(llm.generate("x", replace(defaults, ignore_eos=True))).token_ids) == 7
        assert len(only(llm.generate("x")).token_ids) <= 7
        assert SamplingParams().max_tokens == 16, "explicit parameters have vLLM's defaults"


def test_a_logits_processor_has_the_last_word(directory: Path) -> None:
    def only_seven(prompt: Any, output: Any, logits: Any) -> Any:
        forced = np.full_like(logits, -100.0)
        forced[7] = 100.0
        return forced

    llm = LLM(str(directory), num_gpu_blocks_override=50, logits_processors={"seven": only_seven})
    for processor in ("seven", only_seven):
        sampling = SamplingParams(max_tokens=3, logits_processors=(processor,), ignore_eos=True)
        assert only(llm.generate("x", sampling)).token_ids == [7, 7, 7]


def test_chat_is_generate_behind_the_model_s_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "The quick"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<s>user: The quick\n<s>assistant: "
    assert output.prompt_token_ids == list(output.prompt_ids)
    assert output.prompt_token_ids[0] == 0
    assert isinstance(output.prompt_ids, array)  # shared with the core
    (two, _) = llm.chat([messages, messages], GREEDY)
    assert two.outputs[0].token_ids == output.outputs[0].token_ids
    parts = [{"type": "text", "text": "The quick"}]
    (same,) = llm.chat([{"role": "user", "content": parts}], GREEDY)
    assert same.prompt == output.prompt
    (own,) = llm.chat(messages, GREEDY, chat_template=TEMPLATE.replace("user", "you"))
    assert own.prompt == output.prompt


def test_several_conversations_are_answered_each_as_if_alone(llm: LLM) -> None:
    short: Any = [{"role": "user", "content": "The quick"}]
    long: Any = [*short, {"role": "assistant", "content": "fox"}, {"role": "user", "content": "A"}]
    alone = [llm.chat(one, GREEDY)[0] for one in (short, long)]
    for many in ([short, long], (tuple(short), long)):
        for output, expected in zip(llm.chat(many, GREEDY), alone, strict=True):
            assert (output.prompt, output.outputs) == (expected.prompt, expected.outputs)
    hot = SamplingParams(seed=3, max_tokens=4, ignore_eos=True)
    outputs = llm.chat([long, short], [hot, GREEDY])
    assert outputs[0].outputs == llm.chat(long, hot)[0].outputs
    assert outputs[1].outputs == alone[0].outputs


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "^messages must be a conversation, .* or a list of conversations, not str"),
        ({"role": "user", "content": "x"}, "^messages must be a conversation, .* not dict"),
        (iter(()), "^messages must be a conversation, .* not tuple_iterator"),
        ([], "^the conversation is empty"),
        ([[]], "^the conversation is empty"),
        (["Hi"], r"^messages\[0\] must be an object, not str"),
        ([[{"role": "user", "content": "x"}], []], r"^conversations\[1\]: the conversation is em"),
        (
            [[{"role": "user", "content": "x"}], {"role": "user", "content": "x"}],
            r"^conversations\[1\]: a conversation is a list of messages, not dict",
        ),
        ([{"role": "user", "content": "x"}, []], r"^messages\[1\] must be an object, not list"),
    ],
)
def test_a_malformed_conversation_is_refused(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.chat(messages, GREEDY)


def test_beam_search_finds_more_probable_texts_than_greedy(llm: LLM) -> None:
    (found,) = llm.beam_search("The quick", BeamSearchParams(beam_width=4, max_tokens=5))
    scores = [beam.cumulative_logprob for beam in found.outputs]
    assert len(found.outputs) == 4
    assert len({tuple(beam.token_ids) for beam in found.outputs}) == 4
    (one,) = llm.beam_search("The quick", BeamSearchParams(beam_width=1, max_tokens=5))
    greedy = SamplingParams(temperature=0.0, max_tokens=5)
    assert one.outputs[0].token_ids == only(llm.generate("The quick", greedy)).token_ids
    assert one.outputs[0].cumulative_logprob is not None
    assert scores[0] is not None
    assert scores[0] >= one.outputs[0].cumulative_logprob - 1e-6


def test_offline_outputs_are_whole_for_every_output_kind(llm: LLM) -> None:
    deltas = replace(GREEDY, output_kind=RequestOutputKind.DELTA)
    assert only(llm.generate("x", deltas)) == only(llm.generate("x", GREEDY))


def test_n_samples_compute_prompt_logprobs_once(llm: LLM) -> None:
    asked = SamplingParams(n=3, seed=5, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    requests = requests_of(llm, "A day in", asked)
    assert [request.reads_cache for request in requests] == [False, True, True]
    (output,) = llm.generate("A day in", asked)
    assert output.prompt_logprobs is not None
    assert all(output.prompt_logprobs[1:])


def test_beams_end_where_the_model_s_length_does(llm: LLM) -> None:
    (found,) = llm.beam_search([[2] * 124], BeamSearchParams(2, 10, ignore_eos=True))
    assert [len(beam.token_ids) for beam in found.outputs] == [4, 4]
    with pytest.raises(RequestError, match="leaves no room"):
        llm.beam_search([[2] * 128], BeamSearchParams(2, 10))


def test_after_an_interrupted_step_the_cause_is_chained(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(str(directory), num_gpu_blocks_override=50)

    def interrupted(plan: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._model.core._executor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("x", GREEDY)
    with pytest.raises(RuntimeError, match="make a new LLM"):
        llm.generate("x", GREEDY)


# what it costs to import


def test_the_package_itself_imports_next_to_nothing() -> None:
    """Importing octavo imports neither torch nor numpy nor anything else that is slow to load."""
    program = "import sys, octavo; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = ("numpy", "torch", "tokenizers", "jinja2", "ml_dtypes", "dataclasses", "asyncio")
    assert [name for name in heavy if name in loaded] == []
    assert "octavo.core" not in loaded
    assert set(octavo.__all__) == set(dir(octavo))
    assert all(getattr(octavo, name) is not None for name in octavo.__all__)


# AsyncLLM


@pytest.fixture
def engine(directory: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(
        str(directory), block_size=4, num_gpu_blocks_override=200, max_num_batched_tokens=32
    )
    yield engine
    engine.close()


async def _collect(engine: AsyncLLM, prompt: str, sampling: SamplingParams) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, sampling)]


def test_concurrent_streams_equal_generate(llm: LLM, engine: AsyncLLM) -> None:
    async def all_of_them() -> list[list[RequestOutput]]:
        return await asyncio.gather(*(_collect(engine, prompt, GREEDY) for prompt in PROMPTS))

    streams = asyncio.run(all_of_them())
    for stream, expected in zip(streams, llm.generate(PROMPTS, GREEDY), strict=True):
        assert stream[-1].finished
        assert stream[-1].outputs[0].text == expected.outputs[0].text
        lengths = [len(output.outputs[0].token_ids) for output in stream]
        assert lengths == sorted(lengths)


def test_deltas_add_up_to_the_whole(llm: LLM, engine: AsyncLLM) -> None:
    deltas = SamplingParams(
        n=2, seed=3, max_tokens=12, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    stream = asyncio.run(_collect(engine, "A day in", deltas))
    whole = SamplingParams(n=2, seed=3, max_tokens=12, ignore_eos=True)
    (expected,) = llm.generate("A day in", whole)
    for index, sample in enumerate(expected.outputs):
        deltas_of_it = [each for output in stream for each in output.outputs if each.index == index]
        assert "".join(delta.text for delta in deltas_of_it) == sample.text


def test_leaving_a_stream_early_aborts_its_request(engine: AsyncLLM) -> None:
    long = SamplingParams(max_tokens=100, ignore_eos=True, seed=1)

    async def leave() -> None:
        stream = engine.generate("x", long)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(await _collect(engine, "x", GREEDY)) >= 1

    asyncio.run(leave())
    core = core_of(engine)
    engine.close()
    assert not engine._sinks
    assert len(engine._table) == 0
    while core.has_work:
        core.step()
    assert not core.scheduler.sequences


def test_an_abort_ends_the_stream_with_the_text_so_far(engine: AsyncLLM) -> None:
    gate, held = at_three()
    long = SamplingParams(max_tokens=100, ignore_eos=True, seed=1, logits_processors=(held,))

    async def aborted() -> list[RequestOutput]:
        outputs = []
        async for output in engine.generate("x", long, "mine"):
            outputs.append(output)
            await engine.abort("mine")
            await engine.abort("nobody")
            gate.set()
        return outputs

    last = asyncio.run(aborted())[-1]
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"
    assert 1 <= len(last.outputs[0].token_ids) < 100


def test_a_bad_request_does_not_affect_others(engine: AsyncLLM) -> None:
    async def both() -> list[RequestOutput]:
        good = asyncio.create_task(_collect(engine, "x", GREEDY))
        with pytest.raises(RequestError, match="the prompt has no tokens"):
            await _collect(engine, "", GREEDY)
        return await good

    assert asyncio.run(both())[-1].finished


def test_an_output_does_not_change_after_it_was_yielded(engine: AsyncLLM) -> None:
    gate, held = at_three()
    outputs = []

    async def read() -> None:
        sampling = replace(GREEDY, logits_processors=(held,))
        async for output in engine.generate("x", sampling):
            outputs.append(output)
            gate.set()

    asyncio.run(read())
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == sorted(set(lengths))
    assert len(lengths) > 1


def test_a_request_id_may_be_reused_while_events_of_the_first_are_in_flight(
    engine: AsyncLLM,
) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)

    async def again() -> None:
        other = asyncio.create_task(_collect(engine, "y", long))
        for _ in range(6):
            stream = engine.generate("x", long, "same")
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
        assert len((await other)[-1].outputs[0].token_ids) == 60

    asyncio.run(asyncio.wait_for(again(), 300))


def test_a_request_id_is_in_use_until_its_caller_has_seen_the_end(engine: AsyncLLM) -> None:
    gate, held = at_three()

    async def twice() -> int:
        stream = engine.generate("x", replace(GREEDY, logits_processors=(held,)), "same")
        first = await anext(stream)
        gate.set()
        while len(engine._table):  # it goes on to its end, unread
            await asyncio.sleep(0)
        assert not first.finished
        with pytest.raises(RequestError, match="'same' is in use"):
            await anext(engine.generate("x", GREEDY, "same"))
        return [output.finished async for output in stream].count(True)

    assert asyncio.run(asyncio.wait_for(twice(), 300)) == 1


def test_closing_wakes_the_waiting_callers(engine: AsyncLLM) -> None:
    gate, held = at_three()

    async def close() -> None:
        long = SamplingParams(max_tokens=100, ignore_eos=True, seed=1, logits_processors=(held,))
        stream = engine.generate("x", long)
        await anext(stream)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        client: Any = engine._client
        while not client._is_closing:
            await asyncio.sleep(0)
        gate.set()
        with pytest.raises(EngineDeadError, match="the engine is closed"):
            async for _ in stream:
                pass
        await closing

    asyncio.run(asyncio.wait_for(close(), 300))
    assert not engine._sinks
