"""vLLM's own routes: token ids, rendering, several conversations, the state of the server."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.engine import ChainRunner, FakeEngine, make_directory
from tests.server.make import LIMIT, events, serving, until

TOKENS = "/inference/v1/generate"
BATCH = "/v1/chat/completions/batch"
HELLO = [{"role": "user", "content": "Hello"}]
SAMPLED = {"temperature": 0.7, "seed": 5, "max_tokens": 9, "top_p": 0.9, "stop": ["zzz"]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["The quick", [5, 6, 7]], **SAMPLED}),
        ("/v1/completions", {"prompt": "The quick", "temperature": 0, "logit_bias": {"7": 100}}),
        ("/v1/chat/completions", {"messages": HELLO, **SAMPLED, "n": 2}),
        ("/v1/chat/completions", {"messages": HELLO, "allowed_token_ids": [9, 11], "seed": 1}),
    ],
)
@in_loop
async def test_what_a_render_returns_is_answered_as_the_request_itself(
    directory: Path, path: str, body: dict[str, Any]
) -> None:
    async with serving(directory) as client:
        asked = {**body, "return_token_ids": True, "return_prompt_text": True}
        direct = (await client.post(path, json=asked)).json()
        rendered = (await client.post(f"{path}/render", json=asked)).json()
        made: list[list[int]] = []
        for each in rendered if isinstance(rendered, list) else [rendered]:
            text = each["prompt_text"]
            known = (await client.post("/detokenize", json={"tokens": each["token_ids"]})).json()
            assert text
            assert known["prompt"].endswith(text)
            answer = await client.post(TOKENS, json=each)
            assert answer.status_code == 200, answer.text
            assert "x-octavo-unknown-fields" not in answer.headers
            made += [choice["token_ids"] for choice in answer.json()["choices"]]
        assert made == [choice["token_ids"] for choice in direct["choices"]]
        assert client.server.admission.num_open == 0


@pytest.mark.parametrize(
    ("path", "prefix", "body"),
    [
        ("/v1/chat/completions", "chatcmpl-", {"messages": HELLO, "max_tokens": 4}),
        ("/v1/completions", "cmpl-", {"prompt": "The quick", "max_tokens": 4}),
        ("/v1/messages", "msg_", {"messages": HELLO, "max_tokens": 4}),
        ("/v1/responses", "resp_", {"input": "Hello", "max_output_tokens": 4}),
    ],
)
@in_loop
async def test_every_dialect_renders_under_the_name_that_its_answer_has(
    directory: Path, path: str, prefix: str, body: dict[str, Any]
) -> None:
    async with serving(directory) as client:
        header = {"x-request-id": "of-header"}
        own = {} if path == "/v1/messages" else {"request_id": "of-body"}
        for headers, fields, name in ((header, own, "of-header"), ({}, own, own and "of-body")):
            direct = await client.post(path, json={**body, **fields}, headers=headers)
            rendered = await client.post(f"{path}/render", json={**body, **fields}, headers=headers)
            assert rendered.status_code == 200, rendered.text
            made = rendered.json()
            (made,) = made if isinstance(made, list) else [made]
            if name:
                assert made["request_id"] == prefix + name == direct.json()["id"]
            assert made["request_id"].startswith(prefix)
            answer = (await client.post(TOKENS, json={**made, "request_id": "own"})).json()
            assert answer["request_id"] == "own"
            assert len(answer["choices"][0]["token_ids"]) == 4
        assert client.server.admission.num_open == 0


@in_loop
async def test_a_rendered_request_continues_no_response(directory: Path) -> None:
    async with serving(directory) as client:
        body = {"input": "Hello", "previous_response_id": "resp_1"}
        refused = await client.post("/v1/responses/render", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "previous_response_id"


@in_loop
async def test_tokens_are_streamed_and_counted(directory: Path) -> None:
    async with serving(directory) as client:
        sampling = {"max_tokens": 6, "logprobs": 1, "temperature": 0, "n": 1}
        body = {"token_ids": [5, 6], "sampling_params": sampling, "request_id": "mine"}
        whole = (await client.post(TOKENS, json=body)).json()
        (choice,) = whole["choices"]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (6, "length")
        assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [1] * 6
        assert whole["usage"]["total_tokens"] == 8
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.post(TOKENS, json={**body, **options})
        *parts, usage = events(stream.text)
        streamed = [token for part in parts for token in part["choices"][0]["token_ids"]]
        assert streamed == choice["token_ids"]
        assert parts[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("logprobs", [0, 2])
@in_loop
async def test_a_text_comes_with_the_tokens_if_it_is_asked_for(
    directory: Path, logprobs: int
) -> None:
    async with serving(directory) as client:
        sampling = {"max_tokens": 6, "temperature": 0.8, "seed": 4, "logprobs": logprobs}
        body = {"token_ids": [5, 6], "sampling_params": sampling, "return_token_ids": True}
        direct = await client.complete(prompt=[5, 6], **sampling)
        chat = {"messages": HELLO, "logprobs": True, "top_logprobs": logprobs}
        whole = (await client.post(TOKENS, json={**body, "output_mode": "text"})).json()
        (choice,), (wanted,) = whole["choices"], direct["choices"]
        assert (whole["output_mode"], whole["prompt_token_ids"]) == ("text", [5, 6])
        assert choice["text"] == wanted["text"]
        written = choice["logprobs"]["content"]
        assert [each["token"] for each in written] == wanted["logprobs"]["tokens"]
        known = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]
        assert written[0].keys() == known["logprobs"]["content"][0].keys()
        streamed = await client.post(TOKENS, json={**body, "output_mode": "text", "stream": True})
        parts = events(streamed.text)
        assert "".join(part["choices"][0]["text"] for part in parts) == wanted["text"]
        assert parts[0]["prompt_token_ids"] == [5, 6]
        assert {part["output_mode"] for part in parts} == {"text"}
        # Without the text the tokens are named by their ids.
        bare = (await client.post(TOKENS, json=body)).json()["choices"][0]
        assert "text" not in bare
        assert bare["token_ids"] == choice["token_ids"]
        for each, token, said in zip(
            bare["logprobs"]["content"], bare["token_ids"], written, strict=True
        ):
            assert (each["token_id"], each["logprob"]) == (token, said["logprob"])
            assert each["top_logprobs"][0]["token_id"] == token
            assert logprobs <= len(each["top_logprobs"]) <= logprobs + 1


@in_loop
async def test_clients_end_their_own_requests_alone(directory: Path) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))
    async with serving(directory, engine, api_keys=("one long key", "another key")) as client:
        client.headers["authorization"] = "Bearer one long key"
        body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 50}, "request_id": "mine"}
        task = asyncio.create_task(client.post(TOKENS, json=body))
        await until(lambda: bool(engine.core.scheduler.running))
        path, names = "/inference/v1/abort_requests", {"request_ids": ["mine", "gone"]}
        headers = {"authorization": "Bearer another key"}
        assert (await client.post(path, json=names, headers=headers)).status_code == 200
        assert [each.record.request_id for each in client.server.active.values()] == ["mine"]
        assert (await client.post(path, json=names)).status_code == 200
        gate.set()
        answer = (await task).json()
        assert answer["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": [99_999]}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_tokens": 9999}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"stop_token_ids": [4000]}}, "sampling_params.stop_token_ids"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"sampling_params": {"detokenize": False, "stop": ["x"]}}, "sampling_params.stop"),
        (
            {"sampling_params": {"detokenize": False}, "output_mode": "text"},
            "sampling_params.detokenize",
        ),
        ({"output_mode": "message"}, "output_mode"),
        ({"model": "other"}, "model"),
    ],
)
@in_loop
async def test_wrong_fields_of_a_tokens_request_are_named(
    directory: Path, changes: dict[str, Any], param: str
) -> None:
    async with serving(directory) as client:
        body = {"token_ids": [5], "sampling_params": {}, **changes}
        response = await client.post(TOKENS, json=body)
        assert response.status_code in (400, 404), response.text
        assert response.json()["error"]["param"] == param


@in_loop
async def test_conversations_of_a_batch_are_answered_as_each_alone(directory: Path) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("Hello", "fox", "The dog")]
    body = {"temperature": 0.9, "seed": 4, "max_tokens": 5, "n": 2, "logprobs": True}
    async with serving(directory) as client:
        batch = (await client.post(BATCH, json={**body, "messages": conversations})).json()
        alone = []
        for each in conversations:
            path = "/v1/chat/completions"
            alone += (await client.post(path, json={**body, "messages": each})).json()["choices"]
        assert [choice.pop("index") for choice in batch["choices"]] == list(range(6))
        for choice in alone:
            del choice["index"]
        assert batch["choices"] == alone
        assert batch["usage"]["completion_tokens"] == 30
        large = [*conversations, [{"role": "user", "content": "a" * 300_000}]]
        refused = await client.post(BATCH, json={**body, "messages": large})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
        wrongs: list[tuple[dict[str, Any], str]] = [
            ({"stream": True}, "stream"),
            ({"messages": []}, "messages"),
            ({"messages": HELLO}, "messages[0]"),
            ({"messages": [HELLO] * 17, "n": 128}, "messages"),
            ({"messages": [HELLO, [{"role": "user"}]]}, "messages[1]"),
        ]
        for changes, param in wrongs:
            answer = await client.post(BATCH, json={**body, "messages": [HELLO], **changes})
            assert answer.status_code == 400, changes
            assert answer.json()["error"]["param"].startswith(param), answer.text


@in_loop
async def test_an_invocation_is_answered_as_what_its_body_is(directory: Path) -> None:
    async with serving(directory) as client:
        for path, field in (
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/completions", {"prompt": 'The "messages" fox'}),
            ("/v1/completions", {"prompt": [7] * 20_000, "truncate_prompt_tokens": 9}),
        ):
            body = {**field, "max_tokens": 4, "temperature": 0}
            there = (await client.post(path, json=body)).json()
            here = (await client.post("/invocations", json=body)).json()
            assert here["choices"] == there["choices"], field
        for wrong in (b"{}", b"nothing", b"[]", b'{"messages": 3}'):
            headers = {"content-type": "application/json"}
            response = await client.post("/invocations", content=wrong, headers=headers)
            assert response.status_code == 400, wrong


@in_loop
async def test_the_state_of_the_server_has_vllms_routes(directory: Path) -> None:
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "FoxTokenizer", "model_max_length": 77})
    )
    engine = FakeEngine(directory)
    async with serving(directory, engine, api_keys=("a long key",)) as client:
        for method in (client.get, client.post):
            assert (await method("/ping")).json() == {"status": "ready"}, "without a key"
        assert (await client.get("/load")).status_code == 401
        client.headers["authorization"] = "Bearer a long key"
        assert (await client.get("/load")).json() == {"server_load": 0}
        described = (await client.get("/tokenizer_info")).json()
        assert (described["tokenizer_class"], described["model_max_length"]) == ("FoxTokenizer", 77)
        assert described["added_tokens_decoder"]
        engine.is_ready = False
        assert (await client.get("/ping")).status_code == 503
