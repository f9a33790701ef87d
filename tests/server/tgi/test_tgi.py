"""TGI's dialect: answers whole and in events, details, grammars, refusals, the model's alias."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.dialects.tgi.writer import TgiWriter
from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.operation import TURN
from tests.server.durable.make import in_loop
from tests.server.engine import FACTS
from tests.server.make import Client, serving
from tests.server.openai.scripted import make_files, scripted_engine

TEXT = "The quick"
_WHOLE = document(ROUTES, DEFAULT_DIALECT)
ANSWER = Draft202012Validator({**_WHOLE, "$ref": "#/components/schemas/TgiAnswer"})
EVENT = Draft202012Validator({**_WHOLE, "$ref": "#/components/schemas/TgiEvent"})


async def answer(client: Client, path: str = "/generate", **parameters: Any) -> Any:
    """Return the JSON of an answer that succeeds."""
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 5, **parameters}}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: Client, path: str = "/generate_stream", **parameters: Any) -> list[Any]:
    """Return the events of an answer, each of a token; nothing follows the last."""
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 5, **parameters}, "stream": True}
    response = await client.post(path, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    found = [json.loads(each.removeprefix("data: ")) for each in frames]
    assert [each["index"] for each in found] == [*range(1, len(found) + 1)]
    assert all(each["generated_text"] is each["details"] is None for each in found[:-1])
    for each in found:
        EVENT.validate(each)
    return found


@in_loop
async def test_an_answer_says_the_same_on_every_route(directory: Path) -> None:
    async with serving(directory, strict=True) as client:
        plain = await client.complete(
            prompt=TEXT, max_tokens=5, temperature=0, logprobs=2, return_token_ids=True
        )
        (choice,) = plain["choices"]
        whole = await answer(client, details=True, top_n_tokens=2)
        ANSWER.validate(whole)
        assert await answer(client) == {"generated_text": choice["text"]}
        assert await answer(client, "/") == [{"generated_text": choice["text"]}]
        full = await answer(client, return_full_text=True)
        assert full["generated_text"] == TEXT + choice["text"]
        details = whole["details"]
        for events in (
            await stream(client, top_n_tokens=2),
            await stream(client, "/", top_n_tokens=2),
        ):
            tokens = [each["token"] for each in events]
            assert tokens == details["tokens"]
            assert [each["top_tokens"] for each in events] == details["top_tokens"]
            assert "".join(each["text"] for each in tokens) == choice["text"]
            assert events[-1]["generated_text"] == choice["text"]
            ended = events[-1]["details"]
            assert (ended["finish_reason"], ended["generated_tokens"]) == ("length", 5)
            assert ended["input_length"] == plain["usage"]["prompt_tokens"]
        assert [each["id"] for each in details["tokens"]] == choice["token_ids"]
        logprobs = [each["logprob"] for each in details["tokens"]]
        assert logprobs == choice["logprobs"]["token_logprobs"]
        assert {len(each) for each in details["top_tokens"]} == {2}
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", 5)
        full = (await stream(client, return_full_text=True))[-1]
        assert full["generated_text"] == TEXT + choice["text"]


@in_loop
async def test_a_streams_tokens_leave_turns_to_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[bytes]()

    def recorded(self: TgiWriter, *given: Any) -> Iterator[bytes]:
        for part in frames(self, *given):
            made.append(part)
            yield part

    frames = TgiWriter.frames
    monkeypatch.setattr(TgiWriter, "frames", recorded)
    monkeypatch.setattr("octavo.dialects.common.logprobs.MAX_AT_ONCE", 1)
    async with serving(directory) as client:
        found = await stream(client, top_n_tokens=2)
        assert made.count(TURN) == len(found)


@in_loop
async def test_an_answer_ends_with_its_stop_string_or_the_models_own_end(tmp_path: Path) -> None:
    make_files(tmp_path)
    async with serving(tmp_path, scripted_engine(tmp_path, [("", "one two\nthree")])) as client:
        for stop, text, reason in (
            (["two"], "one two", "stop_sequence"),
            ([], "one two\nthree", "eos_token"),
        ):
            asked: dict[str, Any] = {"max_new_tokens": 60, "stop": stop, "details": True}
            whole = await answer(client, **asked)
            events = await stream(client, **asked)
            assert whole["generated_text"] == events[-1]["generated_text"] == text
            assert whole["details"]["finish_reason"] == reason
            assert events[-1]["details"]["finish_reason"] == reason
            assert "".join(each["token"]["text"] for each in events) == text


@in_loop
async def test_tokens_are_drawn_where_a_parameter_says_so(directory: Path) -> None:
    async with serving(directory) as client:
        greedy = await answer(client, max_new_tokens=30)
        assert await answer(client, max_new_tokens=30, seed=5) == greedy
        off = await answer(client, max_new_tokens=30, seed=5, typical_p=1)
        assert off == greedy, "this one leaves all tokens"
        for how in (
            *({"do_sample": True}, {"temperature": 1.0}, {"top_k": 200}, {"top_p": 0.99}),
            {"typical_p": 0.99},
        ):
            drawn = [await answer(client, max_new_tokens=30, seed=5, **how) for _ in range(2)]
            assert drawn[0] == drawn[1] != greedy
        seeded = await answer(client, do_sample=True, seed=5, details=True)
        assert seeded["details"]["seed"] == 5


@in_loop
async def test_the_input_is_cut_and_listed(directory: Path) -> None:
    async with serving(directory) as client:
        asked: dict[str, Any] = {"details": True, "decoder_input_details": True}
        whole = (await answer(client, **asked))["details"]["prefill"]
        listed = await client.post("/tokenize", json={"prompt": TEXT})
        assert [each["id"] for each in whole] == listed.json()["tokens"]
        assert whole[0]["logprob"] is None
        assert all(each["logprob"] < 0 for each in whole[1:])
        assert "".join(each["text"] for each in whole) == TEXT
        assert await answer(client, truncate=10**6) == await answer(client)
        cut = (await answer(client, **asked, truncate=2))["details"]["prefill"]
        assert [each["id"] for each in cut] == [each["id"] for each in whole[-2:]]


@in_loop
async def test_an_answer_without_a_limit_has_a_hundred_tokens_or_what_fits(directory: Path) -> None:
    async with serving(directory) as client:
        response = await client.post("/generate_stream", json={"inputs": TEXT})
        last = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))
        ended = last["details"]
        room = FACTS.longest_tokens - ended["input_length"]
        assert ended["generated_tokens"] == min(100, room)


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"best_of": 2}, "parameters.best_of"),
        ({"typical_p": 1.2}, "parameters.typical_p"),
        ({"watermark": True}, "parameters.watermark"),
        ({"temperature": 0}, "parameters.temperature"),
        ({"max_new_tokens": 10**6}, "parameters.max_new_tokens"),
        ({"details": True, "top_n_tokens": 10**6}, "parameters.top_n_tokens"),
        ({"grammar": {"type": "json", "value": {"type": 12}}}, "parameters.grammar.value.type"),
        ({"grammar": {"type": "json", "value": "{"}}, "parameters.grammar.value"),
        ({"grammar": {"type": "json", "value": "[" * 99_999}}, "parameters.grammar.value"),
        ({"grammar": {"type": "regex", "value": "("}}, "parameters.grammar.value"),
        ({"grammar": {"type": "json_schema", "value": {}}}, "parameters.grammar.value.schema"),
    ],
)
@in_loop
async def test_a_refusal_names_the_parameter(directory: Path, parameters: Any, param: str) -> None:
    async with serving(directory) as client:
        for path in ("/", "/generate", "/generate_stream"):
            refused = await client.post(path, json={"inputs": TEXT, "parameters": parameters})
            assert refused.status_code == 400
            error = refused.json()
            assert (error["error_type"], error["param"]) == ("validation", param)
            assert isinstance(error["error"], str)


@in_loop
async def test_a_refusal_names_the_input(directory: Path) -> None:
    async with serving(directory) as client:
        long = "word " * 4 * FACTS.longest_tokens
        for body in ({}, {"inputs": ["x"]}, {"inputs": long}):
            refused = await client.post("/generate", json=body)
            assert (refused.status_code, refused.json()["param"]) == (400, "inputs")
        other = {"inputs": "x", "parameters": {"decoder_input_details": True}}
        refused = await client.post("/generate_stream", json=other)
        assert refused.json()["param"] == "parameters.decoder_input_details"


@in_loop
async def test_grammars_shape_the_answer(tmp_path: Path) -> None:
    """The engine here does not apply grammars, so that the test looks at what it was given."""
    schema: Any = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    make_files(tmp_path)
    async with serving(tmp_path, scripted_engine(tmp_path, [("", "x")])) as client:
        grammars: list[str] = client.server.llm.runner.grammars  # type: ignore[attr-defined]
        given: list[dict[str, Any]] = [
            {"type": "json", "value": schema},
            {"type": "json", "value": json.dumps(schema)},
            {"type": "json_schema", "value": {"name": "it", "schema": schema}},
            {"type": "regex", "value": "[0-9]{3}"},
        ]
        for grammar in given:
            await answer(client, grammar=grammar)
        assert grammars[0]
        assert grammars[:3] == [grammars[0]] * 3
        assert "/[0-9]{3}/" in grammars[3]


@in_loop
async def test_tgi_is_a_name_of_any_model(directory: Path) -> None:
    async with serving(directory) as client:
        body = {"model": "tgi", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        found = await client.post("/v1/chat/completions", json=body)
        assert (found.status_code, found.json()["model"]) == (200, "tiny")
        assert (
            await client.post("/generate", json={"inputs": "x", "model": "x"})
        ).status_code == 404


@in_loop
async def test_the_facts_are_those_of_the_model(directory: Path) -> None:
    async with serving(directory) as client:
        found = (await client.get("/info")).json()
        assert (found["model_id"], found["max_total_tokens"]) == ("tiny", FACTS.longest_tokens)
        assert (await client.get("/")).text == "Octavo is running\n"
