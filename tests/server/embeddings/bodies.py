"""The matrix's bodies of the embeddings' requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import TEXT

BODIES: dict[str, dict[str, Any]] = {
    "EmbeddingRequest": {"input": [TEXT, "x"]},
    "PoolingRequest": {"input": TEXT},
    "ClassifyRequest": {"input": [TEXT, "x"]},
    "ScoringRequest": {"query": TEXT, "items": [" x", " y"], "label_token_ids": [5, 6]},
    "ScoreRequest": {"text_1": TEXT, "text_2": ["x", "y"]},
    "RerankRequest": {"query": TEXT, "documents": ["x", "y"]},
    "AnyRerankRequest": {"query": TEXT, "texts": ["x", "y"]},
    "TeiEmbedRequest": {"inputs": [TEXT, "x"]},
    "LlamaEmbeddingRequest": {"content": [TEXT, "x"]},
}
