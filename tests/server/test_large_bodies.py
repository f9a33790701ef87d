"""Large bodies are read in prompt workers, with the same results as small ones in the server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.serving import exchange as http_exchange
from octavo.serving import large_bodies
from octavo.serving.schema.decode import (
    MAX_FAST_BYTES,
    MAX_FAST_VALUES,
    MAX_OPEN_VALUES,
    MAX_UNKNOWN,
    is_large,
)
from tests.server.engine import FakeEngine
from tests.server.make import Client, events, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_tokens": 4}
MESSAGES = [{"role": "user", "content": "The quick"}, {"role": "assistant", "content": "brown"}]
LONG = "quick brown fox " * 40_000
MANY: dict[str, list[Any]] = {
    COMPLETIONS: [
        {"prompt": "The quick", **GREEDY},
        {"prompt": ["one", "two", ""], **GREEDY, "echo": True},
        {"prompt": ["one", "two", "x" * 400], **GREEDY},
        {"prompt": [[5, 6], [7]], **GREEDY, "return_token_ids": True},
        {"prompt": [5, 6, 300], **GREEDY},
        {"prompt": "The quick", **GREEDY, "bad_words": ["fox"], "logprobs": 2, "echo": True},
        {"prompt": "the quick brown fox", "truncate_prompt_tokens": 3, "echo": True, **GREEDY},
        {"prompt": [5, 6, 7, 8], "truncate_prompt_tokens": 3, "echo": True, **GREEDY},
        {"prompt": "The quick", "stream": True, **GREEDY},
        {"prompt": LONG, **GREEDY},
        {"prompt": "x", "temperature": 3},
        {"prompt": ["x", 5]},
        {"prompt": [], "n": 2},
        {"prompt": "x", "model": "unknown"},
        {"prompt": "x", "unknown": 1, "stop": ["x"], "user": "u", **GREEDY},
        {"prompt": "x", "tools": [{}]},
    ],
    CHAT: [
        {"messages": MESSAGES, **GREEDY},
        {"messages": MESSAGES, **GREEDY, "echo": True, "return_token_ids": True},
        {"messages": MESSAGES, **GREEDY, "continue_final_message": True, "logprobs": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], **GREEDY},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": MESSAGES, "documents": [{"a": 1}], "chat_template_kwargs": {"x": 2}, **GREEDY},
        {"messages": [{"role": "user", "contnet": "x", "content": "y"}], **GREEDY},
        {"messages": MESSAGES, "chat_template": "{{ 1 }}"},
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [], **GREEDY},
    ],
    "/tokenize": [
        {"prompt": "The quick brown", "return_token_strs": True},
        {"prompt": "x", "add_special_tokens": False},
        {"messages": MESSAGES},
        {"messages": MESSAGES, "prompt": "x"},
        {"messages": [{"role": "user", "content": None}]},
    ],
    "/api/chat": [
        {"model": "tiny", "messages": MESSAGES, "stream": False, "options": {"num_predict": 4}},
        {"model": "tiny:latest", "messages": [{"role": "user", "content": LONG}]},
        {"model": "unknown", "messages": MESSAGES},
    ],
    "/api/generate": [
        {"model": "tiny", "prompt": "x", "stream": False, "options": {"num_predict": 4}},
        {"model": "tiny", "prompt": "x", "system": "y", "raw": True},
    ],
    "/api/embed": [{"model": "tiny:latest", "input": ["x", "y"]}, {"model": "tiny", "input": []}],
    "/api/embeddings": [{"model": "tiny", "prompt": "x"}],
    "/v1/messages/count_tokens": [{"model": "tiny", "messages": MESSAGES}, {"model": "tiny"}],
    "/v1/responses/input_tokens": [{"input": "The quick"}, {"input": []}],
    "/v1/chat/completions/render": [{"messages": MESSAGES, **GREEDY}],
    "/v1/completions/render": [{"prompt": [5, 6], **GREEDY}],
    "/inference/v1/generate": [
        {
            "token_ids": [5, 6],
            "sampling_params": GREEDY,
            "output_mode": "derender",
            "parse_context": {"tool_choice": "none", "chat_template_kwargs": {"x": [1]}},
        },
        {"token_ids": [5], "sampling_params": {}, "parse_context": {"tools": [{}]}},
    ],
    "/detokenize": [{"tokens": [5, 6, 7]}, {"tokens": []}, {"tokens": [300]}, {"tokens": [-1]}],
}
CASES = [(path, body) for path, bodies in MANY.items() for body in bodies]


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_worker_reads_a_body_as_the_server_does(
    directory: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    async def ask() -> Any:
        async with serving(directory, FakeEngine(directory)) as client:
            response = await client.post(path, json=body, headers={"x-request-id": "same"})
            unknown = response.headers.get("x-octavo-unknown-fields")
            return response.status_code, unknown, contents(response.text)

    # LONG is large as it is.
    monkeypatch.setattr(large_bodies, "is_large", lambda body: False)
    small = asyncio.run(ask())
    monkeypatch.setattr(large_bodies, "is_large", lambda body: True)

    def decode(*arguments: Any) -> Any:
        raise AssertionError("decoded in the server")

    monkeypatch.setattr(large_bodies, "decode", decode)
    assert asyncio.run(ask()) == small


def contents(text: str) -> Any:
    """Return the JSON of an answer without its time, or the text of a stream."""
    if text.startswith("data: "):  # slow machines merge chunks
        choices = [choice for event in events(text) for choice in event["choices"]]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
    content = json.loads(text)
    if isinstance(content, list):  # of requests that were rendered
        return content
    return {
        name: value
        for name, value in content.items()
        if name not in ("created", "created_at") and not name.endswith("_duration")
    }


@pytest.mark.parametrize(
    ("body", "is_it"),
    [
        (b'{"prompt": "%b"}' % (b"x" * 1000), False),
        (b'{"prompt": "%b"}' % (b"x" * MAX_FAST_BYTES), True),
        (b'{"prompt": [%b5]}' % (b"5," * (MAX_FAST_VALUES - 2)), False),
        (b'{"prompt": [%b5]}' % (b"5," * (MAX_FAST_VALUES - 1)), True),
        (b'{"documents": [%b{}]}' % (b"{}," * (MAX_FAST_VALUES // 2)), True),
        (b'{"documents": [%b]}' % (b"[" * MAX_FAST_VALUES), True),
        (b'{%b"prompt": "x"}' % (b'"a":1,' * MAX_FAST_VALUES), True),
    ],
)
def test_bytes_and_values_make_a_body_large(body: bytes, is_it: bool) -> None:
    assert is_large(body) is is_it


HOSTILE = {
    "many unknown fields": (
        b'{"prompt":"x",%b"a":1}' % b"".join(b'"%x":1,' % n for n in range(300_000)),
        None,
        "more than 4096 fields",
    ),
    "many documents": (
        b'{"messages":[{"role":"user","content":"x"}],"documents":[%b{}]}' % (b"{}," * 2_000_000),
        "documents",
        "documents",
    ),
    "values inside a document": (
        b'{"messages":[{"role":"user","content":"x"}],"documents":[{"a":[%b1]}]}'
        % (b"{}," * (MAX_OPEN_VALUES + 1)),
        "documents",
        f"more than {MAX_OPEN_VALUES} values",
    ),
    "many lists": (b'{"prompt":[%b[1]]}' % (b"[1]," * 500_000), "prompt", "lists"),
    "a long text": (b'{"prompt":"%b"}' % (b"quick " * 200_000), "prompt", "the prompt has"),
    "a lone surrogate": (
        rb'{"prompt":"%b\ud83d!"}' % (b"x" * MAX_FAST_BYTES),
        None,
        "lone surrogate",
    ),
}


@pytest.mark.parametrize(("body", "param", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_body_is_refused_and_never_decoded_in_the_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, param: str, words: str
) -> None:
    def decode(*arguments: Any) -> Any:
        raise AssertionError("decoded in the server")

    monkeypatch.setattr(large_bodies, "decode", decode)
    monkeypatch.setattr(http_exchange, "decode", decode)
    path = CHAT if b"messages" in body[:20] else COMPLETIONS

    async def main() -> None:
        async with serving(directory) as client:
            kind = {"content-type": "application/json"}
            response = await client.post(path, content=body, headers=kind)
            assert response.status_code == 400
            error = response.json()["error"]
            assert words in error["message"]
            assert error["param"] == param

    asyncio.run(main())


def test_the_number_of_unknown_fields_is_bounded_in_small_bodies_too(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for number, status in ((MAX_UNKNOWN, 200), (MAX_UNKNOWN + 1, 400)):
                fields = {f"unknown{index}": 1 for index in range(number)}
                body = {"prompt": "x", "max_tokens": 1, **fields}
                assert (await client.post(COMPLETIONS, json=body)).status_code == status

    asyncio.run(main())


def test_2048_prompts_are_answered_with_turns_for_others_between_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(directory, max_num_seqs=64, num_blocks=4096)
    prompts = [f"prompt {index}" for index in range(2048)]
    submitted: list[int] = []

    async def main() -> None:
        submit, turns = engine.submit, 0

        def submitting(*arguments: Any) -> str:
            submitted.append(turns)
            return submit(*arguments)

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(engine, "submit", submitting)
        async with serving(directory, engine) as client:
            counting = asyncio.create_task(count())
            answer = await client.complete(prompt=prompts, max_tokens=1, temperature=0)
            counting.cancel()
            assert [each["index"] for each in answer["choices"]] == list(range(2048))
            assert max(submitted.count(turn) for turn in set(submitted)) <= 64
            more = await client.complete(prompt=[*prompts, "x"], max_tokens=1)
            assert more["error"]["param"] == "prompt"
            assert "2049" in more["error"]["message"]

    asyncio.run(main())


def test_many_prompts_are_bounded_by_their_tokens_together(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, max_waiting_tokens=40) as client:
            body = {"prompt": [[5] * 20, [6] * 20], "max_tokens": 1}
            assert (await client.post(COMPLETIONS, json=body)).status_code == 200
            body["prompt"] = [[5] * 20, [6] * 21]
            error = (await client.post(COMPLETIONS, json=body)).json()["error"]
            assert "41 tokens together; the limit is 40" in error["message"]
            assert error["param"] == "prompt"

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b'{"request_id": "%b"}' % (b"x" * MAX_FAST_BYTES),
        b'{"request_id": "x", "y": [%b1]}' % (b"1," * MAX_FAST_VALUES),
    ],
)
def test_a_route_without_prompts_refuses_a_large_body(
    directory: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    def decode(*arguments: Any) -> Any:
        raise AssertionError("decoded in the server")

    monkeypatch.setattr(http_exchange, "decode", decode)

    async def main() -> None:
        async with serving(directory) as client:
            operator = Client(client.server, ADMIN_ROUTES, checks_access=False)
            response = await operator.post("/abort_requests", content=body)
            assert response.status_code == 413

    asyncio.run(main())
