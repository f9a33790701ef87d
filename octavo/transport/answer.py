"""Where the answer to a request goes, and the head of a request, however it has come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class RequestHead:
    """The part of a request that precedes its body."""

    method: str
    path: str
    headers: dict[str, str]  # by lower-case name
    query: str = ""
    pairs: Headers = field(default_factory=list)  # as they came, for middlewares
    target: bytes = b""  # the path and the query as they came
    version: str = "1.1"
    seconds_left: float | None = None  # until its client gives up, if it has said so

    @classmethod
    def of(cls, scope: Scope) -> RequestHead:
        """Return the head of an HTTP request."""
        query = scope.get("query_string", b"").decode("latin-1")
        return cls(scope["method"], scope["path"], headers_of(scope["headers"]), query)


def headers_of(given: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers by lower-case name: the first of each, and none of several Hosts."""
    found: dict[str, str] = {}
    for name, value in given:
        key = name.decode("latin-1")
        if key == "host" and key in found:
            found[key] = ""  # two Hosts contradict each other
        else:
            found.setdefault(key, value.decode("latin-1"))
    return found


def path_within(root: str, path: str) -> str:
    """Return a path as routes have it: without the prefix of a proxy and slashes at the end."""
    within = path.removeprefix(root)
    if within != path and not within.startswith("/"):
        within = path if within else "/"  # another path that begins alike, or the prefix
    return within.rstrip("/") or "/"


class Answer(Protocol):
    """One answer on its way: it begins once, and then has its parts in their order."""

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""

    async def write(self, part: bytes, *, more: bool) -> None:
        """Send a part, and return when there is room for the next; without `more` it is the end."""

    def write_now(self, part: bytes) -> None:
        """Send a part in the middle; the caller has checked that `must_wait` is False."""

    def must_wait(self) -> bool:
        """Return whether the next `write` has to wait for the reader."""

    def is_stalled(self) -> bool:
        """Return whether the reader is known not to take what was sent before."""

    def cut(self) -> None:
        """End the answer where it is, without waiting until its reader has what was sent."""


class KeptAnswer:
    """The part of an answer that is kept here, where no reader is waited for."""

    async def begin(self, status: int, headers: Headers) -> None:
        """Ignore them, unless a subclass needs them."""

    async def write(self, part: bytes, *, more: bool) -> None:
        """Keep a part at once, also the last one."""
        self.write_now(part)

    def write_now(self, part: bytes) -> None:
        """Keep a part; each subclass has a place of its own for it."""
        raise NotImplementedError

    def must_wait(self) -> bool:
        """Return False: there is always room."""
        return False

    def is_stalled(self) -> bool:
        """Return False: there is no reader."""
        return False

    def cut(self) -> None:
        """Return: there is no connection to close."""


class AwaitedAnswer:
    """The part of an answer of which only the next `write` shows whether there is room."""

    def write_now(self, part: bytes) -> None:
        """Raise AssertionError: a part needs a turn of the event loop."""
        raise AssertionError("must_wait is True")

    def must_wait(self) -> bool:
        """Return True: it is not known whether there is room."""
        return True

    def is_stalled(self) -> bool:
        """Return False: it is not known."""
        return False


class AsgiAnswer(AwaitedAnswer):
    """A response that is sent as ASGI describes it, through an operator's middlewares.

    Nothing may bypass `send`, which may wait. Our own protocol has an
    extension in the scope, `octavo.cut`, which closes the connection.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._cut = (scope.get("extensions") or {}).get("octavo.cut")

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the status line and the headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, part: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    def cut(self) -> None:
        """Close the connection, if it is our own protocol's."""
        if self._cut is not None:
            self._cut["call"]()
