"""The facts about a model that serving it needs: its end tokens, defaults, vectors and classes.

The readers of the model's files make them, and an engine reports them to its front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

# The words of octavo/core/pooling.py, which a model's files know nothing of.
Kind = Literal["last", "mean", "cls", "all"]
# "score" is a classifier of a pair of texts with one class: their relevance to each other.
Task = Literal["generate", "embed", "classify", "score"]
# What makes probabilities of a classifier's scores; "none" where they are used as they are.
Squash = Literal["none", "sigmoid", "softmax"]


class GenerationDefaults(Struct, frozen=True):
    """The defaults of one model; None means that its files have none."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()  # any of them ends a text; the first is the tokenizer's own
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


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
    # Defaults that no file of a model sets, but a server's user (engine/pooling_facts.py).
    default_task: str = ""  # of requests that name none; "": the usual one
    activates: bool = True  # whether scores become probabilities by `squash`
    dimensions: int | None = None  # the first so many numbers of an embedding
    logit_mean: float = 0.0  # subtracted from scores, which are divided by the next then
    logit_sigma: float = 1.0
    step_tag_id: int | None = None  # the only token whose classes are returned
    max_embed_len: int | None = None  # of a text that is embedded in pieces

    def width_behind(self, head: str) -> int:
        """Return the numbers of a vector behind a part of the model."""
        return len(self.labels) if head == "classify" else self.width
