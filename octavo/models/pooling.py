"""What a model does besides generating: which vectors and scores it makes, and how by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

# The words of octavo/core/pooling.py, which a model's files know nothing of.
Kind = Literal["last", "mean", "cls", "all"]
# "score" is a classifier of a pair of texts with one class: their relevance to each other.
Task = Literal["generate", "embed", "classify", "score"]
# What makes probabilities of a classifier's scores; "none" where they are used as they are.
Squash = Literal["none", "sigmoid", "softmax"]


class Answers(NamedTuple):
    """The tokens whose logits are scores: each its own, or that of the second minus the first."""

    token_ids: tuple[int, ...]
    is_difference: bool


class PoolingFacts(Struct, frozen=True):
    """The tasks of a model, and the defaults of those that are about a prompt."""

    tasks: tuple[Task, ...] = ("generate", "embed")
    kind: Kind = "last"
    normalize: bool = True
    embed_head: Literal["", "embed"] = (
        ""  # what follows pooling in an embedding: dense layers, or nothing
    )
    width: int = 0  # of an embedding
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts to put before an input, by use
    default_prompt: str = ""  # a name in `prompts`
    similarity: Literal["cosine", "dot"] = "cosine"
    classify_kind: Kind = "last"
    labels: tuple[str, ...] = ()  # of a classifier's classes, in order
    squash: Squash = "none"
    instruction: str = ""  # of a reranker, for requests without one
    pair_form: str = ""  # of a reranker without a template of its own: one that is known

    def width_behind(self, head: str) -> int:
        """Return the numbers of a vector behind a part of the model."""
        return len(self.labels) if head == "classify" else self.width
