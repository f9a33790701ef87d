"""Answers made of given tokens are those that this server itself would have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import Client, serving
from tests.server.openai.scripted import MESSAGES, OSLO, THOUGHT, TOOLS, put_together, writing

TOKENS = "/inference/v1/generate"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
SAMPLED = {"temperature": 0.9, "seed": 3, "max_tokens": 12, "n": 2}
ANSWERS = [
    f"{THOUGHT}It is 3 degrees.",
    f"{THOUGHT}I look.\n{OSLO}",
    "Café, 思考 and 😀.",
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


async def rendered(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests that a route renders."""
    made = (await client.post(f"{path}/render", json=body)).json()
    return made if isinstance(made, list) else [made]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": 2, "return_token_ids": True},
        {"logprobs": 0, "logprob_token_ids": [250, 9, 31]},
    ],
)
@in_loop
async def test_completions_of_given_tokens_are_those_of_the_request(
    directory: Path, more: dict[str, Any]
) -> None:
    async with serving(directory) as client:
        body = {"prompt": ["The quick", [5, 6, 7]], **SAMPLED, **more}
        direct = (await client.post(COMPLETION, json=body)).json()
        requests = await rendered(client, COMPLETION, body)
        given = [(await client.post(TOKENS, json=each)).json() for each in requests]
        prompts = [each["token_ids"] for each in requests]
        asked = {
            "generate_responses": given,
            "prompt_tokens": [len(each) for each in prompts],
            "prompt_token_ids": prompts,
            "completion_request": body,
        }
        made = (await client.post(f"{COMPLETION}/derender", json=asked)).json()
        for one, other in zip(made["choices"], direct["choices"], strict=True):
            for name in ("text", "finish_reason", "stop_reason", "token_ids", "logprobs"):
                assert one[name] == other[name], name
        assert made["id"] == given[0]["request_id"]
        assert made["usage"] == direct["usage"]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize(
    ("size", "more"),
    [
        (1, {"top_logprobs": 2}),
        (3, {"top_logprobs": 1, "logprob_token_ids": [250, 9]}),
        (1000, {"top_logprobs": 2}),
    ],
)
@in_loop
async def test_a_chat_of_given_tokens_is_that_of_the_request(
    tmp_path: Path, text: str, size: int, more: dict[str, Any]
) -> None:
    async with writing(tmp_path, text) as client:
        body = {"messages": MESSAGES, "tools": TOOLS, "logprobs": True, **more}
        direct = (await client.post(CHAT, json={**body, "return_token_ids": True})).json()
        (wanted,) = direct["choices"]
        (request,) = await rendered(client, CHAT, body)
        request["sampling_params"]["structured_outputs"] = None
        given = (await client.post(TOKENS, json=request)).json()
        (one,) = given["choices"]
        assert one["token_ids"] == wanted["token_ids"]
        asked = {"chat_request": {**body, "return_token_ids": True}, "prompt_tokens": 3}
        answer = await client.post(f"{CHAT}/derender", json={**asked, "generate_response": given})
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        for call in (*wanted["message"].get("tool_calls", ()), *calls_of(choice)):
            assert call.pop("id")
        assert choice == wanted
        assert answer.json()["usage"]["prompt_tokens"] == 3
        # The same in a stream, whose state the caller carries.
        tokens, state, chunks = one["token_ids"], None, []
        for begin in range(0, len(tokens), size):
            is_last = begin + size >= len(tokens)
            part = {
                "index": 0,
                "token_ids": tokens[begin : begin + size],
                "finish_reason": one["finish_reason"] if is_last else None,
                "logprobs": {"content": one["logprobs"]["content"][begin : begin + size]},
            }
            sent = {
                **asked,
                "stream": True,
                "generate_chunk": {"request_id": given["request_id"], "choices": [part]},
                "stream_state": state,
                "prompt_token_ids": request["token_ids"],
            }
            answer = await client.post(f"{CHAT}/derender", json=sent)
            assert answer.status_code == 200, answer.text
            chunk, state = answer.json()["chunk"], answer.json()["stream_state"]
            assert chunk["choices"][0]["token_ids"] == part["token_ids"]
            chunks.append(chunk)
        message, finish = put_together(chunks)
        for call in message.get("tool_calls", ()):
            assert call.pop("id")
        assert finish == wanted["finish_reason"]
        for name, value in message.items():
            assert value == wanted["message"][name], name
        firsts = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks]
        assert [each for first in firsts for each in first] == wanted["logprobs"]["content"]
        assert client.server.admission.num_open == 0


def calls_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of an answer."""
    return list(choice["message"].get("tool_calls", ()))


def given(**changes: Any) -> dict[str, Any]:
    """Return a response of an engine, with changes."""
    choice = {"index": 0, "token_ids": [5, 6], "finish_reason": "stop"}
    return {"request_id": "one", "choices": [{**choice, **changes}]}


MANY = [{"index": index, "token_ids": [5]} for index in range(129)]
LIKELY = {"token_id": 5, "logprob": -1.0, "top_logprobs": [{"token_id": 6, "logprob": -2.0}] * 99}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "generate_response"),
        (CHAT, {"stream": True}, "generate_chunk"),
        (CHAT, {"generate_response": given(token_ids=[])}, "generate_response"),
        (CHAT, {"generate_response": given(token_ids=[99_999])}, "generate_response"),
        (CHAT, {"generate_response": given(token_ids=[-1])}, "generate_response"),
        (CHAT, {"generate_response": given(token_ids=[5] * 9_000)}, "generate_response"),
        (CHAT, {"generate_response": {"request_id": "", "choices": MANY}}, "generate_response"),
        (CHAT, {"generate_response": given(logprobs={"content": [LIKELY]})}, "logprobs"),
        (CHAT, {"generate_response": given(), "prompt_token_ids": [5] * 9_000}, "prompt_token_ids"),
        (
            CHAT,
            {"stream": True, "generate_chunk": {"request_id": "1", "choices": MANY}},
            "generate",
        ),
        (COMPLETION, {"generate_responses": []}, "generate_responses"),
        (COMPLETION, {"generate_responses": [given()] * 2049}, "generate_responses"),
        (COMPLETION, {"generate_responses": [given()], "prompt_tokens": [1, 2]}, "prompt_tokens"),
        (COMPLETION, {"generate_responses": [given()], "prompt_token_ids": []}, "prompt_token_ids"),
    ],
)
@in_loop
async def test_tokens_that_cannot_be_read_are_refused_by_name(
    directory: Path, path: str, body: dict[str, Any], param: str
) -> None:
    async with serving(directory) as client:
        response = await client.post(f"{path}/derender", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param), response.text
        unknown = await client.post(f"{path}/derender", json={**body, "model": "another"})
        assert unknown.status_code in (400, 404)
        assert client.server.admission.num_open == 0


@in_loop
async def test_what_was_measured_elsewhere_is_repeated(directory: Path) -> None:
    async with serving(directory) as client:
        drafts = {"num_draft_tokens": 2, "acceptance_histogram": [0, 1]}
        measured = {"queue_time_ms": 1.5, "speculative_decoding": drafts}
        body = {"generate_response": {**given(), "metrics": measured}}
        made = (await client.post(f"{CHAT}/derender", json=body)).json()["metrics"]
        assert {name: value for name, value in made.items() if value is not None}.keys() == (
            measured.keys()
        )
        assert made["queue_time_ms"] == 1.5
        found = made["speculative_decoding"]
        assert {name: value for name, value in found.items() if value is not None} == drafts
        body["generate_response"]["metrics"] = {"queue_time_ms": "long"}
        refused = await client.post(f"{CHAT}/derender", json=body)
        assert refused.json()["error"]["param"] == "generate_response.metrics.queue_time_ms"


@in_loop
async def test_parts_of_an_answer_are_not_found_without_its_request(tmp_path: Path) -> None:
    async with writing(tmp_path, ANSWERS[0]) as client:
        response = await client.post(f"{CHAT}/derender", json={"generate_response": given()})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "chat_request"
