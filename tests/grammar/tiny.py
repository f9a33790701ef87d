"""A small vocabulary, and random shapes whose texts can all be listed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from octavo.grammar.protocol import Vocabulary, Words

END = 0
UNSPELLED = 1  # a special token, which no text spells


def make_vocabulary() -> Vocabulary:
    """Make a vocabulary of single bytes and of some longer tokens over a few letters."""
    letters = b'abc{}":, \n0123\xc3\xa9'
    pieces = [
        b"ab",
        b"abc",
        b"ca",
        b'{"',
        b'":',
        b"\xc3\xa9",
        b"12",
        b"true",
        b"false",
        b"null",
        b'a"',
    ]
    tokens = [b"", b"<special>", *[bytes([byte]) for byte in letters], *pieces, b""]

    def encode(text: str) -> Sequence[int]:
        """Take the longest token each time."""
        rest, found = text.encode(), []
        while rest:
            best = max(
                (
                    token
                    for token in range(2, len(tokens))
                    if tokens[token] and rest.startswith(tokens[token])
                ),
                key=lambda token: len(tokens[token]),
            )
            found.append(best)
            rest = rest[len(tokens[best]) :]
        return found

    return Vocabulary(tokens, frozenset({END, UNSPELLED}), frozenset({END}), encode)


def allowed(row: Words, size: int) -> set[int]:
    """Return the tokens whose bits are set."""
    return {token for token in range(size) if int(row[token // 32]) >> (token % 32) & 1}


def random_regex(random: Random, depth: int = 3) -> tuple[str, set[str]]:
    """Return a random regex and all texts that it matches; there is at least one."""
    kind = (
        random.choice(("text", "text", "both", "either", "option", "repeat")) if depth else "text"
    )
    if kind == "text":
        text = "".join(random.choice('abcé01{":') for _ in range(random.randint(1, 3)))
        return re.escape(text), {text}
    first, texts = random_regex(random, depth - 1)
    if kind == "option":
        return f"({first})?", texts | {""}
    if kind == "repeat":
        return f"({first}){{1,2}}", texts | {one + other for one in texts for other in texts}
    second, others = random_regex(random, depth - 1)
    if kind == "either":
        return f"({first}|{second})", texts | others
    return first + second, {one + other for one in texts for other in others}
