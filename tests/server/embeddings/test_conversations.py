"""Embeddings and classes of conversations are those of the prompts that the template makes."""

from __future__ import annotations

from math import hypot
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.engine import CLASSES, WIDTH, vector_of
from tests.server.make import Client

EMBEDDER = PoolingFacts(width=WIDTH, prompts={"query": "Find: "}, default_prompt="query")
EMBEDDER_ALONE = replace(EMBEDDER, tasks=("embed",))
CLASSIFIER = PoolingFacts(tasks=("classify",), width=WIDTH, labels=("sad", "glad", "mad"))
TALK = [
    {"role": "user", "content": "The quick fox"},
    {"role": "assistant", "content": [{"type": "text", "text": "A lazy dog"}]},
]
OTHER = [{"role": "user", "content": "The dog"}]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{{ mood or '' }}{% endif %}"
)


async def ids_of(client: Client, text: str) -> list[int]:
    """Return the tokens of a text without special ones."""
    body = {"prompt": text, "add_special_tokens": False}
    ids: list[int] = (await client.post("/tokenize", json=body)).json()["tokens"]
    return ids


def unit(values: list[float]) -> list[float]:
    return [value / hypot(*values) for value in values]


def embedding(ids: list[int]) -> Any:
    return pytest.approx(unit(list(vector_of([*ids, 0], WIDTH))))


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ""),
        ({"add_generation_prompt": True}, "assistant"),
        ({"add_generation_prompt": True, "chat_template_kwargs": {"mood": "!"}}, "assistant!"),
        ({"dimensions": None, "input": None, "chat_template": None}, ""),
    ],
)
def test_an_embedding_is_that_of_the_rendered_conversation(
    directory: Path, fields: dict[str, Any], end: str
) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, f"user: The quick fox assistant: A lazy dog {end}")
        body = {"messages": TALK, **fields}
        for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
            answer = (await client.post(path, json=body)).json()
            assert answer["data"][0][name] == embedding(ids)
            assert answer["usage"]["prompt_tokens"] == len(ids)

    run(directory, test, EMBEDDER, chat_template=TEMPLATE)


def test_several_conversations_have_an_embedding_each(directory: Path) -> None:
    async def test(client: Client) -> None:
        first = await ids_of(client, "user: The quick fox assistant: A lazy dog ")
        second = await ids_of(client, "user: The dog ")
        body: dict[str, Any] = {"messages": [TALK, OTHER]}
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert [each["embedding"] for each in data] == [embedding(first), embedding(second)]
        body["truncate_prompt_tokens"] = 3
        data = (await client.post("/v1/embeddings", json=body)).json()["data"]
        assert [each["embedding"] for each in data] == [embedding(first[:3]), embedding(second[:3])]

    run(directory, test, EMBEDDER, chat_template=TEMPLATE)


def test_a_large_conversation_is_read_by_a_worker(directory: Path) -> None:
    async def test(client: Client) -> None:
        many = [
            {"role": "user", "content": f"The dog {index}. {'x' * 2000}"} for index in range(150)
        ]
        for messages in (many, [many, OTHER]):
            body: dict[str, Any] = {"messages": messages}
            long = await client.post("/v1/embeddings", json=body)
            assert long.status_code == 400
            place = "messages" if messages is many else "messages[0]"
            assert long.json()["error"]["param"] == place, long.text
            body["truncate_prompt_tokens"] = 4
            data = (await client.post("/v1/embeddings", json=body)).json()["data"]
            ids = await ids_of(client, "user: The dog 0.")
            assert data[0]["embedding"] == embedding(ids[:4])
        assert len(data) == 2

    run(directory, test, EMBEDDER, chat_template=TEMPLATE)


def test_a_conversation_has_classes(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, "user: The dog ")
        for path in ("/classify", "/invocations"):
            answer = (await client.post(path, json={"messages": OTHER})).json()
            assert answer["data"][0]["probs"] == pytest.approx(vector_of([*ids, 0], CLASSES))

    run(directory, test, CLASSIFIER, chat_template=TEMPLATE)


def test_sagemaker_s_route_embeds_messages_if_the_model_generates_nothing(directory: Path) -> None:
    async def test(client: Client) -> None:
        ids = await ids_of(client, "user: The dog ")
        answer = (await client.post("/invocations", json={"messages": OTHER})).json()
        assert answer["data"][0]["embedding"] == embedding(ids)

    run(directory, test, EMBEDDER_ALONE, chat_template=TEMPLATE)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"messages": OTHER, "input": "x"}, "input"),
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages"),
        ({"messages": [OTHER, []]}, "messages"),
        ({"messages": [*OTHER, OTHER]}, "messages"),
        ({"messages": [OTHER, [{"role": "user"}]]}, "messages[1][0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": OTHER, "prompt_name": "query"}, "prompt_name"),
        ({"messages": OTHER, "chat_template": "x"}, "chat_template"),
        (
            {"messages": OTHER, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"input": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "x", "chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs"),
        ({"messages": [[{"role": "user", "contents": "x"}]]}, "messages[0][0].content"),
        (
            {"messages": [OTHER, [{"role": "user", "content": [{"type": "image_url"}]}]]},
            "messages[1][0].content[0].type",
        ),
    ],
)
def test_errors_name_the_field(directory: Path, body: dict[str, Any], param: str) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/v1/embeddings", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, answer.text

    run(directory, test, EMBEDDER, chat_template=TEMPLATE)
