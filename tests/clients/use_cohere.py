"""cohere: chat, embeddings and the order of documents through its clients, and errors."""

from __future__ import annotations

import asyncio
import struct
import sys
from base64 import b64decode
from typing import Any

import cohere
from cohere.core.api_error import ApiError

URL, FULL, KEY = sys.argv[1:4]
QUERY = "The quick brown fox"
DOCUMENTS = ["A day in the country", "The quick brown fox", "Ein Tag wie jeder andere"]


def check_embeddings(client: cohere.ClientV2) -> None:
    """Check that the vectors of all types are those of the floats."""
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    options: dict[str, Any] = {"model": "tiny", "input_type": "search_query"}
    found = client.embed(texts=DOCUMENTS, embedding_types=kinds, **options).embeddings
    assert found.float_ is not None
    assert found.base64 is not None
    for index, vector in enumerate(found.float_):
        assert abs(sum(value * value for value in vector) - 1) < 1e-5
        data = b64decode(found.base64[index])
        assert struct.unpack(f"<{len(vector)}f", data) == struct.unpack(
            f"<{len(vector)}f", struct.pack(f"<{len(vector)}f", *vector)
        )
        signs = "".join(f"{byte:08b}" for byte in found.ubinary[index])
        assert signs == "".join("1" if value > 0 else "0" for value in vector)
        assert [each - 128 for each in found.ubinary[index]] == found.binary[index]
        assert [each + 128 for each in found.int8[index]] == found.uint8[index]
    inputs = [{"content": [{"type": "text", "text": text}]} for text in DOCUMENTS]
    assert client.embed(inputs=inputs, **options).embeddings.float_ == found.float_


def check_chat(client: cohere.ClientV2) -> None:
    """Check that a stream adds up to the whole answer."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUERY}],
        "temperature": 0,
        "max_tokens": 8,
    }
    whole = client.chat(**asked)
    assert whole.finish_reason == "MAX_TOKENS"
    assert whole.usage.tokens.output_tokens == 8
    text = ""
    for event in client.chat_stream(**asked):
        if event.type == "content-delta":
            text += event.delta.message.content.text
    assert event.type == "message-end"
    assert event.delta.finish_reason == "MAX_TOKENS"
    assert text == whole.message.content[0].text


def main() -> None:
    """Run all checks of this client."""
    client = cohere.ClientV2(api_key=KEY, base_url=URL, timeout=60)
    check_embeddings(client)
    check_chat(client)
    answer = client.rerank(model="tiny", query=QUERY, documents=DOCUMENTS)
    assert len(answer.results) == 3
    assert answer.results[0].index == 1
    assert abs(answer.results[0].relevance_score - 1) < 1e-6
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert answer.meta is not None
    assert answer.meta.tokens is not None
    assert answer.meta.tokens.input_tokens

    best = client.rerank(
        model="tiny", query=QUERY, documents=DOCUMENTS, top_n=1, max_tokens_per_doc=4096
    )
    assert [result.index for result in best.results] == [1]

    older = cohere.Client(api_key=KEY, base_url=URL, timeout=60)
    kept = older.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert [result.relevance_score for result in kept.results] == scores
    assert kept.results[0].document is not None
    assert kept.results[0].document.text == DOCUMENTS[1]

    async def later() -> list[int]:
        several = cohere.AsyncClientV2(api_key=KEY, base_url=URL, timeout=60)
        found = await several.rerank(model="tiny", query=QUERY, documents=DOCUMENTS)
        return [result.index for result in found.results]

    assert asyncio.run(later()) == [result.index for result in answer.results]

    for key, model, status in ((KEY, "gpt-9", 404), ("wrong-key", "tiny", 401)):
        refused = cohere.ClientV2(api_key=key, base_url=URL, timeout=60)
        found = None
        try:
            refused.rerank(model=model, query=QUERY, documents=DOCUMENTS)
        except ApiError as error:
            found = error.status_code
        assert found == status, found
    print("all is well")


main()
