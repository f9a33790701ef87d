"""The tokens that a router asks servers for: kept, late, wrong, or not asked for."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.route import tokens as module
from octavo.route.tokens import TokenSource
from octavo.transport.answer import RequestHead
from tests.route.make import CHAT, LIMIT, MESSAGES, FakeServer, Request, Site, response, run

BODY = json.dumps({"model": "m", "messages": MESSAGES}).encode()
COMPLETIONS = "/v1/completions"


class Asking:
    """A router's tokens of prompts, with a clock that a test sets."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.now = 0.0
        self.source = TokenSource(site.router.config, lambda: self.now)

    async def tokens(
        self, body: bytes = BODY, path: str = CHAT, **headers: str
    ) -> list[int] | None:
        """Return the tokens of a request's prompt, as a client with these headers gets them."""
        given = RequestHead("POST", path, headers)
        found = await self.source.tokens_of(path, body, given, self.site.router.upstreams)
        return None if found is None else [*found]

    @property
    def num_asked(self) -> int:
        return sum(each.path == "/tokenize" for one in self.site.servers for each in one.requests)


def asking(
    work: Callable[[Asking], Awaitable[None]], answer: bytes | None, **options: Any
) -> list[Request]:
    """Run a test's work with a server that answers so, or never; return what it was asked."""

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await asyncio.Event().wait()
        else:
            writer.write(answer)

    async def with_site(site: Site) -> None:
        await work(Asking(site))

    server = FakeServer(script=script)
    run(with_site, server, **{"tokenize_seconds": LIMIT, **options})
    return server.requests


GOOD = response(200, b'{"count": 3, "max_model_len": 99, "tokens": [1, 2, 3]}')


def test_an_answer_is_kept_for_those_who_have_the_same_keys() -> None:
    async def work(given: Asking) -> None:
        for key in ("Bearer a", "Bearer a", "Bearer b"):
            assert await given.tokens(authorization=key) == [1, 2, 3]
        assert given.num_asked == 2

    asked = asking(work, GOOD)
    assert [each.all("authorization") for each in asked] == [["Bearer a"], ["Bearer b"]]
    assert json.loads(asked[0].body) == {
        "model": "m",
        "messages": MESSAGES,
        "add_generation_prompt": True,
    }


def test_prompts_that_are_tokens_or_no_prompts_are_not_asked_about() -> None:
    async def work(given: Asking) -> None:
        assert await given.tokens(b'{"prompt": [5, 6]}', COMPLETIONS) == [5, 6]
        for body in (b"[]", b"{}", b'{"prompt": ["a"]}', b'{"prompt": [99999999999]}', b"\xff"):
            assert await given.tokens(body, COMPLETIONS) is None
        assert await given.tokens(b" " * (module.MOST_BODY_BYTES + 1)) is None
        assert await given.tokens(BODY, "/v1/messages") is None
        assert given.num_asked == 0

    asking(work, GOOD)


@pytest.mark.parametrize(
    "answer",
    [
        response(200, b"[]"),
        response(200, b'{"tokens": []}'),
        response(200, b'{"tokens": ["a"]}'),
        response(200, b'{"tokens": [4294967296]}'),
        response(200, b'{"tokens": [' + b"1," * module.MOST_TOKENS + b"1]}"),
        response(200, b"\xff\xfe"),
        response(401, b"{}"),
        response(500, b'{"tokens": [1]}'),
    ],
    ids=lambda answer: str(len(answer)),
)
def test_a_wrong_answer_is_none_and_the_next_question_is_asked(answer: bytes) -> None:
    async def work(given: Asking) -> None:
        for _ in range(2):
            assert await given.tokens() is None
        assert given.num_asked == 2

    asking(work, answer)


@pytest.mark.parametrize(
    "answer",
    [
        response(404, b"{}"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nContent-Length: 9\r\n\r\n",
        response(200, bytes(module.MOST_ANSWER_BYTES + 1)),
    ],
    ids=["no such route", "no answer in HTTP", "too long"],
)
def test_a_server_that_cannot_say_is_not_asked_for_a_while(answer: bytes) -> None:
    async def work(given: Asking) -> None:
        for _ in range(2):
            assert await given.tokens() is None
        assert given.num_asked == 1
        given.now += module.PAUSE_SECONDS
        assert await given.tokens() is None
        assert given.num_asked == 2

    asking(work, answer)


def test_a_late_answer_pauses_a_server_unless_the_prompt_is_long() -> None:
    """Otherwise one client could let the requests of all others go without tokens."""

    async def work(given: Asking) -> None:
        long = json.dumps({"prompt": "a" * module.MOST_QUICK_BYTES}).encode()
        assert await given.tokens(long, COMPLETIONS) is None
        assert not given.source._paused
        assert await given.tokens() is None
        assert given.source._paused

    asking(work, None, tokenize_seconds=0.01)


def test_a_client_that_leaves_ends_its_question() -> None:
    async def work(given: Asking) -> None:
        for _ in range(2 * module.MOST_OPEN):
            question = asyncio.ensure_future(given.tokens())
            while not given.source._num_open:
                await asyncio.sleep(0)
            question.cancel()
            await asyncio.wait({question})
        open_now = [asyncio.ensure_future(given.tokens()) for _ in range(module.MOST_OPEN)]
        while given.source._num_open < module.MOST_OPEN:
            await asyncio.sleep(0)
        assert await given.tokens() is None
        for each in open_now:
            each.cancel()
        await asyncio.wait(open_now)
        assert given.source._num_open == 0

    asking(work, None)


def test_what_is_kept_is_bounded_in_short_answers_too() -> None:
    source = TokenSource(None, lambda: 0.0)  # type: ignore[arg-type]
    for number in range(2 * module.MOST_KEPT_TOKENS // module.ENTRY_TOKENS):
        source._keep(number.to_bytes(8, "big"), array("i", [1]))
    most = module.MOST_KEPT_TOKENS // (1 + module.ENTRY_TOKENS)
    assert len(source._kept) == most
    source._keep(b"long", array("i", bytes(4 * module.MOST_TOKENS)))
    assert b"long" in source._kept
    assert len(source._kept) < most
