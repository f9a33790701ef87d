"""/predict answers several requests in one body, each as its own route does."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.server.predictions import FORMAT, FORMATS, MAX_INSTANCES
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.make import serving, until

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}


@in_loop
async def test_each_instance_is_answered_as_if_it_were_alone(directory: Path) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        instances: list[dict[str, Any]] = [
            {FORMAT: "chatCompletions", **CHAT},
            {FORMAT: "/v1/completions", **TEXT},
            {"input": ["Hello"]},
            {"messages": MESSAGES, "max_tokens": 4},
            {**TEXT, "temperature": 0, "stream": False},
        ]
        instances[2]["temperature"] = None  # of no meaning to vectors
        body = {"instances": instances, "parameters": {"temperature": 0}}
        response = await client.post("/predict", json=body)
        assert response.status_code == 200, response.text
        chat, text, vectors, other_chat, other_text = response.json()["predictions"]
        alone = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert chat["choices"] == other_chat["choices"] == alone["choices"]
        alone = (await client.post("/v1/completions", json=TEXT)).json()
        assert text["choices"] == other_text["choices"] == alone["choices"]
        alone = (await client.post("/v1/embeddings", json={"input": ["Hello"]})).json()
        assert vectors["data"] == alone["data"]
        assert chat["id"] != other_chat["id"]


@pytest.mark.parametrize(
    ("instance", "param"),
    [
        ({FORMAT: "nothing", **CHAT}, FORMAT),
        ({FORMAT: "/predict", "instances": []}, FORMAT),
        ({FORMAT: "/lora-adapters", **CHAT}, FORMAT),
        ({FORMAT: 5, **CHAT}, FORMAT),
        ({}, FORMAT),
        ({**CHAT, "stream": True}, "stream"),
        ({**CHAT, "max_tokens": -5}, "max_tokens"),
    ],
)
@in_loop
async def test_an_instance_that_is_wrong_has_an_error_and_others_an_answer(
    directory: Path, instance: dict[str, Any], param: str
) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        body = {"instances": [instance, CHAT]}
        wrong, right = (await client.post("/predict", json=body)).json()["predictions"]
        assert wrong["error"]["param"] == param
        assert right["choices"]


@pytest.mark.parametrize(
    "body",
    [{}, {"instances": []}, {"instances": [5]}, {"instances": [{}] * (MAX_INSTANCES + 1)}],
)
@in_loop
async def test_a_body_that_is_none_is_refused_whole(directory: Path, body: Any) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        assert (await client.post("/predict", json=body)).status_code == 400
        large = json.dumps({"instances": [{"prompt": "x" * (1 << 19)}]})
        assert (await client.post("/predict", content=large)).status_code == 413


@in_loop
async def test_predictions_are_bounded_together(directory: Path) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        one = len((await client.post("/v1/completions", json=TEXT)).content)
        limit = one * 2 + one // 2
        client.server.config = replace(client.server.config, max_response_bytes=limit)
        answers = (await client.post("/predict", json={"instances": [TEXT] * 4})).json()
        codes = [each.get("error", {}).get("code") for each in answers["predictions"]]
        assert sorted(map(str, codes)) == ["None", "None", *["response_too_large"] * 2]


@in_loop
async def test_a_client_that_leaves_ends_all_its_instances(directory: Path) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        body = {"instances": [{**TEXT, "max_tokens": 200, "ignore_eos": True}] * 3}
        task = asyncio.create_task(client.post("/predict", json=body))
        await until(lambda: client.server.admission.num_open == 3)
        task.cancel()
        await until(lambda: client.server.admission.num_open == 0)


def test_formats_are_named_as_llama_cpp_names_them() -> None:
    assert FORMATS["chatCompletions"] == "/v1/chat/completions"
    assert FORMATS["embeddings"] == "/v1/embeddings"
