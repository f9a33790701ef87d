"""/v2/embed: vectors in all types, cut at either end, with the model's prompts."""

from __future__ import annotations

import struct
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from octavo.model_facts import PoolingFacts
from tests.server.embeddings.make import run
from tests.server.engine import WIDTH, vector_of
from tests.server.make import Client

PATH = "/v2/embed"
TEXTS = ["The quick fox", "a dog"]
FACTS = PoolingFacts(width=WIDTH, prompts={"query": "Find: ", "clustering": "Sort: "})


async def ids_of(client: Client, text: str) -> list[int]:
    found: list[int] = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
    return found


def vector_for(ids: list[int]) -> list[float]:
    """Return the engine's vector of a prompt, with length one."""
    values = list(vector_of([*ids, 0], WIDTH))
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values]


async def embedded(client: Client, **fields: Any) -> dict[str, Any]:
    answer = await client.post(PATH, json={"model": "tiny", **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert body["response_type"] == "embeddings_by_type"
    found: dict[str, Any] = body["embeddings"]
    return found


def test_each_type_is_made_of_the_same_vector(directory: Path) -> None:
    async def test(client: Client) -> None:
        kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64", "float"]
        width = WIDTH - WIDTH % 8
        asked: dict[str, Any] = {"texts": TEXTS, "embedding_types": kinds}
        found = await embedded(client, **asked, output_dimension=width)
        assert list(found) == kinds[:-1]
        for index, vector in enumerate(found["float"]):
            assert sum(value * value for value in vector) == pytest.approx(1)
            assert found["int8"][index] == [round(127 * value) for value in vector]
            assert found["uint8"][index] == [128 + round(127 * value) for value in vector]
            signs = "".join("1" if value > 0 else "0" for value in vector)
            packed = [int(signs[start : start + 8], 2) for start in range(0, width, 8)]
            assert found["ubinary"][index] == packed
            assert found["binary"][index] == [each - 128 for each in packed]
            data = b64decode(found["base64"][index])
            assert struct.unpack(f"<{width}f", data) == pytest.approx(vector)

    run(directory, test, FACTS)


def test_the_type_of_an_input_chooses_the_models_prompt(directory: Path) -> None:
    async def test(client: Client) -> None:
        for kind, prefix in (
            ("search_query", "Find: "),
            ("clustering", "Sort: "),
            ("search_document", ""),
            (None, ""),
        ):
            fields: dict[str, Any] = {} if kind is None else {"input_type": kind}
            found = await embedded(client, texts=TEXTS, **fields)
            blocks = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
            assert await embedded(client, inputs=blocks, **fields) == found
            for text, vector in zip(TEXTS, found["float"], strict=True):
                assert vector == pytest.approx(vector_for(await ids_of(client, prefix + text)))

    run(directory, test, FACTS)


def test_a_longer_text_is_cut_where_the_request_says(directory: Path) -> None:
    async def test(client: Client) -> None:
        text = "one two three four five six"
        ids = await ids_of(client, text)
        plain = {"prompt": text, "add_special_tokens": False}
        own = (await client.post("/tokenize", json=plain)).json()["tokens"]
        num_special = len(ids) - len(own)
        for truncate, kept in (("END", own[:3]), ("START", own[-3:])):
            fields = {"truncate": truncate, "max_tokens": 3 + num_special}
            (vector,) = (await embedded(client, texts=[text], **fields))["float"]
            assert vector == pytest.approx(vector_for([*ids[:num_special], *kept]))
        long = {"model": "tiny", "texts": ["x", "word " * 400]}
        for truncate, status in (("END", 200), ("START", 200), ("NONE", 400)):
            answer = await client.post(PATH, json={**long, "truncate": truncate})
            assert answer.status_code == status
            assert status == 200 or "texts[1]" in answer.json()["message"]

    run(directory, test, FACTS)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "texts"),
        ({"texts": TEXTS, "inputs": [{"content": [{"type": "text", "text": "x"}]}]}, "texts"),
        ({"texts": TEXTS, "images": ["data:"]}, "images"),
        ({"texts": TEXTS, "input_type": "image"}, "input_type"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs[0].content[0].type"),
        ({"texts": TEXTS, "output_dimension": 100_000}, "output_dimension"),
        ({"texts": TEXTS, "output_dimension": 3, "embedding_types": ["binary"]}, "types"),
        ({"texts": TEXTS, "truncate": "NONE", "max_tokens": 3}, "max_tokens"),
        ({"texts": TEXTS, "embedding_types": ["float64"]}, "embedding_types"),
    ],
)
def test_errors_name_the_field(directory: Path, fields: dict[str, Any], place: str) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(PATH, json={"model": "tiny", **fields})
        assert answer.status_code == 400
        assert place in answer.json()["message"]

    run(directory, test, FACTS)


@pytest.mark.parametrize("count", [1, 300])
def test_texts_are_repeated_as_they_were_sent(directory: Path, count: int) -> None:
    """Neither a prompt of the model nor what was cut changes them; a large body is read apart."""

    async def test(client: Client) -> None:
        texts = [f"  The <b> é 😀 {index} " * 8 for index in range(count)]
        body = {"model": "tiny", "texts": texts, "input_type": "search_query", "max_tokens": 9}
        answer = (await client.post(PATH, json=body)).json()
        assert answer["texts"] == texts
        assert len(answer["embeddings"]["float"]) == count
        assert answer["meta"]["billed_units"] == {"input_tokens": 9 * count, "image_tokens": 0}
        blocks = [{"content": [{"type": "text", "text": each}]} for each in texts]
        body = {"model": "tiny", "inputs": blocks}
        assert "texts" not in (await client.post(PATH, json=body)).json()

    run(directory, test, FACTS)
