"""/embed and /rerank in the shapes of text-embeddings-inference (TEI)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.arrays import encoded_each
from octavo.dialects.embeddings import scores
from octavo.dialects.embeddings.common import (
    PooledWriter,
    input_errors,
    inputs_of,
    pooled_request,
    wanted_of,
)
from octavo.dialects.embeddings.schema import (
    AnyRerankRequest,
    EmbeddingRequest,
    RerankRequest,
    TeiEmbedRequest,
    TeiRank,
)
from octavo.dialects.embeddings.scores import ScoreWriter, compared
from octavo.serving.operation import TURN, GenerationRequest, TokenCounts
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.transport.exchange import encode

_NAMES = {"input": "inputs"}
_TO_FIT = -1
_OF_TEI = ("raw_scores", "return_text", "truncate")


def rerank(context: TranslationContext, request: AnyRerankRequest) -> GenerationRequest:
    """Return the neutral form of a request for the order of documents, in either shape."""
    if (request.documents is None) == (request.texts is None):
        raise invalid("give either documents, or TEI's texts", "documents")
    if request.texts is None:
        for name in _OF_TEI:
            if getattr(request, name):
                raise invalid(f"{name} belongs to TEI's texts; leave it out", name)
        return scores.rerank(context, request)
    _check_direction(request)
    same = RerankRequest(
        query=request.query,
        documents=[],
        top_n=request.top_n,
        instruction=request.instruction,
        use_activation=False if request.raw_scores else request.use_activation,
        max_tokens_per_query=request.max_tokens_per_query,
        max_tokens_per_doc=request.max_tokens_per_doc,
        truncate_prompt_tokens=_most(request),
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )
    texts = request.texts
    writer = partial(TeiRankWriter, texts if request.return_text else None)
    return compared(context, same, [request.query], texts, ("query", "texts"), writer)


def embed(context: TranslationContext, request: TeiEmbedRequest) -> GenerationRequest:
    """Return the neutral form of a request for the vectors of texts."""
    _check_direction(request)
    activation = request.use_activation
    given: Any = request.inputs  # of which each is an input there too
    same = EmbeddingRequest(
        input=given,
        use_activation=request.normalize if activation is None else activation,
        prompt_name=request.prompt_name,
        dimensions=request.dimensions,
        truncate_prompt_tokens=_most(request),
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )
    try:
        asked = wanted_of(context, "embed", same)
        prompts = inputs_of(context, same)
    except ApiError as error:
        raise error.renamed(_NAMES) from None
    named = input_errors(same)
    return pooled_request(
        context,
        same,
        prompts,
        asked,
        EmbedWriter,
        lambda error, index: named(error, index).renamed(_NAMES),
    )


def _most(request: AnyRerankRequest | TeiEmbedRequest) -> int | None:
    return _TO_FIT if request.truncate else request.truncate_prompt_tokens


def _check_direction(request: AnyRerankRequest | TeiEmbedRequest) -> None:
    name = "truncation_direction"
    if request.truncate and getattr(request, name).lower() != "right":
        raise not_yet(name, "a text is cut at its end")


class TeiRankWriter(ScoreWriter):
    """Texts in the order of their relevance, as a list."""

    def __init__(self, texts: list[str] | None, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts = texts  # to be returned

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the list with the most relevant texts first."""
        ranks: list[TeiRank] = []
        for index, value in enumerate(self.values(outputs)):
            ranks.append(TeiRank(index=index, score=value))
            yield TURN
        ranks.sort(key=lambda rank: -rank.score)
        del ranks[self.request.top_n or len(ranks) :]
        for rank in ranks:
            if self._texts is not None:
                rank.text = self._texts[rank.index]
        yield encode(ranks)


class EmbedWriter(PooledWriter):
    """Vectors, as a list of lists of numbers."""

    prefix = ""

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the list, each vector encoded alone."""
        yield b"["
        yield from encoded_each(map(self.asked.vector, outputs))
        yield b"]"
