"""Beam search over HTTP finds what `LLM.beam_search` finds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.api.async_llm import AsyncLLM
from octavo.api.beam_search import BeamSearch, BeamSearchParams
from octavo.api.llm import LLM
from octavo.api.requests import TOO_LONG
from octavo.api.text_model import files_of
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.dialects.common.beams import REFUSED, SETTINGS
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.samplers import SamplerFields
from octavo.dialects.common.schema.shapes import ShapeFields
from octavo.options.engine import EngineArguments
from octavo.serving import large_bodies
from octavo.serving.beams.generation import BeamGeneration
from octavo.serving.operation import PreparedRequest
from octavo.serving.server import Server
from tests.api.tiny import make_model
from tests.client import clients
from tests.server.durable.make import KEY, Gate, durable
from tests.server.engine import END, ChainRunner, FakeEngine, extended, logprobs_of
from tests.server.make import Client, patient, serving, until
from tests.server.openai.calls import error_of

PROMPT = [5, 6, 7]
# Fields that mean beside a search what they mean elsewhere, of prompts and responses most of them.
KEPT = {
    *("model", "lora", "lora_path", "messages", "prompt", "suffix", "echo", "documents"),
    "add_special_tokens",
    *("chat_template", "chat_template_kwargs", "add_generation_prompt", "reasoning_effort"),
    *("continue_final_message", "truncate_prompt_tokens", "truncation_side", "tools"),
    *("tool_choice", "parallel_tool_calls", "functions", "function_call", "include_reasoning"),
    *("max_tokens", "max_completion_tokens", "n", "temperature", "seed", "stop_token_ids"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "stream_options", "return_tokens_as_token_ids"),
    *("return_token_ids", "return_prompt_text", "return_token_offsets", "cache_salt", "priority"),
    *("return_assistant_tokens_mask", "request_id", "deadline_ms", "explain"),
    *("timings_per_token", "return_progress", "verbose"),  # two concern streams alone
    "speculation",  # the text is the same with and without
    # These have an effect beside a sampler that is refused, and no other.
    *("xtc_threshold", "dynatemp_exponent", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "dry_sequence_breakers", "mirostat_tau", "mirostat_eta"),
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STOPS = list(range(2, 300, 3))
BEAMS: dict[str, Any] = {
    "use_beam_search": True,
    "n": 4,
    "max_tokens": 6,
    "temperature": 0,
    "return_token_ids": True,
}


def searched(
    prompt: Sequence[int],
    width: int,
    length: int,
    penalty: float = 1.0,
    *,
    ends: Collection[int] = (END,),
    is_early: bool = False,
) -> list[tuple[list[int], str]]:
    """Return the best beams of the `ChainRunner`, found in the plainest way."""
    living: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []

    def rank(beam: tuple[float, tuple[int, ...]]) -> Any:
        return -beam[0] / len(beam[1]) ** penalty, beam[1]

    for _ in range(length):
        longer = []
        for total, tokens in living:
            state = 0
            for token in (*prompt, *tokens):
                state = extended(state, token)
            found = logprobs_of(state, 2, 2 * width)
            for token, logprob in list(zip(found.token_ids, found.logprobs, strict=True))[1:]:
                longer.append((total + logprob, (*tokens, token)))
        longer.sort(key=rank)
        ended = [each for each in longer if each[1][-1] in ends]
        done += ended
        living = [each for each in longer if each not in ended][:width]
        if is_early and len(done) >= width:
            break
    best = sorted([*done, *living], key=rank)[:width]
    return [(list(tokens), "stop" if (_, tokens) in done else "length") for _, tokens in best]


def found_in(answer: Any) -> list[tuple[list[int], str]]:
    """Return the tokens and the ends of an answer's choices."""
    assert [each["index"] for each in answer["choices"]] == list(range(len(answer["choices"])))
    return [(each["token_ids"], each["finish_reason"]) for each in answer["choices"]]


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("flags", [{}, {"ignore_eos": True}, {"stop_token_ids": STOPS}])
@pytest.mark.parametrize("is_early", [False, True])
def test_beams_are_those_of_the_plainest_search(
    directory: Path, penalty: float, flags: dict[str, Any], is_early: bool
) -> None:
    ends = {*flags.get("stop_token_ids", ()), *(() if "ignore_eos" in flags else (END,))}

    async def main() -> None:
        num_ended = 0
        async with serving(directory) as client:
            for first in range(5, 12):
                prompts = [[first, 6], [7, first]]
                fields = {**BEAMS, "n": 8, "length_penalty": penalty, **flags}
                fields["early_stopping"] = is_early
                answer = await client.complete(prompt=prompts, **fields)
                expected = []
                for prompt in prompts:
                    expected += searched(prompt, 8, 6, penalty, ends=ends, is_early=is_early)
                assert found_in(answer) == expected
                num_ended += sum(reason == "stop" for _, reason in expected)
                used = answer["usage"]
                assert used["completion_tokens"] == sum(len(tokens) for tokens, _ in expected)
                assert used["prompt_tokens"] == 4
            # The model's own end is seldom likely enough for a beam that is not short.
            is_likely = "stop_token_ids" in flags or (not flags and penalty <= 0)
            assert bool(num_ended) is is_likely
            await nothing_left(client)

    asyncio.run(main())


async def nothing_left(client: Client) -> None:
    """Wait until no request, no place in the queue and no sink is left."""
    engine: Any = client.server.llm
    await until(lambda: not (client.server.active or engine._sinks or engine._table._entries))
    await until(lambda: client.server.admission.num_open == 0)
    assert client.server.admission.num_admitted == 0
    assert client.server.admission.waiting_tokens == 0


@pytest.mark.slow
def test_http_finds_what_the_library_finds(tmp_path: Path) -> None:
    """A real model gives the same beams, with the same texts, to both."""
    pytest.importorskip("torch")
    model = str(make_model(tmp_path))
    options: Any = {"block_size": 4, "num_gpu_blocks_override": 400}
    with LLM(model, **options) as llm:
        (plain,) = llm.beam_search([PROMPT], BeamSearchParams(4, 6, length_penalty=0.5))
    llm_of_server = AsyncLLM(model, **options)

    async def main() -> None:
        llm_of_server.attach()
        async with Client(Server(llm_of_server, patient())) as client:
            answer = await client.complete(prompt=PROMPT, **BEAMS, length_penalty=0.5)
            assert [each["token_ids"] for each in answer["choices"]] == [
                each.token_ids for each in plain.outputs
            ]
            assert [each["text"] for each in answer["choices"]] == [
                each.text for each in plain.outputs
            ]
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm_of_server.close()


def test_a_chat_has_the_beams_as_its_answers(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            answer = await client.chat(**BEAMS)
            prompt = answer["prompt_token_ids"]
            assert found_in(answer) == searched(prompt, 4, 6)
            plain = await client.complete(prompt=prompt, **BEAMS)
            messages = [{"role": "user", "content": content} for content in ("Hello", "x")]
            body = {**BEAMS, "messages": [messages[:1], messages[1:]]}
            batch = (await client.post("/v1/chat/completions/batch", json=body)).json()
            assert len(batch["choices"]) == 8
            assert batch["choices"][:4] == answer["choices"]
            body["max_tokens"] = 4097
            wrong = (await client.post("/v1/chat/completions/batch", json=body)).json()
            assert wrong["error"]["param"] == "max_tokens"
            assert [each["text"] for each in plain["choices"]] == [
                each["message"]["content"] for each in answer["choices"]
            ]
            await nothing_left(client)

    asyncio.run(main())


def test_beams_are_read_as_other_answers_are(directory: Path) -> None:
    """Reasoning is separated from the text, and tools that may be called are no obstacle."""
    formats: Any = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    formats["chat_template"] = "{% for each in messages %}{{ each.content }}{% endfor %}<think>\n"

    async def main() -> None:
        engine = FakeEngine(directory, max_model_len=1024)
        async with serving(directory, engine, **formats) as client:
            answer = await client.chat(**BEAMS, tools=[TOOL])
            assert found_in(answer) == searched(answer["prompt_token_ids"], 4, 6)
            for each in answer["choices"]:
                assert each["message"]["reasoning"]  # no mark has ended it
                assert not each["message"]["content"]
            counts = answer["usage"]["completion_tokens_details"]
            assert counts["reasoning_tokens"] == 24

    asyncio.run(main())


def test_the_text_has_the_token_that_ends_it_if_it_is_asked_for(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            # A token that ends a beam of its own, and stands in its text only then.
            (first, _), *_ = searched(PROMPT, 4, 1)
            fields = {**BEAMS, "prompt": PROMPT, "stop_token_ids": first, "max_tokens": 1}
            hidden = (await client.complete(**fields))["choices"][0]
            shown = (await client.complete(**fields, include_stop_str_in_output=True))["choices"][0]
            assert hidden["token_ids"] == shown["token_ids"] == first
            assert hidden["stop_reason"] == shown["stop_reason"] == first[0]
            assert hidden["finish_reason"] == "stop"
            assert hidden["text"] == ""
            assert shown["text"]
            echoed = (await client.complete(**fields, echo=True))["choices"][0]
            assert echoed["text"]

    asyncio.run(main())


def test_a_large_body_gives_the_same_beams(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker translates it, and the settings of the search are not lost on the way."""

    async def main() -> None:
        async with serving(directory) as client:
            fields = {"prompt": "The quick", **BEAMS, "n": 8, "length_penalty": -1.0}
            small = await client.complete(**fields)
            monkeypatch.setattr(large_bodies, "is_large", lambda body: True)
            large = await client.complete(**fields)
            assert large["choices"] == small["choices"]
            wrong = await client.complete(**fields, stream=True)
            assert wrong["error"]["param"] == "stream"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 65}, "n"),
        ({"max_tokens": 8193}, "max_tokens"),
        ({"prompt": [[5]] * 65, "n": 1, "max_tokens": 505}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"prompt": [[5]] * 513, "n": 64, "max_tokens": 1}, "prompt"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"samplers": ["top_k"]}, "samplers"),
        ({"dry_multiplier": 1}, "dry_multiplier"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"stop": "x"}, "stop"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"vllm_xargs": {"x": 1}}, "vllm_xargs"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping"),
    ],
)
def test_what_beams_cannot_have_is_refused(
    directory: Path, fields: dict[str, Any], param: str
) -> None:
    error = error_of(directory, **{**BEAMS, **fields})
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"


def test_each_field_has_its_effect_on_beams_or_is_refused() -> None:
    """A new field of these routes must be put into one of the two lists."""
    names = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    names -= set(ShapeFields.__struct_fields__) - set(SamplerFields.__struct_fields__)
    assert names == {*KEPT, *SETTINGS, *REFUSED, "use_beam_search"}
    assert not KEPT & {*SETTINGS, *REFUSED}


def test_chats_refuse_forced_calls_and_other_routes_refuse_beams(directory: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    sampling = {"use_beam_search": True}

    async def main() -> None:
        async with serving(directory) as client:
            for fields, param in (
                ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
                ({"logprobs": True}, "logprobs"),
                ({"max_completion_tokens": 8193}, "max_completion_tokens"),
            ):
                answer = await client.chat(**{**BEAMS, **fields})
                assert answer["error"]["param"] == param
            for path, body in (
                ("/v1/chat/completions/render", {"messages": messages, **BEAMS}),
                ("/v1/completions/render", {"prompt": "x", **BEAMS}),
                ("/v1/responses", {"input": "x", **sampling}),
            ):
                response = await client.post(path, json=body)
                assert response.status_code == 400, path
                assert response.json()["error"]["param"] == "use_beam_search", path

    asyncio.run(main())


def test_a_search_ends_where_the_context_or_its_bound_does(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {**BEAMS, "ignore_eos": True, "max_tokens": None}
            chat = await client.chat(**fields, explain=True)
            room = 256 - len(chat["prompt_token_ids"])
            assert [len(each["token_ids"]) for each in chat["choices"]] == [room] * 4
            assert chat["explain"]["completion_tokens"] == 4 * room
            assert client.server.metrics.num_generated == 4 * room

    asyncio.run(main())


def test_the_prompts_of_all_beams_are_bounded(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, max_waiting_tokens=11) as client:
            fields = {"prompt": PROMPT, "max_tokens": 2, "use_beam_search": True}
            assert len((await client.complete(**fields, n=3))["choices"]) == 3
            error = (await client.complete(**fields, n=4))["error"]
            assert (error["param"], error["code"]) == ("prompt", TOO_LONG)
            error = (await client.chat("a long conversation", n=4, use_beam_search=True))["error"]
            assert (error["param"], error["code"]) == ("messages", TOO_LONG)

    asyncio.run(main())


def test_a_search_is_freed_without_a_collection(directory: Path) -> None:
    """No cycle of references keeps a search that has ended, in whatever way."""

    def alive() -> int:
        kinds = (BeamGeneration, BeamSearch, PreparedRequest)
        return sum(type(each) in kinds for each in gc.get_objects())

    async def main() -> None:
        gate, engine = Gate(20), FakeEngine(directory)
        async with serving(directory, engine) as client:
            body = {"prompt": [PROMPT, [8]], **BEAMS}
            gc.collect()
            gc.disable()
            try:
                assert len((await client.complete(**body))["choices"]) == 8
                await until(lambda: not alive())
                body["max_tokens"] = 200
                engine.runner.before_step = gate.wait  # a search has no certain number of steps
                post = asyncio.ensure_future(client.post("/v1/completions", json=body))
                await until(lambda: gate.num_arrived > 20)
                assert alive()
                post.cancel()
                await asyncio.wait({post})
                del post
                gate.open()
                await until(lambda: not alive())
                engine.runner.poisoned.add("beams")
                headers = {"x-request-id": "beams"}
                failed = await client.post("/v1/completions", json=body, headers=headers)
                assert failed.status_code == 500
                await until(lambda: not alive())
            finally:
                gc.enable()
            await nothing_left(client)

    asyncio.run(main())


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_client_that_leaves_ends_the_search(directory: Path, num_steps: int) -> None:
    async def main() -> None:
        gate = Gate(num_steps)
        async with serving(directory, FakeEngine(directory, runner=gate.runner)) as client:
            body = {"prompt": [PROMPT, [8]], **BEAMS, "max_tokens": 100}
            post = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await until(lambda: gate.num_arrived > num_steps)
            assert client.server.admission.num_admitted == 8
            post.cancel()
            await until(lambda: not client.server.active)
            gate.open()
            await nothing_left(client)
            answer = await client.complete(prompt=PROMPT, **BEAMS)
            assert found_in(answer) == searched(PROMPT, 4, 6)

    asyncio.run(main())


def test_a_deadline_and_an_abort_end_the_search(directory: Path) -> None:
    async def main() -> None:
        gate = Gate(3)
        async with serving(directory, FakeEngine(directory, runner=gate.runner)) as client:
            body = {"prompt": PROMPT, **BEAMS, "max_tokens": 100}
            late = await client.complete(**{**body, "deadline_ms": 50})
            assert late["error"]["code"] == "deadline_exceeded"
            asked = asyncio.ensure_future(client.complete(**body, request_id="mine"))
            await until(lambda: any(each.record.entered_at for each in active(client)))
            names = {"request_ids": ["mine"]}
            await client.post("/inference/v1/abort_requests", json=names)
            assert (await asked)["error"]["code"] == "aborted"
            gate.open()
            await nothing_left(client)

    asyncio.run(main())


def active(client: Client) -> list[Any]:
    """Return the requests that are being answered."""
    return list(client.server.active.values())


def test_an_engine_that_stops_for_good_is_a_clean_error(directory: Path) -> None:
    async def main() -> None:
        num_steps = 0

        def fail() -> None:
            nonlocal num_steps
            num_steps += 1
            if num_steps > 3:
                raise RuntimeError("the engine fails in the middle of a search")

        engine = FakeEngine(directory, runner=ChainRunner(fail))
        async with serving(directory, engine) as client:
            response = await client.post("/v1/completions", json={"prompt": PROMPT, **BEAMS})
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_not_ready"
            assert not client.server.active
            await until(lambda: client.server.admission.num_open == 0)

    asyncio.run(main())


def test_with_a_journal_beams_are_answered_and_not_recorded(
    directory: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with durable(directory, tmp_path / "journal") as client:
            headers = {"authorization": f"Bearer {KEY}", "x-request-id": "beams"}
            body = {"prompt": PROMPT, **BEAMS}
            response = await client.post("/v1/completions", json=body, headers=headers)
            assert found_in(response.json()) == searched(PROMPT, 4, 6)
            service = client.server.durability
            assert service is not None
            assert not len(service.requests)

    asyncio.run(main())


@pytest.mark.slow
def test_a_search_outlives_its_engine(directory: Path) -> None:
    """The engine is killed in the middle, and the next one continues to the same beams."""
    arguments = EngineArguments(model="fake?step=0.002", tokenizer=str(directory))
    engine = make_client(arguments, [ProcessLauncher(clients.FACTORY)], clients.patient())
    engine.start()
    llm = AsyncLLM.over(engine, arguments, source=files_of(engine.facts))

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            body = {"prompt": PROMPT, **BEAMS, "ignore_eos": True, "max_tokens": 60}
            whole = await client.complete(**body)
            before = llm._num_requests
            asked = asyncio.ensure_future(client.complete(**body))
            await until(lambda: llm._num_requests > before + 20)
            clients.process_of(engine).kill()
            again = await asked
            assert llm.engines[0].vitals.num_deaths == 1
            assert again["choices"] == whole["choices"]
            await nothing_left(client)
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()
