"""The dialect of these routes: OpenAI's errors, and ids of its own."""

from __future__ import annotations

from dataclasses import replace

from octavo.dialects.common.dialect import OPENAI

EMBEDDING_ID, POOLING_ID, CLASSIFY_ID, SCORE_ID, RERANK_ID = (
    *("embd-", "pooling-", "classify-"),
    *("score-", "rerank-"),
)

EMBEDDINGS = replace(
    OPENAI, id_prefixes=(EMBEDDING_ID, POOLING_ID, CLASSIFY_ID, SCORE_ID, RERANK_ID)
)
