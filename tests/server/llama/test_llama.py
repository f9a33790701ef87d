"""llama.cpp's dialect: completions whole and in events, prompts, biases, samplers, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.text.pieces import FILES, FORMS
from tests.server.durable.make import in_loop
from tests.server.engine import FACTS
from tests.server.llama.infill_files import make_infill_directory
from tests.server.make import Client, serving
from tests.server.openai.scripted import make_files, scripted_engine

PATH = "/completion"
ASKED: dict[str, Any] = {"prompt": "The quick", "n_predict": 5, "temperature": 0}
_WHOLE = document(ROUTES, DEFAULT_DIALECT)
_ANSWERS = "#/paths/~1completion/post/responses/200/content/application~1json/schema"
ANSWER = Draft202012Validator({**_WHOLE, "$ref": _ANSWERS})
CHUNK = Draft202012Validator({**_WHOLE, "$ref": "#/components/schemas/LlamaChunk"})


async def answer(client: Client, path: str = PATH, **fields: Any) -> Any:
    """Return the JSON of an answer that succeeds."""
    response = await client.post(path, json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    given = response.json()
    if "response_fields" not in fields:
        ANSWER.validate(given)
    return given


async def refusal(client: Client, path: str = PATH, **fields: Any) -> tuple[int, Any]:
    """Return the status and the field of a request that is refused."""
    response = await client.post(path, json={**ASKED, **fields})
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (response.status_code, "invalid_request_error")
    return response.status_code, error["param"]


async def stream(client: Client, path: str = PATH, **fields: Any) -> list[Any]:
    """Return the events of an answer; the last has the numbers, and nothing follows it."""
    response = await client.post(path, json={**ASKED, "stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    found = [json.loads(each.removeprefix("data: ")) for each in frames]
    assert [each["stop"] for each in found] == [False] * (len(found) - 1) + [True]
    for each in found[:-1]:
        CHUNK.validate(each)
    return found


@in_loop
async def test_an_answer_says_the_same_whole_and_in_events(directory: Path) -> None:
    async with serving(directory) as client:
        plain = await client.complete(max_tokens=5, temperature=0, return_token_ids=True)
        (choice,) = plain["choices"]
        whole = await answer(client, return_tokens=True)
        ANSWER.validate(whole)
        events = await stream(client)
        ANSWER.validate(events[-1])
        assert whole["content"] == choice["text"] == "".join(each["content"] for each in events)
        tokens = [token for each in events for token in each["tokens"]]
        assert whole["tokens"] == choice["token_ids"] == tokens
        assert (await answer(client, "/completions"))["tokens"] == []
        for each in (whole, events[-1]):
            assert (each["tokens_predicted"], each["stop_type"], each["truncated"]) == (
                *(5, "limit"),
                False,
            )
            assert (each["prompt"], each["index"]) == (ASKED["prompt"], 0)
            assert each["generation_settings"]["n_predict"] == 5
            assert each["generation_settings"]["temperature"] == 0
            times = each["timings"]
            assert times["prompt_n"] + times["cache_n"] == each["tokens_evaluated"]
            assert times["predicted_n"] == 5
            assert all(value >= 0 for value in times.values())


@in_loop
async def test_prompts_are_texts_token_ids_mixtures_or_objects(directory: Path) -> None:
    async with serving(directory) as client:
        text = await answer(client)
        listed = await client.post("/tokenize", json={"content": ASKED["prompt"]})
        ids = listed.json()["tokens"]
        assert (await answer(client, prompt=ids))["content"] == text["content"]
        mixed = [*ids[:1], "x", *ids[1:], "y"]
        made = await client.post("/tokenize", json={"content": "x"})
        again = await client.post("/tokenize", json={"content": "y"})
        plain = [*ids[:1], *made.json()["tokens"], *ids[1:], *again.json()["tokens"]]
        alike = [await answer(client, prompt=each) for each in (mixed, plain)]
        assert alike[0]["prompt"] == alike[1]["prompt"]
        assert alike[0]["content"] == alike[1]["content"]
        several = [ASKED["prompt"], ids, {"prompt_string": ASKED["prompt"]}, [ids[0], "x"]]
        answers = await answer(client, prompt=several)
        assert [each["index"] for each in answers] == [0, 1, 2, 3]
        assert {each["content"] for each in answers[:3]} == {text["content"]}
        assert len(await answer(client, prompt=["a"])) == 1
        assert len(await answer(client, n_cmpl=2, temperature=1)) == 2
        for wrong in ([], [ids[0], {"prompt_string": "x"}], [ids, []]):
            status, param = await refusal(client, prompt=wrong)
            assert (status, param.partition("[")[0]) == (400, "prompt")
        media = {"prompt_string": "x", "multimodal_data": ["aGk="]}
        assert await refusal(client, prompt=media) == (400, "prompt.multimodal_data")


@in_loop
async def test_a_large_body_is_read_in_a_worker_with_the_same_answer(directory: Path) -> None:
    async with serving(directory) as client:
        for prompt in ("The quick", ["The quick", "x"], [5, "The quick", 6]):
            small = await answer(client, prompt=prompt)
            body = json.dumps({**ASKED, "prompt": prompt}) + " " * (1 << 18)
            kind = {"content-type": "application/json"}
            response = await client.post(PATH, content=body, headers=kind)
            large = response.json()
            listed = [(small, large)] if isinstance(small, dict) else zip(small, large, strict=True)
            for one, other in listed:
                assert one["content"] == other["content"]
                assert one["prompt"] == other["prompt"]


@in_loop
async def test_how_an_answer_ends_is_said(tmp_path: Path) -> None:
    make_files(tmp_path)
    engine = scripted_engine(tmp_path, [("", "one two\nthree")])
    async with serving(tmp_path, engine) as client:
        fields: dict[str, Any] = {"n_predict": -1}
        ended = await answer(client, **fields)
        assert (ended["stop_type"], ended["stopping_word"]) == ("eos", "")
        assert (ended["content"], ended["has_new_line"]) == ("one two\nthree", True)
        stopped = await answer(client, stop=["", "two"], **fields)
        assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "two")
        assert (stopped["content"], stopped["has_new_line"]) == ("one ", False)
        assert stopped["generation_settings"]["n_predict"] == -1
        nothing = await answer(client, n_predict=0)
        assert (nothing["content"], nothing["tokens_predicted"]) == ("", 0)
        events = await stream(client, n_predict=0)
        assert [each["content"] for each in events] == [""]
        reduced = await answer(client, response_fields=["content", "timings/cache_n", "other"])
        assert sorted(reduced) == ["content", "timings/cache_n"]


@in_loop
async def test_an_answer_that_fills_the_context_is_truncated(directory: Path) -> None:
    async with serving(directory) as client:
        for wanted in (-1, FACTS.longest_tokens):
            full = await answer(client, n_predict=wanted, ignore_eos=True)
            assert (full["truncated"], full["stop_type"]) == (True, "limit")
            assert full["tokens_evaluated"] + full["tokens_predicted"] == FACTS.longest_tokens
        long = await client.post(PATH, json={"prompt": "word " * 4 * FACTS.longest_tokens})
        assert long.status_code == 400
        error = long.json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert "exceeds the available context size" in error["message"]
        assert error["n_prompt_tokens"] > error["n_ctx"] == FACTS.longest_tokens


@in_loop
async def test_a_chat_that_is_too_long_is_recognised_by_the_clients_of_both(
    directory: Path,
) -> None:
    messages = [{"role": "user", "content": "word " * 4 * FACTS.longest_tokens}]
    async with serving(directory) as client:
        for stream in (False, True):
            body = {"messages": messages, "stream": stream}
            asked = await client.post("/chat/completions", json=body)
            error = asked.json()["error"]
            assert (asked.status_code, error["code"]) == (400, "context_length_exceeded")
            assert error["type"] == "exceed_context_size_error"
            assert error["n_prompt_tokens"] > error["n_ctx"] == FACTS.longest_tokens
            other = (await client.post("/v1/chat/completions", json=body)).json()["error"]
            assert other["type"] == "invalid_request_error"
            assert other["code"] == error["code"]
        wrong = await client.post("/chat/completions", json={"messages": 1})
        same = await client.post("/v1/chat/completions", json={"messages": 1})
        assert wrong.json() == same.json()


@in_loop
async def test_any_name_of_a_model_is_answered_if_the_server_says_so(directory: Path) -> None:
    async with serving(directory) as client:
        unknown = await client.post(PATH, json={**ASKED, "model": "gpt-3.5-turbo"})
        assert unknown.status_code == 404
    async with serving(directory, any_model_name=True) as client:
        named = await answer(client, model="gpt-3.5-turbo")
        assert named["content"] == (await answer(client))["content"]
        assert named["model"] == "tiny"


@in_loop
async def test_probabilities_are_those_of_the_other_dialect(directory: Path) -> None:
    async with serving(directory) as client:
        whole = await answer(client, n_probs=3)
        events = await stream(client, n_probs=3)
        listed = whole["completion_probabilities"]
        assert listed == [
            each for event in events[:-1] for each in event["completion_probabilities"]
        ]
        other = await client.complete(max_tokens=5, temperature=0, logprobs=3)
        expected = other["choices"][0]["logprobs"]["token_logprobs"]
        assert [each["logprob"] for each in listed] == expected
        for each in listed:
            assert bytes(each["bytes"]).decode("utf-8", "replace") == each["token"]
            assert len(each["top_logprobs"]) == 3
        assert "completion_probabilities" not in await answer(client)


@in_loop
async def test_biases_are_of_tokens_and_of_texts(directory: Path) -> None:
    async with serving(directory) as client:
        first = (await answer(client, return_tokens=True, n_predict=1))["tokens"][0]
        listed = (await client.post("/tokenize", json={"content": "ab"})).json()["tokens"]
        for given in ([[first, False]], {str(first): -100}, [[first, -1e9]]):
            found = await answer(client, logit_bias=given)
            assert _biases(found) == {first: -100.0}
        found = await answer(client, logit_bias=[["ab", 100], ["ab", 50], [first, 1]])
        assert _biases(found) == {**dict.fromkeys(listed, 100.0), first: 1.0}
        assert set(_biases(await answer(client, ignore_eos=True)).values()) == {None}
        for wrong in ([[1]], [[1, True]], [[None, 1]], {"a" * 5000: 1}, [[10**6, 1]]):
            assert await refusal(client, logit_bias=wrong) == (400, "logit_bias")


def _biases(found: Any) -> dict[int, float | None]:
    """Return the biases of an answer's settings by token."""
    return {each["token"]: each["bias"] for each in found["generation_settings"]["logit_bias"]}


SERVED = ("top_k", "top_p", "min_p", "temperature")


@pytest.mark.parametrize("form", [["top_k", "infill", "temperature"], "kt"])
@in_loop
async def test_samplers_that_are_not_listed_are_off(directory: Path, form: Any) -> None:
    async with serving(directory) as client:
        fields: dict[str, Any] = {"top_k": 3, "top_p": 0.5, "min_p": 0.2, "temperature": 0.7}
        settings = (await answer(client, **fields, samplers=form))["generation_settings"]
        assert [settings[name] for name in SERVED] == [3, 1.0, 0.0, 0.7]
        settings = (await answer(client, **fields))["generation_settings"]
        assert [settings[name] for name in SERVED] == list(fields.values())
        assert await refusal(client, samplers=["other"]) == (400, "samplers")
        assert await refusal(client, samplers="q") == (400, "samplers")


@in_loop
async def test_further_samplers_are_listed_after_all_defaults(directory: Path) -> None:
    fields: dict[str, Any] = {
        "typical_p": 0.3,
        "top_n_sigma": 1.5,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.2,
        "dynatemp_range": 0.5,
        "dynatemp_exponent": 2.0,
        "min_keep": 3,
        "repeat_last_n": 64,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 100,
        "dry_sequence_breakers": ["x"],
        "repeat_penalty": 1.1,
        "mirostat": 1,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.3,
        "samplers": ["penalties", "dry", "top_n_sigma", "typ_p", "xtc", "temperature"],
    }
    off: dict[str, Any] = {
        "typical_p": 1.0,
        "top_n_sigma": -1,
        "xtc_probability": 0,
        "dry_multiplier": 0.0,
    }
    async with serving(directory) as client:
        settings = (await answer(client, **fields))["generation_settings"]
        assert {name: settings[name] for name in fields} == fields
        plain = (await answer(client))["generation_settings"]
        assert (await answer(client, **off, seed=plain["seed"]))["generation_settings"] == plain
        none = (await answer(client, samplers=["infill"], temperature=0.3))["generation_settings"]
        assert none["temperature"] == 1.0
        assert (await answer(client, typical_p=0))["generation_settings"]["typical_p"] > 0


@in_loop
async def test_an_order_that_would_lose_penalties_is_refused(directory: Path) -> None:
    async with serving(directory) as client:
        late: dict[str, Any] = {"samplers": ["top_k", "penalties"], "top_k": 3}
        await answer(client, **late)  # there are no penalties
        assert await refusal(client, **late, repeat_penalty=1.1) == (400, "samplers")
        assert await refusal(client, samplers=["xtc", "xtc"]) == (400, "samplers")


@in_loop
async def test_what_is_not_served_is_refused_by_name_where_it_asks_for_something(
    directory: Path,
) -> None:
    asks: dict[str, tuple[Any, Any]] = {  # what asks for nothing, and what is refused
        "adaptive_target": (-1.0, 0.4),
        "post_sampling_probs": (False, True),
        "lora": ([], [{"id": 0, "scale": 1}]),
    }
    async with serving(directory, strict=True) as client:
        for name, (harmless, asking) in asks.items():
            await answer(client, **{name: harmless})
            assert await refusal(client, **{name: asking}) == (400, name)
        await answer(client, cache_prompt=True, id_slot=1, t_max_predict_ms=500, n_keep=3)


@in_loop
async def test_errors_of_the_checks_have_the_names_of_this_dialect(directory: Path) -> None:
    async with serving(directory) as client:
        for field, value in {
            "n_probs": 10**6,
            "json_schema": {"type": 12},
            "grammar": "root ::= (",
        }.items():
            status, param = await refusal(client, PATH, **{field: value})
            assert (status, param.partition(".")[0]) == (400, field)
        both = await refusal(client, json_schema={}, grammar='root ::= "a"')
        assert both == (400, "grammar")
        other = await client.post(PATH, json={**ASKED, "model": "other"})
        assert (other.status_code, other.json()["error"]["type"]) == (404, "not_found_error")


@in_loop
async def test_infilling_puts_files_prefix_suffix_and_beginning_in_order(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"input_prefix": "The ", "input_suffix": " dog", "prompt": "qu"}
    extra = [{"filename": "a.txt", "text": "x"}, {"text": "y"}]
    for name, marks in (("with", (*FORMS[0], *FILES[0])), ("without", FORMS[0])):
        directory = make_infill_directory(tmp_path / name, marks)
        async with serving(directory) as client:
            listed = await client.post("/tokenize", json={"content": "", "add_special": True})
            assert listed.json()["tokens"] == []
            plain = await answer(client, "/infill", **fields)
            assert plain["tokens_evaluated"] == 3 + await _count(client, "The ", " dog", "qu")
            more = await answer(client, "/infill", **fields, input_extra=extra)
            around = 3 if name == "without" else 7
            texts: tuple[str, ...] = ("x\n\ny\n\n",)
            if name == "with":
                texts = ("project\n", "a.txt\nx", "file\ny", "file\n")
            expected = around + await _count(client, "The ", " dog", "qu", *texts)
            assert more["tokens_evaluated"] == expected
    wrong = [{"filename": 1, "text": "x"}]
    async with serving(directory) as client:
        status, param = await refusal(client, "/infill", **fields, input_extra=wrong)
        assert (status, param) == (400, "input_extra[0].filename")


async def _count(client: Client, *texts: str) -> int:
    """Return the number of tokens of texts, each on its own."""
    total = 0
    for text in texts:
        response = await client.post("/tokenize", json={"content": text})
        total += response.json()["count"]
    return total


@in_loop
async def test_a_model_without_marks_refuses_to_infill(directory: Path) -> None:
    async with serving(directory) as client:
        fields: dict[str, Any] = {"input_prefix": "a", "input_suffix": "b"}
        assert await refusal(client, "/infill", **fields) == (400, "input_suffix")
