"""A request of a measurement: by its lengths, and with the words that it is sent with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST_REQUESTS = 1_000_000
# Of all prompts together; a token takes about six bytes until it has been sent.
MOST_TOKENS = 1 << 28

Prompt = str | list[int] | list[dict[str, Any]]


class Piece(NamedTuple):
    """A part of a prompt; those with the same key begin with the same words."""

    key: str
    tokens: int


class Shape(NamedTuple):
    """The lengths of a request, what it shares with others, and when it comes."""

    pieces: tuple[Piece, ...]
    max_tokens: int
    at: float | None = None  # seconds, if it has a time of its own

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all pieces."""
        return sum(each.tokens for each in self.pieces)


class Asked(NamedTuple):
    """A request: its prompt, and the most tokens of its answer."""

    prompt: Prompt  # a text, token ids, or the messages of a chat
    max_tokens: int
    at: float | None = None
    model: str = ""  # an adapter's name, instead of the model's


Write = Callable[[Sequence[Piece]], str | list[int]]


def written(shapes: Iterable[Shape], write: Write) -> list[Asked]:
    """Return the requests with the prompts that a function writes."""
    return [Asked(write(each.pieces), each.max_tokens, each.at) for each in shapes]


def scaled(shape: Shape, ratio: float) -> Shape:
    """Return the shape with so many times the tokens; what it shares stays shared."""

    def size(tokens: int) -> int:
        return max(1, round(tokens * ratio))

    pieces = tuple(Piece(each.key, size(each.tokens)) for each in shape.pieces)
    return shape._replace(pieces=pieces, max_tokens=size(shape.max_tokens))


def with_adapters(
    asked: Sequence[Asked], names: Sequence[str], in_turn: bool, chance: random.Random
) -> list[Asked]:
    """Give each request an adapter: by chance, or one after the other."""
    if not names:
        return list(asked)
    return [
        each._replace(model=names[index % len(names)] if in_turn else chance.choice(names))
        for index, each in enumerate(asked)
    ]
