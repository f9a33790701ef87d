"""The address of a server behind the router."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from octavo.options.transport import ServerSettingsError

_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"[A-Za-z0-9._~/\-]*")
_HOST = re.compile(r"[A-Za-z0-9._\-]+|[0-9A-Fa-f:.]+")


class Address(NamedTuple):
    """A server's scheme, host and port, and what precedes all paths there."""

    scheme: str
    host: str
    port: int
    base: str  # empty, or as in /llm

    @property
    def authority(self) -> str:
        """The host and the port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole address, by which operators and metrics name the server."""
        return f"{self.scheme}://{self.authority}{self.base}"


def read_address(text: str) -> Address:
    """Return the address that an operator wrote; a base URL of clients, with /v1, is the same."""
    if not text.isprintable() or " " in text:  # some of which the parser would leave out
        raise _wrong(text, "it has spaces or control characters")
    given = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(given)
    except ValueError as error:
        raise _wrong(text, str(error).lower()) from None
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        if parts.netloc.count(":") > 1 and "[" not in parts.netloc:
            raise _wrong(text, "an address of IPv6 has brackets, as in [::1]:8000") from None
        raise _wrong(text, "its port is no number from 1 to 65535") from None
    if parts.scheme not in _PORTS:
        raise _wrong(text, f"{parts.scheme[:20]} is neither http nor https")
    if parts.username is not None or parts.password is not None:
        raise _wrong(text, "a key in an address is seen by others; see --upstream-api-key-file")
    if parts.query or parts.fragment:
        raise _wrong(text, "there is something behind its path")
    base = parts.path.rstrip("/").removesuffix("/v1")
    if not host or _HOST.fullmatch(host) is None or _PATH.fullmatch(base) is None:
        raise _wrong(text, "its host or its path has characters that no address takes")
    if port == 0:
        raise _wrong(text, "its port is 0")
    return Address(parts.scheme, host, port or _PORTS[parts.scheme], base)


def read_addresses(texts: tuple[str, ...]) -> list[Address]:
    """Return the addresses of all servers, each of which may be named once."""
    found = [read_address(text) for text in texts]
    for index, each in enumerate(found):
        if each in found[:index]:
            raise ServerSettingsError(f"the server {each.url} is named twice; leave one out")
    return found


def _wrong(text: str, why: str) -> ServerSettingsError:
    return ServerSettingsError(
        f"{text[:200]!r} is no address of a server: {why}; write it as http://HOST:PORT"
    )
