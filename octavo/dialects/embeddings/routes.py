"""The part of the table of routes that makes vectors, classes and scores of texts."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.embeddings import generative, late_chunking, llama, scores, tei, vectors
from octavo.dialects.embeddings.dialect import EMBEDDINGS
from octavo.dialects.embeddings.generative import ScoringRequest
from octavo.dialects.embeddings.schema import (
    AnyRerankRequest,
    AnyRerankResponse,
    ClassifyRequest,
    ClassifyResponse,
    CohereRerankRequest,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    TeiEmbedRequest,
    TeiEmbedResponse,
)
from octavo.serving.generate import generating
from octavo.transport.route import Route

EMBEDDING_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/embeddings"),
        generating(EmbeddingRequest, late_chunking.embeddings),
        "Vectors of texts.",
        *(EmbeddingRequest, EmbeddingResponse),
        other_kinds=("application/octet-stream",),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/pooling"),
        generating(PoolingRequest, vectors.pooling),
        "Vectors of texts, or of each of their tokens.",
        *(PoolingRequest, PoolingResponse),
        other_kinds=("application/octet-stream",),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/classify"),
        generating(ClassifyRequest, vectors.classify),
        "The classes of texts.",
        *(ClassifyRequest, ClassifyResponse),
        dialect=EMBEDDINGS,
    ),
    *(
        Route(
            *("POST", path),
            generating(ScoreRequest, scores.score),
            "How well two texts fit each other.",
            *(ScoreRequest, ScoreResponse),
            dialect=EMBEDDINGS,
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Route(
            *("POST", path),
            generating(kind, scores.rerank),
            "Documents in the order of their relevance to a query.",
            *(kind, RerankResponse),
            dialect=EMBEDDINGS,
        )
        for path, kind in (
            ("/v1/rerank", RerankRequest),
            ("/v2/rerank", CohereRerankRequest),
            ("/cohere/v2/rerank", CohereRerankRequest),
        )
    ),
    Route(
        *("POST", "/rerank"),
        generating(AnyRerankRequest, tei.rerank),
        "Documents in the order of their relevance to a query, in TEI's shape too.",
        *(AnyRerankRequest, AnyRerankResponse),
        dialect=EMBEDDINGS,
    ),
    Route(
        *("POST", "/embed"),
        generating(TeiEmbedRequest, tei.embed),
        "Vectors of texts, in TEI's shape.",
        *(TeiEmbedRequest, TeiEmbedResponse),
        dialect=EMBEDDINGS,
    ),
    *(
        Route(
            *("POST", path),
            generating(llama.LlamaEmbeddingRequest, llama.embedding),
            "Vectors of texts, in llama-server's shape.",
            *(llama.LlamaEmbeddingRequest, llama.LlamaEmbeddingResponse),
            dialect=EMBEDDINGS,
        )
        for path in ("/embedding", "/embeddings")
    ),
    Route(
        *("POST", "/generative_scoring"),
        generating(ScoringRequest, generative.translate),
        "Items scored by the probability of a token behind a query.",
        *(ScoringRequest, ScoreResponse),
    ),
)
