"""The headers that a router passes on: what concerns one connection alone stays behind.

Each header is passed on once, the first of its name, which is the one that the router has read.
"""

from __future__ import annotations

from octavo.transport.answer import Headers, RequestHead

# Of one connection (RFC 9110, 7.6.1), or written anew.
_OF_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
        *("content-length", "host", "expect", "date", "x-request-id"),
    }
)
# Checked by the router, or of use to it alone; a client could name any address as its own.
_OF_ROUTER = frozenset({"origin", "referer", "cookie", "forwarded", "x-real-ip"})
_OF_ROUTER_BEGIN = ("x-forwarded-", "access-control-")
KEYS = frozenset({"authorization", "x-api-key"})


def request_head(
    line: bytes,
    given: RequestHead,
    own: Headers,
    without: frozenset[str] = frozenset(),
) -> bytes:
    """Return the head of a request to a server: a client's headers, and some of the router's."""
    left_out = _OF_CONNECTION | _OF_ROUTER | without | _named(given.pairs)
    lines = [line]
    for name, value in given.headers.items():
        if name not in left_out and not name.startswith(_OF_ROUTER_BEGIN):
            lines.append(b"%b: %b" % (name.encode("latin-1"), value.encode("latin-1")))
    lines += [b"%b: %b" % pair for pair in own]
    return b"\r\n".join([*lines, b"", b""])


def response_headers(pairs: Headers, length: int | None) -> Headers:
    """Return the headers of a server's response, for its client."""
    left_out = _OF_CONNECTION | _named(pairs)
    found = [(name, value) for name, value in pairs if _is_kept(name.decode("latin-1"), left_out)]
    if length is not None:
        found.append((b"content-length", b"%d" % length))
    return found


def _is_kept(name: str, left_out: frozenset[str]) -> bool:
    return name not in left_out and not name.startswith("access-control-")


def _named(pairs: Headers) -> frozenset[str]:
    """Return the headers that Connection headers declare to be of the connection."""
    lists = [value.decode("latin-1") for name, value in pairs if name == b"connection"]
    words = (word.strip().lower() for each in lists for word in each.split(","))
    return frozenset(word for word in words if word)
