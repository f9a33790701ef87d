"""cohere: the order of documents through both of its clients, and errors."""

from __future__ import annotations

import asyncio
import sys

import cohere
from cohere.core.api_error import ApiError

URL, FULL, KEY = sys.argv[1:4]
QUERY = "The quick brown fox"
DOCUMENTS = ["A day in the country", "The quick brown fox", "Ein Tag wie jeder andere"]


def main() -> None:
    """Run all checks of this client."""
    client = cohere.ClientV2(api_key=KEY, base_url=URL, timeout=60)
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
