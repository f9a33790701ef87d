"""The client for servers reads complete streams, and only those."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from benchmarks.peers import http_client
from benchmarks.peers.http_client import Answer, ClientError, ask, figures, percentile

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(**told: object) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def text(word: str) -> bytes:
    return event(choices=[{"index": 0, "text": word, "finish_reason": None}])


END = event(choices=[{"index": 0, "text": "", "finish_reason": "length"}])


def usage(tokens: int) -> bytes:
    return event(choices=[], usage={"completion_tokens": tokens})


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def served(writes: Sequence[bytes], count: int = 1, streams: int = 1) -> list[Answer]:
    """Return the client's reading of a server that writes these parts, with pauses between."""
    most = now = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(size))
        assert body["prompt"] == [1, 2, 3]
        assert body["ignore_eos"]
        for part in writes:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        now -= 1
        writer.close()

    async def run() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await ask(port, [[1, 2, 3]] * count, 3, streams)

    answers = asyncio.run(run())
    assert most <= streams
    return answers


def test_each_event_with_text_is_counted_once() -> None:
    whole = (HEAD, chunked(text("a")), chunked(text("b"), text("")), chunked(END, usage(3), DONE))
    (answer,) = served([*whole, b"0\r\n\r\n"])
    assert answer.tokens == 3
    assert answer.text == "ab"
    assert len(answer.events) == 3  # the empty text is that of a letter not yet whole
    assert answer.began < answer.events[0] <= answer.events[1] <= answer.events[2]


def test_chunks_may_break_anywhere() -> None:
    stream = text("a") + text('data: {"b"') + text("c") + usage(3) + DONE
    pieces = [stream[at : at + 7] for at in range(0, len(stream), 7)]
    told = HEAD + chunked(*pieces) + b"0\r\n\r\n"
    (answer,) = served([told[at : at + 11] for at in range(0, len(told), 11)])
    assert answer.tokens == 3
    assert len(answer.events) == 3


def test_a_stream_may_come_without_chunks() -> None:
    plain = HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"")
    (answer,) = served([plain, text("abc"), usage(3), DONE])
    assert (answer.tokens, len(answer.events)) == (3, 1)


def test_a_server_may_send_figures_of_its_own() -> None:
    end = event(choices=[], usage={"completion_tokens": 3}, timings={"draft_n": 2})
    (answer,) = served([HEAD, chunked(text("abc"), end, DONE), b"0\r\n\r\n"])
    assert (answer.text, answer.timings) == ("abc", {"draft_n": 2})


def test_no_more_streams_than_asked_for_run_at_a_time() -> None:
    whole = HEAD + chunked(text("a"), usage(3), DONE) + b"0\r\n\r\n"
    assert len(served([whole], count=7, streams=2)) == 7


@pytest.mark.parametrize(
    "writes",
    [
        [b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"],
        [HEAD, chunked(text("a"))],
        [HEAD, chunked(text("a"), usage(3)), b"0\r\n\r\n"],
        [HEAD, chunked(text("a"), DONE), b"0\r\n\r\n"],
        [],
    ],
    ids=["refused", "broken off", "without an end", "without usage", "closed"],
)
def test_what_is_no_whole_stream_is_an_error(writes: list[bytes]) -> None:
    with pytest.raises(ClientError):
        served(writes)


def test_figures_are_of_what_clients_saw() -> None:
    answers = [Answer(1.0, 4, (1.5, 2.0, 4.0)), Answer(2.0, 4, (3.0, 5.0))]
    told = figures(answers, 4)
    assert told["tok/s"] == 8 / 4.0
    assert told["ttft_p50_ms"] == pytest.approx(750)
    assert told["ttft_p99_ms"] == pytest.approx(1000)
    assert told["itl_p50_ms"] == pytest.approx(2000)
    assert told["tokens_an_event"] == 8 / 5


def test_too_few_tokens_are_an_error() -> None:
    with pytest.raises(ClientError, match="3 tokens came of 4"):
        figures([Answer(0.0, 3, (1.0,))], 4)


def test_a_percentile_is_one_of_the_values() -> None:
    hundred = [float(number) for number in range(100, 0, -1)]
    assert percentile(hundred, 0.99) == 99
    assert percentile(hundred, 0.5) == 50
    assert percentile([7.0], 0.99) == 7.0


def test_a_request_is_small_enough_to_be_sent_at_once() -> None:
    assert len(http_client.request(8000, list(range(10_000, 10_128)), 128)) < 2000
