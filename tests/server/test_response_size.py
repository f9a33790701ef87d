"""A whole response with several answers is refused before any work if it may be too large."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.serving.bounds.response_size import LOGPROB_BYTES, TOKEN_BYTES, response_bytes
from tests.server.engine import FakeEngine
from tests.server.make import serving

LIMIT = 64 << 10


def answer(directory: Path, path: str, body: dict[str, Any], **options: Any) -> Any:
    async def main() -> Any:
        engine = FakeEngine(directory)
        async with serving(directory, engine, max_response_bytes=LIMIT, **options) as client:
            response = await client.post(path, json=body)
            if response.status_code != 200:
                assert client.server.num_requests == 0, "it is refused before any work"
            return response

    return asyncio.run(main())


MESSAGES = [{"role": "user", "content": "Hello"}]
MANY = {"n": 16, "max_tokens": 100, "temperature": 1.0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "The", "logprobs": 2, **MANY}),
        ("/v1/completions", {"prompt": ["The"] * 16, "logprobs": 2, "max_tokens": 100}),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, **MANY}),
        ("/v1/completions", {"prompt": ["The"] * 2, "max_tokens": 4, "prompt_logprobs": -1}),
    ],
)
def test_several_answers_that_may_be_too_large_are_refused(
    directory: Path, path: str, body: dict[str, Any]
) -> None:
    response = answer(directory, path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "response_too_large"
    assert error["param"] == "max_tokens"
    assert "stream" in error["message"]


def test_the_length_that_fits_is_accepted(directory: Path) -> None:
    body = {"prompt": "The", "logprobs": 2, **MANY}
    refused = answer(directory, "/v1/completions", body).json()["error"]["message"]
    most = int(refused.partition("lower max_tokens to ")[2].split()[0])
    assert most == LIMIT // (16 * (TOKEN_BYTES + 3 * LOGPROB_BYTES))
    for length, status in ((most, 200), (most + 1, 400)):
        response = answer(directory, "/v1/completions", {**body, "max_tokens": length})
        assert response.status_code == status, response.text


@pytest.mark.parametrize(
    "change", [{"stream": True}, {"n": 1, "logprobs": 20, "max_tokens": 200}, {"logprobs": None}]
)
def test_one_answer_a_stream_and_text_are_accepted(directory: Path, change: dict[str, Any]) -> None:
    body = {"prompt": "The", "logprobs": 2, **MANY, **change}
    assert answer(directory, "/v1/completions", body).status_code == 200


@pytest.mark.parametrize("chat", [False, True])
def test_the_estimate_is_not_below_the_response(directory: Path, chat: bool) -> None:
    body: dict[str, Any] = {"n": 4, "max_tokens": 20, "temperature": 1.0, "seed": 5}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body |= {"messages": MESSAGES} if chat else {"prompt": "The"}
    plain = len(answer(directory, path, body).content)
    body |= {"logprobs": True, "top_logprobs": 5} if chat else {"logprobs": 5}
    response = answer(directory, path, body)
    sampling = SamplingParams(n=4, max_tokens=20, temperature=1.0, logprobs=5)
    most, _ = response_bytes(sampling, [1], 300)
    assert len(response.content) <= most + plain
