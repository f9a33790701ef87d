"""`octavo bench serve` against servers that stream, fail and lie in every way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.served import measure, prompts
from octavo.bench.served.answer import Answer, Asked
from octavo.bench.served.client import Client
from octavo.bench.served.figures import figures, read_goals
from octavo.bench.served.measure import Plan
from octavo.cli import main
from octavo.cli.commands import FAILED, OK, USAGE
from octavo.core.config import ConfigError
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
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_none_is_an_error(name: str) -> None:
    answer = answer_to(WRONG[name])
    assert answer.error
    assert answer.seconds >= 0
    for told in ("too long", "died"):
        assert (told in answer.error) == (told in WRONG[name].decode())


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


def test_requests_arrive_at_the_rate() -> None:
    for burstiness in (0.3, 1.0, 50.0):
        plan = Plan("", {}, rate=4.0, burstiness=burstiness)
        times = measure.arrivals(400, plan, random.Random(1))
        assert times == sorted(times)
        assert times[-1] == pytest.approx(100.0)
    even = measure.arrivals(400, Plan("", {}, 4.0, 5000.0), random.Random(1))
    assert max(b - a for a, b in itertools.pairwise(even)) < 0.3
    assert measure.arrivals(2, Plan("", {}), random.Random(1)) == [0.0, 0.0]


def made(began: float, first: float, ended: float, tokens: int) -> Answer:
    """Return an answer with even gaps."""
    answer = Answer(began, first, ended, num_tokens=tokens, num_prompt_tokens=10)
    answer.gaps = [(ended - first) / (tokens - 1)] * (tokens - 1) if tokens > 1 else []
    return answer


def test_figures_by_hand() -> None:
    answers = [made(0.0, 0.1, 1.1, 11), made(0.5, 0.8, 0.8, 1), made(1.1, 1.3, 2.1, 5)]
    answers.append(Answer(0.2, ended=0.3, error="x"))
    found = figures(answers, 2.5, [50, 99], {"ttft": 250.0, "tpot": 150.0})
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (3, 1, 17)
    assert found["output_throughput"] == pytest.approx(17 / 2.5)
    assert found["total_token_throughput"] == pytest.approx(47 / 2.5)
    assert found["mean_ttft_ms"] == pytest.approx(200.0)
    assert found["p50_ttft_ms"] == found["median_ttft_ms"] == pytest.approx(200.0)
    assert found["mean_tpot_ms"] == pytest.approx(150.0)  # of 100 and 200
    assert found["mean_itl_ms"] == pytest.approx((10 * 100 + 4 * 200) / 14)
    assert found["p99_e2el_ms"] == pytest.approx(1098.0)
    assert found["request_goodput"] == pytest.approx(1 / 2.5)
    assert found["max_concurrent_requests"] == 2
    empty = figures([answers[-1]], 1.0, [99], {})
    assert (empty["completed"], empty["request_goodput"]) == (0, None)
    assert "mean_ttft_ms" not in empty


@pytest.mark.parametrize("word", ["ttft", "itl:3", "ttft:x", "ttft:-1", "ttft:nan", ":3"])
def test_goals_that_are_none(word: str) -> None:
    with pytest.raises(ConfigError):
        read_goals([word])


def test_random_prompts() -> None:
    lengths = prompts.Lengths(100, 20, 10, 0.5)
    asked = prompts.random_requests(50, lengths, 0.5, random.Random(3))
    assert asked == prompts.random_requests(50, lengths, 0.5, random.Random(3))
    sizes = [len(str(each.prompt).split()) for each in asked]
    assert 5 + 25 <= min(sizes) < max(sizes) <= 5 + 75
    assert len({str(each.prompt).split()[6] for each in asked}) > 10
    assert len({tuple(str(each.prompt).split()[:5]) for each in asked}) == 1
    assert {10 <= each.max_tokens <= 30 for each in asked} == {True}
    same = prompts.repeated_prefixes(10, 3, prompts.Lengths(5, 4, 8), 1.0, random.Random(3))
    assert len(same) == 10
    assert len({tuple(str(each.prompt).split()[:8]) for each in same}) == 3


def test_prompts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user"}], "output_tokens": 3}\n')
    assert [each.max_tokens for each in prompts.read_lines(lines, 9)] == [9, 3]
    talks = tmp_path / "talks"
    turns = [{"value": "hi"}, {"value": "a b c"}]
    talks.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, 3]))
    assert prompts.read_sharegpt(talks, None) == [Asked("hi", 4)]
    assert prompts.read_sharegpt(talks, 7) == [Asked("hi", 7)]
    again = prompts.chosen([Asked("a", 1), Asked("b", 1)], 5, random.Random(0))
    assert {each.prompt for each in again} == {"a", "b"}
    assert len(again) == 5


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"prompt": 3}', '{"prompt": "a", "output_tokens": 0}', "[" * 9999],
)
def test_files_that_have_no_prompts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError):
        prompts.read_lines(path, 9)
    with pytest.raises(ConfigError):
        prompts.read_sharegpt(path, None)
    with pytest.raises(ConfigError):
        prompts.read_lines(tmp_path / "none", 9)


class _Handler(BaseHTTPRequestHandler):
    """A server with one model, whose tokens are words of four letters."""

    protocol_version = "HTTP/1.1"
    keys: Sequence[str | None] = ()

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).keys = [*self.keys, self.headers["authorization"]]
        if self.path == "/tokenize":
            self._send({"tokens": [1] * 2 * len(body["prompt"].split())})
        elif body["model"] != "m":
            self._send({"error": {"message": "no such model"}}, 404)
        else:
            self.send_response(200)
            self.send_header("content-length", str(len(WHOLE)))
            self.end_headers()
            self.wfile.write(WHOLE)

    def _send(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    _Handler.keys = ()
    few = ["--num-prompts", "3", "--disable-tqdm"]
    assert main(["bench", "serve", url, *few]) == OK
    told = capsys.readouterr().out
    assert "Successful requests:" in told
    assert "P99 TTFT (ms):" in told
    assert set(_Handler.keys) == {"Bearer secret"}
    saved = ["--save-detailed", "--result-dir", str(tmp_path), "--metadata", "a=b"]
    assert main(["bench", "serve", "--base-url", url, *few, "--json", *saved]) == OK
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert (found["completed"], found["total_output_tokens"], found["a"]) == (3, 12, "b")
    assert (found["output_lens"], found["errors"]) == ([4] * 3, [""] * 3)
    assert found["request_rate"] == "inf"


def test_what_the_command_refuses(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", url, "--model", "other"]) == FAILED
    assert "no such model" in capsys.readouterr().err
    for words in (
        [url, "--port", "1"],
        [url, "--num-prompts", "0"],
        [url, "--request-rate", "0"],
        [url, "--burstiness", "nan"],
        [url, "--random-range-ratio", "1"],
        [url, "--dataset-name", "custom"],
        [url, "--dataset-path", "x"],
        [url, "--percentile-metrics", "x"],
        [url, "--metric-percentiles", "101"],
        [url, "--goodput", "x:1"],
        [url, "--header", "x"],
        [url, "--result-dir", "/no/such"],
        ["ftp://x"],
    ):
        assert main(["bench", "serve", *words]) == USAGE, words
    capsys.readouterr()


def test_no_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        assert main(["bench", "serve", "--port", port]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "octavo serve" in line
    assert "connection refused" in line
