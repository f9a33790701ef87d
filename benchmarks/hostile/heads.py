"""Heads that are wrong: request lines, headers, keys, hosts, origins and paths."""

from __future__ import annotations

import random

from benchmarks.hostile.attack import (
    ATTACK_KEY,
    COMPLETIONS,
    INJECTED,
    Attack,
    Kinds,
    Right,
    post,
    request,
)
from benchmarks.hostile.bodies import BASE

KINDS = Kinds()
BODY = BASE[COMPLETIONS]


@KINDS.add(share=4)
def request_lines(chance: random.Random) -> Attack:
    """Make bytes that begin no request of HTTP/1.1."""
    lines = [
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1x\r\nHost: localhost\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(200),  # TLS
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"* 1 FETCH (BODY[HEADER])\r\n\r\n",
        b"POST " + b"A" * 200 + b"\r\n\r\n",
        chance.randbytes(chance.choice([5, 300])) + b"\r\n\r\n",
    ]
    return Attack((chance.choice(lines),))


@KINDS.add(share=4)
def header_lines(chance: random.Random) -> Attack:
    """Make headers that no HTTP parser may take."""
    line = chance.choice(
        [
            b"no colon",
            b": no name",
            b"a b: 1",
            b"a\x00: 1",
            b"a: \x00",
            b"a: 1\x0b\x01",
            b"Host : localhost",
            b"\xff\xfe: 1",
            b"(a): 1",
        ]
    )
    return Attack((b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n",))


@KINDS.add(share=2)
def large_heads(chance: random.Random) -> Attack:
    headers = chance.choice(
        [
            [("x-large", "x" * 40_000)],
            [("x" * 40_000, "1")],
            [(f"x-{number}", "1") for number in range(100)],
            [("cookie", "a=b; " * 10_000)],
            [("x-large", "x" * 2_000_000)],
        ]
    )
    if chance.random() < 0.3:
        return Attack((request("/" + "a" * 100_000, method="GET"),))
    return Attack((request("/version", method="GET", headers=headers),))


@KINDS.add(share=4)
def wrong_keys(chance: random.Random) -> Attack:
    key = chance.choice([None, "", "x", "é" * 20, ATTACK_KEY[:-1], ATTACK_KEY + "x", "k" * 20_000])
    path = chance.choice([COMPLETIONS, "/v1/models", "/metrics", "/nothing", "/tokenize"])
    method = "POST" if path in (COMPLETIONS, "/tokenize") else "GET"
    wrong = Attack((request(path, b"{}" if method == "POST" else b"", method=method, key=key),))
    return wrong.followed() if chance.random() < 0.3 else wrong


@KINDS.add(share=2)
def wrong_hosts_and_origins(chance: random.Random) -> Attack:
    """Make pages of other sites, which have no key."""
    origin = chance.choice(["https://evil.example", "null", "http://localhost.evil.example", "x"])
    return Attack((request("/v1/models", method="GET", key=None, headers=[("Origin", origin)]),))


@KINDS.add(share=3)
def wrong_paths(chance: random.Random) -> Attack:
    path = chance.choice(
        [
            "/",
            "//",
            "/v1",
            "/v1/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/v1/models/%0d%0a" + INJECTED + ":%201",
            "/v1/models/" + "%f0%9f" * 50,
            "/v1/requests/%00/explain",
            "/v1/requests/" + "a" * 4000 + "/explain",
            "/v1/embeddings",
            "/v1/chat/completion",
            "/generate",
            "/metrics/../v1",
            "/v1/completions%20",
            "/v1/streams/no-such-stream",
            "http://localhost/nothing",
            "*",
        ]
    )
    # Slashes at the end of a path mean nothing, and the root says which server this is.
    right = Right.SERVED if path.strip("/") == "" else Right.REFUSED
    return Attack((request(path, method="GET"),), right)


@KINDS.add(share=2)
def wrong_methods(chance: random.Random) -> Attack:
    method = chance.choice(["PUT", "DELETE", "PATCH", "TRACE", "GET", "HEAD", "PROPFIND"])
    return Attack((request(COMPLETIONS, method=method),), has_body=method != "HEAD")


@KINDS.add(share=2)
def headers_with_effects(chance: random.Random) -> Attack:
    """Make valid requests whose headers ask for more than they may."""
    name, value = chance.choice(
        [
            ("X-Request-Id", "x" * 5000),
            ("X-Request-Id", f"a\t{INJECTED}: 1"),
            ("X-Request-Id", "é\u00a0"),
            ("X-Request-Id", "same-id"),
            ("Upgrade", "websocket\r\nConnection: Upgrade"),
            ("Upgrade", "h2c\r\nConnection: Upgrade, HTTP2-Settings"),
            ("Range", "bytes=0-999999999"),
            ("Accept", "x/" + "y" * 5000),
            ("Accept", "application/openmetrics-text;q=1," * 500),
            ("traceparent", "00-" + "f" * 32 + "-" + "f" * 16 + "-01"),
            ("traceparent", "00-" + "-" * 5000),
            ("endpoint-load-metrics-format", "JSON\t" + "x" * 5000),
            ("Accept-Encoding", "gzip, br"),
            ("Cookie", "a=b"),
            ("X-Forwarded-For", "1.2.3.4"),
            ("X-Forwarded-Prefix", f"/a%0d%0a{INJECTED}: 1"),
            ("Expect", "100-continue"),
            ("Connection", "close, x-api-key"),
        ]
    )
    return Attack((post(COMPLETIONS, BODY, [(name, value)]),), Right.SERVED)
