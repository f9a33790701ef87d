"""Attacks: what a hostile client sends, how it behaves, and which responses to it are right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

ATTACK_KEY = "key-of-the-hostile-clients"
WATCH_KEY = "key-of-the-watched-clients"
INJECTED = "x-injected"  # a header that no response may contain
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
Headers = Iterable[tuple[str, str]]


class Right(Enum):
    """The responses to an attack that are right."""

    REFUSED = auto()  # 4xx with an error in JSON
    REFUSED_OR_CLOSED = auto()  # the same, or no response where the protocol has none
    SERVED = auto()  # the request is valid: 200 and complete, or 4xx, or 503 with Retry-After
    LEFT = auto()  # the client leaves: anything but 5xx, except 503 with Retry-After


class Ending(Enum):
    """The end of an attack: the client's behaviour after it has sent everything."""

    READ = auto()  # all responses
    HALF_CLOSE = auto()  # closes its sending side, and reads
    LEAVE = auto()  # closes the connection
    RESET = auto()  # closes it with a reset
    NEVER_READ = auto()  # holds the connection for a while
    READ_SLOWLY = auto()


@dataclass(frozen=True)
class Attack:
    """One hostile connection: its bytes, its behaviour and its right responses."""

    pieces: tuple[bytes, ...]  # written one after the other
    right: Right = Right.REFUSED
    ending: Ending = Ending.READ
    num_answers: int = 1
    seconds_between: float = 0.0  # pieces
    seconds_before_end: float = 0.0  # of a client that leaves
    has_body: bool = True  # the responses have bodies; those to HEAD have not
    is_followed: bool = False  # by a valid request on the same connection

    def followed(self) -> Attack:
        """Return the same with a request for health behind it on the connection."""
        pieces = (*self.pieces[:-1], self.pieces[-1] + LIVE)
        return replace(self, pieces=pieces, num_answers=self.num_answers + 1, is_followed=True)


@dataclass(frozen=True)
class Kind:
    """A class of attacks: its name, its share of a mix, and how to make one."""

    name: str
    share: float
    make: Callable[[random.Random], Attack]


class Kinds:
    """The classes of attacks of one module, in the order of their definition."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []

    def add(
        self, share: float = 1.0
    ) -> Callable[[Callable[[random.Random], Attack]], Callable[[random.Random], Attack]]:
        """Add the decorated function as a class of attacks."""

        def decorate(make: Callable[[random.Random], Attack]) -> Callable[[random.Random], Attack]:
            self._kinds.append(Kind(make.__name__.strip("_").replace("_", " "), share, make))
            return make

        return decorate

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)


def request(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: Headers = (),
    key: str | None = ATTACK_KEY,
    host: str | None = "localhost",
    length: str | None = None,
) -> bytes:
    """Return the bytes of a request; `length` replaces the right Content-Length."""
    lines = [f"{method} {path} HTTP/1.1"]
    if host is not None:
        lines.append(f"Host: {host}")
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    lines += [f"{name}: {value}" for name, value in headers]
    if body or length is not None:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


def head(path: str, *, headers: Headers = ()) -> bytes:
    """Return the head of a request whose body has the form that its headers announce."""
    return request(path, headers=headers)


def post(path: str, body: Any, headers: Headers = ()) -> bytes:
    """Return the bytes of a request with a body in JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    return request(path, data, headers=headers)


LIVE = request("/health/live", method="GET", key=None)
