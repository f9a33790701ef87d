"""`octavo bench serve` against servers that stream, fail and lie in every way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from octavo.bench.load.asked import Asked
from octavo.bench.served import measure
from octavo.bench.served.answer import MOST_EVENT, Answer, printable
from octavo.bench.served.client import Client
from octavo.bench.served.measure import Plan
from octavo.route.address import read_address

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT = 300.0  # seconds that no test needs
PLAN = Plan("/v1/completions", {"model": "m"})


def event(text: str | None = None, **more: Any) -> bytes:
    """Return an event of a stream of completions."""
    choices = [] if text is None else [{"index": 0, "text": text}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


USAGE_EVENT = event(usage={"prompt_tokens": 7, "completion_tokens": 4})
WHOLE = event("a") + event("b") + event("") + USAGE_EVENT + b"data: [DONE]\n\n"


def response(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    """Return a response whose length is given."""
    return f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return await reader.readexactly(int(lengths[0].split(b":")[1]))


@contextlib.asynccontextmanager
async def client_of(talk: Talk) -> AsyncIterator[Client]:
    """Yield a client of a server that talks so on each connection."""
    tasks: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(read_address(f"127.0.0.1:{port}"), {}, LIMIT)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        await asyncio.gather(*tasks)


def answer_to(data: bytes, cut: int = 1 << 20, keeps: bool = False) -> Answer:
    """Return what is seen of a response that comes in parts of this size."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for at in range(0, len(data), cut):
            writer.write(data[at : at + cut])
            await writer.drain()
        if keeps:
            await reader.read()

    async def work() -> Answer:
        async with client_of(talk) as client:
            return await measure.ask(client, PLAN, Asked("x", 4))

    return asyncio.run(work())


@pytest.mark.parametrize("cut", [1 << 20, 7, 1])
def test_a_stream_is_read_however_it_is_cut(cut: int) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (WHOLE[:30], WHOLE[30:]))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    for data in (response(WHOLE), chunked):
        answer = answer_to(data, cut, keeps=True)
        assert (answer.error, answer.text, answer.num_parts) == ("", "ab", 2)
        assert (answer.num_prompt_tokens, answer.tokens, len(answer.gaps)) == (7, 4, 1)
        assert answer.began <= answer.first <= answer.ended


def test_a_body_may_last_as_long_as_its_connection() -> None:
    answer = answer_to(b"HTTP/1.1 200 OK\r\n\r\n" + WHOLE)
    assert (answer.error, answer.tokens) == ("", 4)


def test_events_with_comments_and_other_line_ends() -> None:
    text = b": hello\r\n\r\nevent: x\r\n" + WHOLE.replace(b"\n", b"\r\n")
    assert answer_to(response(text)).text == "ab"


def test_tokens_are_counted_by_parts_if_the_server_does_not() -> None:
    text = event("a") + event("b") + event("c") + b"data: [DONE]\n\n"
    answer = answer_to(response(text))
    assert (answer.error, answer.tokens, answer.num_prompt_tokens) == ("", 3, None)


def test_tokens_may_have_no_text() -> None:
    answer = answer_to(response(USAGE_EVENT + b"data: [DONE]\n\n"))
    assert (answer.error, answer.tokens, answer.text) == ("", 4, "")
    assert answer.first_seconds == answer.seconds


def test_a_chat_begins_with_its_first_text() -> None:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}]
    deltas += [{"content": "a"}, {"tool_calls": [{"index": 0}]}, {}]
    text = b"".join(event(None, choices_=0) for _ in range(2))
    for delta in deltas:
        text += b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
    answer = answer_to(response(text + b"data: [DONE]\n\n"))
    assert (answer.error, answer.num_parts, answer.text) == ("", 3, "a")


WRONG = {
    "refused": response(b'{"error":{"message":"too long"}}', "400 Bad Request"),
    "plain": response(b"oops", "500 Internal Server Error"),
    "empty": response(b"", "503 Service Unavailable"),
    "no end": response(event("a")),
    "no tokens": response(event("") + b"data: [DONE]\n\n"),
    "an error inside": response(event("a") + b'data: {"error":{"message":"died"}}\n\n'),
    "no JSON": response(b"data: {\n\n" + WHOLE),
    "a list": response(b"data: [1]\n\n" + WHOLE),
    "no HTTP": b"hello\r\n\r\n",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + WHOLE,
    "closed": b"",
    "deep": response(b"data: " + b"[" * 100_000 + b"\n\n"),
    "usage without counts": response(event("a") + event(usage={"a": 1}) + WHOLE),
    "more tokens than there are": response(
        event("a") + event(usage={"prompt_tokens": 10**400, "completion_tokens": 1}) + WHOLE
    ),
    "choices as an object": response(b'data: {"choices": {"a": 1}}\n\n' + WHOLE),
    "an event without an end": response(b"data: " + b"x" * (2 * MOST_EVENT)),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_none_is_an_error(name: str) -> None:
    answer = answer_to(WRONG[name])
    assert answer.error
    assert answer.seconds >= 0
    for told in ("too long", "died"):
        assert (told in answer.error) == (told in WRONG[name].decode())


def test_a_servers_words_are_shown_as_text() -> None:
    error = b'{"error":{"message":"\\u001b[2Jtoo\\u0000 long\\n"}}'
    shown = answer_to(response(error, "400 Bad Request")).error
    assert shown.isprintable()
    assert "too" in shown
    assert printable("é\x1b\x07x") == "é  x"


def test_a_connection_is_kept_and_replaced_when_the_server_closes_it() -> None:
    opened: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(len(opened))
        for _ in range(2 if opened == [0] else 1000):
            await read_request(reader)
            writer.write(response(WHOLE))
            await writer.drain()

    async def work() -> list[str]:
        async with client_of(talk) as client:
            return [(await measure.ask(client, PLAN, Asked("x", 4))).error for _ in range(5)]

    assert asyncio.run(work()) == [""] * 5
    assert opened == [0, 1]


def test_no_more_requests_are_open_than_may_be() -> None:
    now: list[int] = [0]
    seen: list[int] = []
    bodies: list[dict[str, Any]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            bodies.append(json.loads(await read_request(reader)))
            now[0] += 1
            seen.append(now[0])
            await asyncio.sleep(0)
            now[0] -= 1
            writer.write(response(WHOLE))

    async def work() -> measure.Run:
        plan = Plan("/v1/completions", {"model": "m", "top_k": 3}, most_at_once=3)
        async with client_of(talk) as client:
            asked = [Asked(str(number), 4) for number in range(20)]
            return await measure.measure(client, plan, asked, random.Random(0))

    run = asyncio.run(work())
    assert len(run.answers) == 20
    assert not any(each.error for each in run.answers)
    assert max(seen) <= 3
    assert sorted(int(each["prompt"]) for each in bodies) == [*range(20)]
    assert all(each["stream"] and each["top_k"] == 3 for each in bodies)


def test_what_was_answered_is_kept_when_the_run_is_interrupted() -> None:
    async def work() -> measure.Run:
        reached = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = json.loads(await read_request(reader))
            if body["prompt"] == "wait":
                await reader.read()
            writer.write(response(WHOLE, head="Connection: close\r\n"))

        async with client_of(talk) as client:
            asked = [Asked("now", 4), Asked("wait", 4)]
            work = measure.measure(client, PLAN, asked, random.Random(0), lambda run: reached.set())
            task = asyncio.ensure_future(work)
            await reached.wait()
            task.cancel()
            return await task

    run = asyncio.run(work())
    assert [each.text for each in run.answers] == ["ab"]
