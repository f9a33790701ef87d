"""Late chunking: each part's vector is the mean of its tokens' vectors, beside its place."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from octavo.dialects.embeddings.late_chunking import ChunkWriter, chunks_of
from octavo.dialects.embeddings.schema import LateChunk
from octavo.model_facts import PoolingFacts
from octavo.serving.operation import TURN
from tests.server.embeddings.make import run
from tests.server.engine import WIDTH
from tests.server.make import Client

PATH = "/v1/embeddings"
FACTS = PoolingFacts(width=WIDTH, prompts={"query": "Find: "})
TEXTS = ["The quick fox and a dog", "é 😀 中", "   "]


async def asked(client: Client, **fields: Any) -> Any:
    answer = await client.post(PATH, json={"input": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("size", [1, 3, 2**63 - 1])
@pytest.mark.parametrize("normalizes", [False, True])
def test_a_part_has_the_mean_of_its_tokens(directory: Path, size: int, normalizes: bool) -> None:
    async def test(client: Client) -> None:
        fields = {"use_activation": normalizes, "late_chunking_params": {"chunk_size": size}}
        found = await asked(client, **fields)
        body = {"input": TEXTS, "task": "token_embed", "use_activation": False}
        tokens = (await client.post("/pooling", json=body)).json()
        assert found["usage"] == tokens["usage"]
        for text, each, rows in zip(TEXTS, found["data"], tokens["data"], strict=True):
            expected = []
            for start in range(0, len(rows["data"]), size):
                part = rows["data"][start : start + size]
                mean = [sum(column) / len(part) for column in zip(*part, strict=True)]
                length = hypot(*mean) if normalizes else 1
                expected.append(pytest.approx([value / length for value in mean], abs=1e-5))
            assert each["embedding"] == expected
            late = each["late_chunking"]
            assert (late["strategy"], late["chunk_size"]) == ("fixed_tokens", size)
            assert late["input_tokens"] == len(rows["data"])
            assert [chunk["token_range"][0] for chunk in late["chunks"]] == [
                index * size for index in range(len(expected))
            ]
            places = [chunk["char_range"] for chunk in late["chunks"] if chunk["char_range"]]
            assert (places[0][0], places[-1][1]) == (0, len(text))

    run(directory, test, FACTS)


def test_places_are_those_of_the_text_without_the_models_prompt(directory: Path) -> None:
    async def test(client: Client) -> None:
        one: dict[str, Any] = {"late_chunking_params": {"chunk_size": 1}, "input": TEXTS[0]}
        for name in ("", "query"):
            (data,) = (await asked(client, **one, prompt_name=name))["data"]
            places = [each["char_range"] for each in data["late_chunking"]["chunks"]]
            shown = "".join(TEXTS[0][begin:end] for begin, end in filter(None, places))
            assert shown == TEXTS[0]

    run(directory, test, FACTS)


def test_a_part_of_special_tokens_has_no_place() -> None:
    found = list(chunks_of([(0, 0), (0, 3), (3, 5), (0, 0)], 1))
    assert [each.char_range for each in found] == [None, (0, 3), (3, 5), None]
    assert list(chunks_of([(0, 0), (0, 3), (3, 5)], 2)) == [
        LateChunk(token_range=(0, 2), char_range=(0, 3)),
        LateChunk(token_range=(2, 3), char_range=(3, 5)),
    ]
    assert list(chunks_of([], 2)) == []


def test_the_places_of_many_parts_leave_turns_to_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[bytes]()

    def recorded(self: ChunkWriter, index: int, tail: bytes) -> Iterator[bytes]:
        for part in end(self, index, tail):
            made.append(part)
            yield part

    async def test(client: Client) -> None:
        body: dict[str, Any] = {"late_chunking_params": {"chunk_size": 1}, "input": TEXTS[0]}
        (data,) = (await asked(client, **body))["data"]
        assert made.count(TURN) == len(data["late_chunking"]["chunks"]) > 1

    end = ChunkWriter._end
    monkeypatch.setattr("octavo.serving.bounds.turns.PIECE_BYTES", 1)
    monkeypatch.setattr(ChunkWriter, "_end", recorded)
    run(directory, test, FACTS)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [5, 6]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"messages": [{"role": "user", "content": "a"}], "input": None}, "messages"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"late_chunking_params": {"chunk_size": 0}}, "late_chunking_params.chunk_size"),
        ({"late_chunking_params": {"chunk_size": 2**64}}, "late_chunking_params.chunk_size"),
        ({"input": "The dog " * 200}, "input"),
    ],
)
def test_what_has_no_parts_is_refused(directory: Path, fields: dict[str, Any], param: str) -> None:
    async def test(client: Client) -> None:
        body = {"input": "a", "late_chunking_params": {"chunk_size": 2}, **fields}
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param

    run(directory, test, FACTS)


def test_what_follows_the_mean_of_a_whole_text_refuses_parts(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {"input": "a", "late_chunking_params": {"chunk_size": 2}}
        for path in (PATH, "/pooling"):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "late_chunking_params"

    run(directory, test, replace(FACTS, embed_head="embed"))
