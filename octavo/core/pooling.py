"""What a request asks for of its prompt's hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# The hidden state of the prompt's last token, the mean over the prompt, that of its first token,
# those of all its tokens.
PoolingKind = Literal["last", "mean", "cls", "all"]
POOLINGS: tuple[PoolingKind, ...] = get_args(PoolingKind)

# What follows pooling: nothing, the dense layers of an embedding model, a classifier.
Head = Literal["", "embed", "classify"]
HEADS: tuple[Head, ...] = get_args(Head)


@dataclass(frozen=True, slots=True)
class Pooling:
    """The way from a prompt to vectors: which hidden states, and the part of the model after them.

    Normalising and cutting of vectors, and what makes probabilities of a classifier's scores,
    happen in the front end.
    """

    kind: PoolingKind = "last"
    head: Head = ""
    second_from: int = 0  # where the second text of a pair begins; 0: the prompt is one text
