"""The fields without a value in each dialect's answers are those that its clients expect.

docs/api.md compares them with what other servers send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.batches.make import batching, begin, ended, request
from tests.server.engine import FakeEngine
from tests.server.make import serving
from tests.server.matrix.cells import BODIES, KINDS
from tests.server.matrix.engine import POOLING


def under(place: str, *names: str) -> set[str]:
    """Return the places of several names in one place."""
    return {f"{place}.{name}" for name in names}


# Clients of OpenAI and of vLLM read these without asking whether they are there.
CHOICE = under("choices[]", "logprobs", "stop_reason", "token_ids")
CHAT = {
    *CHOICE,
    *under("choices[].message", "annotations", "reasoning", "reasoning_content", "refusal"),
    *("kv_transfer_params", "prompt_logprobs", "prompt_text", "prompt_token_ids", "service_tier"),
}
RESPONSE = {
    *("completed_at", "error", "instructions", "max_tool_calls", "metadata"),
    *("previous_response_id", "reasoning.effort", "reasoning.summary", "tools", "user"),
    *under("output[].content[]", "annotations", "logprobs"),
}
# By path, kind and whether it is streamed: the places of null and of what is empty.
CASES: dict[tuple[str, str, bool], set[str]] = {
    ("/v1/chat/completions", "ChatRequest", False): CHAT,
    ("/v1/chat/completions", "ChatRequest", True): {
        *under("choices[]", "delta.content", "stop_reason")
    },
    ("/v1/chat/completions/batch", "BatchChatRequest", False): CHAT,
    ("/v1/completions", "CompletionRequest", False): {
        *CHOICE,
        *under("choices[]", "prompt_logprobs", "prompt_text", "prompt_token_ids"),
        *("kv_transfer_params", "service_tier"),
    },
    ("/v1/completions", "CompletionRequest", True): under("choices[]", "logprobs", "stop_reason"),
    ("/inference/v1/generate", "TokensRequest", False): {
        *under("choices[]", "logprobs.content[].top_logprobs[].rank", "stop_reason"),
        *("kv_transfer_params", "prompt_logprobs", "prompt_token_ids"),
    },
    ("/v1/messages", "MessagesRequest", False): {"stop_sequence"},
    ("/v1/messages", "MessagesRequest", True): {
        *under("message", "content", "stop_reason", "stop_sequence"),
        *("content_block.text", "delta.stop_sequence"),
    },
    ("/v1/responses", "ResponsesRequest", False): RESPONSE,
    ("/v1/responses", "ResponsesRequest", True): {
        *under("response", *RESPONSE, "incomplete_details", "output", "usage"),
        *under("part", "annotations", "logprobs", "text"),
        *under("item.content[]", "annotations", "logprobs"),
        *("item.content", "logprobs"),
    },
    ("/api/chat", "OllamaChatRequest", False): set(),
    ("/api/chat", "OllamaChatRequest", True): {"message.content"},
    ("/api/generate", "OllamaGenerateRequest", False): set(),
    ("/api/generate", "OllamaGenerateRequest", True): {"response"},
    ("/api/embed", "OllamaEmbedRequest", False): set(),
    ("/api/embeddings", "OllamaEmbeddingRequest", False): set(),
    ("/v1/embeddings", "EmbeddingRequest", False): set(),
    ("/pooling", "PoolingRequest", False): set(),
    ("/classify", "ClassifyRequest", False): set(),
    ("/score", "ScoreRequest", False): set(),
    ("/rerank", "RerankRequest", False): set(),
    ("/v2/rerank", "CohereRerankRequest", False): set(),
}


def empty_places(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of null and of all that is empty; the elements of a list share one."""
    if value is None or value in ("", [], {}):
        yield place
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from empty_places(each, f"{place}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for each in value:
            yield from empty_places(each, f"{place}[]")


def payloads_of(text: str) -> list[Any]:
    """Return the values of a response: of its events, of its lines, or the only one."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(("path", "kind", "is_stream"), CASES)
def test_answers_have_these_fields_without_a_value(
    directory: Path, path: str, kind: str, is_stream: bool
) -> None:
    body = dict(BODIES[kind])
    if "stream" in KINDS[kind].__struct_fields__:
        body["stream"] = is_stream

    async def main() -> None:
        async with serving(directory, FakeEngine(directory, pooling=POOLING)) as client:
            response = await client.post(path, json=body)
            assert response.status_code == 200
        payloads = payloads_of(response.text)
        places = {place for each in payloads for place in empty_places(each)}
        places.discard("choices[].finish_reason")  # there is one chunk alone, or another before it
        assert places == CASES[path, kind, is_stream]

    asyncio.run(main())


def test_a_message_without_calls_has_no_key_for_them(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            (choice,) = (await client.chat(max_tokens=1))["choices"]
            assert not {"tool_calls", "function_call", "audio"} & choice["message"].keys()
            assert choice["message"]["annotations"] == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", {"error.code"}),
        ("/v1/responses", {"error.code"}),
        ("/v1/embeddings", {"error.code"}),
        ("/v1/messages", set()),
        ("/api/chat", set()),
    ],
)
def test_errors_have_these_fields_without_a_value(
    directory: Path, path: str, expected: set[str]
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post(path, json={})
        assert response.status_code == 400
        assert set(empty_places(response.json())) == expected

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models", under("data[]", "parent", "permission")),
        ("/api/tags", {"models[].details.parent_model"}),
    ],
)
def test_models_have_these_fields_without_a_value(
    directory: Path, path: str, expected: set[str]
) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            assert set(empty_places((await client.get(path)).json())) == expected
            answer = await client.post("/tokenize", json={"prompt": "x"})
            assert set(empty_places(answer.json())) == {"token_strs"}

    asyncio.run(main())


def test_batches_have_these_fields_without_a_value(directory: Path, tmp_path: Path) -> None:
    never = {"cancelled_at", "cancelling_at", "expired_at", "failed_at", "errors", "metadata"}
    later = {"in_progress_at", "finalizing_at", "completed_at", "output_file_id"}

    async def main() -> None:
        async with batching(directory, tmp_path) as client:
            batch = await begin(client, [request(1)])
            assert set(empty_places(batch)) == {*never, *later, "error_file_id"}
            batch = await ended(client, batch["id"])
            assert set(empty_places(batch)) == {*never, "error_file_id"}
            path = f"/v1/files/{batch['output_file_id']}"
            assert set(empty_places((await client.get(path)).json())) == {"status_details"}
            (line,) = payloads_of((await client.get(f"{path}/content")).text)
            assert "error" in set(empty_places(line))

    asyncio.run(main())
