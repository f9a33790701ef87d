"""A router that reads KV events: of real servers, and of a publisher that attacks it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zmq

from benchmarks.hostile.router.publishers import ATTACKS, LyingPublisher
from octavo.route.kv_events import reader as reader_module
from tests.api.tiny import make_model
from tests.cli.test_serve import ask, read_until, server
from tests.route.make import LIMIT, FakeServer, Request, Site, response, routing, run
from tests.route.test_command_line import LIMIT_SECONDS, PATIENT, address_in, router
from tests.route.test_kv_events import SIZE, batch, stored

TOKENS = [*range(100, 100 + 40 * SIZE)]
WORDS = "The quick brown fox jumps over the lazy dog. "


def metric(url: str, name: str, label: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=LIMIT_SECONDS) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"octavo:{name}{{") and label in line:
                return float(line.rpartition(" ")[2])
    return 0.0


@pytest.mark.slow
def test_a_request_goes_to_the_server_that_has_its_prefix(tmp_path: Path) -> None:
    """A prefix counts that a server has of others' requests, until the server has ended."""
    pytest.importorskip("octavo.backends.native._native")
    make_model(tmp_path)
    common = ["--port", "0", "--silence-seconds", "300", "--num-threads", "1"]
    common += ["--backend", "native", "--block-size", "16"]
    with TemporaryDirectory() as sockets, ExitStack() as stack:

        def start(name: str) -> Any:
            config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{sockets}/{name}"}
            config["replay_endpoint"] = f"ipc://{sockets}/{name}-replay"
            words = [*common, "--kv-events-config", json.dumps(config)]
            return stack.enter_context(
                server(str(tmp_path), *words, "--served-model-name", name, "both")
            )

        names = ("one", "two")
        servers = [start(name) for name in names]
        urls = [address_in(read_until(each, "Octavo serves")) for each in servers]
        for each in servers:
            read_until(each, "ready after")
        body: dict[str, object] = {"model": "both", "max_tokens": 1, "prompt": WORDS * 3}
        assert ask(f"{urls[1]}/v1/completions", body)["model"] == "two"
        words = [
            f"{url}=ipc://{sockets}/{name},ipc://{sockets}/{name}-replay"
            for url, name in zip(urls, names, strict=True)
        ]
        flags = [word for each in words for word in ("--kv-events", each)]
        process = stack.enter_context(
            router(*urls, *PATIENT, *flags, "--tokenize-seconds", str(LIMIT_SECONDS))
        )
        url = address_in(read_until(process, urls[1]))
        while not metric(url, "route_cached_blocks", urls[1]):
            time.sleep(0.01)
        # No server was given this by the router, so that the text alone would choose the first.
        for prompt in (WORDS * 3, WORDS * 3 + "And"):
            answer = ask(f"{url}/v1/completions", {**body, "prompt": prompt})
            assert answer["model"] == "two"
        assert metric(url, "route_tokenized_total", "yes") == 2
        servers[1].kill()
        servers[1].wait()
        while metric(url, "route_cached_blocks", urls[1]):
            time.sleep(0.01)
        assert ask(f"{url}/v1/completions", body)["model"] == "one"


class Publisher:
    """A publisher in a thread, which sends what a test says again and again."""

    def __init__(self, directory: str, messages: list[list[bytes]]) -> None:
        self.endpoint = f"ipc://{directory}/events"
        self._messages = messages
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(self.endpoint)
        self._is_over = threading.Event()
        self.num_sent = 0
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._is_over.is_set():
            for parts in self._messages:
                self._socket.send_multipart(parts)
            self.num_sent += 1
            time.sleep(0.0001)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.term()


def _numbered(number: int, data: bytes) -> list[bytes]:
    return [b"", number.to_bytes(8, "big"), data]


def _attacks() -> dict[str, list[list[bytes]]]:
    large = batch(*(stored([at] * SIZE, [at]) for at in range(4000)))
    endless = [
        _numbered(1 << 40, batch(*(stored([9, 9, at, to], [at * 1000 + to]) for to in range(500))))
        for at in range(60)
    ]
    nested = b"\x91" * (reader_module.MOST_MESSAGE_BYTES // 2)
    return {
        "noise": [[os.urandom(50)], [], [b"", b"1"], _numbered(0, os.urandom(900))],
        "too large": [_numbered(0, bytes(reader_module.MOST_MESSAGE_BYTES + 1))],
        "nested": [_numbered(0, nested)],
        "gaps": [_numbered(at * 7, large) for at in range(20)],
        "endless blocks": endless,
        "wrong numbers": [_numbered((1 << 63) - 1, large), [b"", b"\xff" * 8, large]],
        "many parts": [[b"x"] * 2000],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [*_attacks()])
def test_a_publisher_that_attacks_harms_nothing(name: str) -> None:
    """Requests are answered while it sends, and what it makes the router keep is bounded."""
    messages = [each for each in _attacks()[name] if each]
    with TemporaryDirectory() as directory:
        publisher = Publisher(directory, messages)

        async def work(site: Site) -> None:
            for _ in range(20):
                assert (await site.post()).status_code == 200
            reader = site.router._reader
            assert reader is not None
            (source,) = [each.source for each in reader.publishers]
            while name != "too large" and not (source.num_refused or source.num_gaps):
                await site.post()
            views = [view for each in site.router.upstreams for view in each.views]
            assert all(len(view) <= view._most for view in views)
            assert all(len(view._groups) <= view._most for view in views)

        servers = FakeServer(), FakeServer()
        for each in servers:
            each.script = _tokenizing
        try:
            run(work, *servers, events=(publisher.endpoint,), tokenize_seconds=LIMIT)
            assert publisher.num_sent
        finally:
            publisher.close()


async def _tokenizing(request: Request, writer: Any) -> None:
    answer = {"tokens": TOKENS} if request.path == "/tokenize" else {"ok": True}
    writer.write(response(200, json.dumps(answer).encode()))


@pytest.mark.parametrize("name", [*ATTACKS])
def test_the_connection_of_a_publisher_that_sends_without_an_end_is_ended(name: str) -> None:
    """The router keeps little of what it sends, and knows nothing of the publisher any more."""
    publisher = LyingPublisher(name)

    async def work(site: Site) -> None:
        reader = site.router._reader
        assert reader is not None
        (source,) = [each.source for each in reader.publishers]
        while not (publisher.num_ended or publisher.num_taken) or not source.num_refused:
            assert (await site.post()).status_code == 200
        assert not publisher.num_taken
        assert not source.view.is_live

    async def main() -> None:
        await publisher.start()
        try:
            async with (
                asyncio.timeout(LIMIT),
                routing(FakeServer(), events=(publisher.endpoint,)) as site,
            ):
                await work(site)
        finally:
            publisher.stop()

    asyncio.run(main())
