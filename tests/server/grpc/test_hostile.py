"""Callers who break rules: what they get, and that others are served meanwhile."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from benchmarks.hostile.http2 import DATA, Http2, frame
from benchmarks.hostile.http2 import message as framed
from octavo.dialects.grpc import messages
from octavo.dialects.grpc.places import MAX_WATCHES
from tests.server.engine import make_directory
from tests.server.make import LIMIT, listening

grpc = pytest.importorskip("grpc")
pytest.importorskip("octavo.dialects.grpc.octavo_pb2", reason="built by `make setup`")

FIRST, OTHER = "the first key", "the other key"
SERVICE = "/octavo.v1.Inference/"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
OK, INVALID, LATE, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = (
    code.value[0]
    for code in (
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)
NUM_STREAMS = 128  # at once on a connection


@contextlib.contextmanager
def served(tmp_path: Path, **options: Any) -> Iterator[Any]:
    options = {"grpc_port": 0, "api_keys": (FIRST, OTHER), **options}
    with listening(make_directory(tmp_path), run=uvloop.run, **options) as life:
        yield life


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which no event announces here."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never held")


def answers(port: int, key: str, source: str = "127.0.0.9") -> bool:
    """Return whether a client with this key is served."""
    with Http2(port, source) as client:
        return client.end_of(client.call(f"{SERVICE}GetServerInfo", key=key)) == OK


def test_watches_of_invented_names_are_bounded_and_lock_nobody_out(tmp_path: Path) -> None:
    # Else a call may end by its time.
    times = {"header_seconds": 10 * LIMIT, "body_seconds": 10 * LIMIT}
    with served(tmp_path, **times) as life, contextlib.ExitStack() as stack:
        port, watches = life.grpc.port, life.grpc._health.watches
        clients = [stack.enter_context(Http2(port)) for _ in range(5)]
        for number, client in enumerate(clients):
            calls = []
            for each in range(NUM_STREAMS):
                name = f"invented {number} {each}".encode()
                calls.append(client.call(WATCH, bytes([0x0A, len(name)]) + name))
            for call in calls:  # too many messages that have not been read would end the oldest
                while not client.num_bytes.get(call) and call not in client.statuses:
                    assert client.read(LIMIT)

        def ended() -> list[int]:
            for client in clients:
                client.read(0.01)
            return [status for client in clients for status in client.statuses.values()]

        wait_until(lambda: len(ended()) == len(clients) * NUM_STREAMS - MAX_WATCHES)
        assert set(ended()) == {EXHAUSTED}  # the oldest
        assert watches.num_taken == MAX_WATCHES
        with Http2(port, "127.0.0.2") as other:
            for path in (WATCH, CHECK):
                stream = other.call(path)
                while not other.num_bytes.get(stream):
                    assert other.read(LIMIT)
            large = b"\x0a\xa0\x8d\x06" + b"x" * 100_000
            head = framed(b"", len(large))
            stream = other.begin(WATCH)
            assert other.send_data(stream, head + large, LIMIT)
            assert other.end_of(stream) == INVALID
            assert other.end_of(other.call(CHECK, b"\x0a\x01x")) == NOT_FOUND
            assert other.end_of(other.call(CHECK, b"\xff\xff")) == INVALID
            assert other.end_of(other.call("/grpc.health.v1.Health/List")) == OK
        stack.close()
        wait_until(lambda: watches.num_taken == 0)


def test_calls_without_a_key_end_before_their_message(tmp_path: Path) -> None:
    with served(tmp_path) as life, Http2(life.grpc.port) as client:
        paths = [f"{SERVICE}Generate", f"{SERVICE}GenerateStream", f"{SERVICE}GetModelInfo"]
        paths.append(REFLECT)
        for path in paths:
            for key in (None, "a wrong key"):
                assert client.end_of(client.begin(path, key)) == UNAUTHENTICATED
        assert life.grpc._entry.calls.num_open == 0


def test_calls_that_never_send_their_message_lock_nobody_out(tmp_path: Path) -> None:
    # Else a call may end by its time.
    times = {"header_seconds": 10 * LIMIT, "body_seconds": 10 * LIMIT}
    with served(tmp_path, max_connections=64, **times) as life, Http2(life.grpc.port) as client:
        port, calls = life.grpc.port, life.grpc._entry.calls
        for _ in range(40):
            client.begin(f"{SERVICE}Generate", FIRST)
        while len(client.statuses) < 8:  # any of them: grpcio keeps no order of calls
            assert client.read(LIMIT)
        assert set(client.statuses.values()) == {EXHAUSTED}  # a key has half of all
        wait_until(lambda: calls.num_open == 32)
        assert len(client.statuses) == 8
        assert answers(port, OTHER)
        assert not answers(port, FIRST)
        client.__exit__()
        wait_until(lambda: calls.num_open == 0)
        assert answers(port, FIRST)


def test_a_message_has_as_much_time_as_a_body_over_http(tmp_path: Path) -> None:
    with served(tmp_path, body_seconds=0.2, header_seconds=LIMIT) as life:
        with Http2(life.grpc.port) as client:
            for path in (f"{SERVICE}Generate", f"{SERVICE}GenerateStream"):
                assert client.end_of(client.begin(path, FIRST)) == LATE
                stream = client.begin(path, FIRST)
                client.send(frame(DATA, 0, stream, framed(b"x" * 100, 1000)))
                assert client.end_of(stream) == LATE
        wait_until(lambda: life.server.admission.num_open == 0)


def test_a_question_for_health_has_as_much_time_as_a_head_over_http(tmp_path: Path) -> None:
    with served(tmp_path, header_seconds=0.2) as life:

        def is_late() -> bool:
            """Ask in a new connection, which itself may be too slow to be begun."""
            with Http2(life.grpc.port) as client:
                status = client.end_of(client.begin(CHECK))
                assert status == LATE or client.is_closed
                return status == LATE

        wait_until(is_late)


def test_a_call_without_a_message_is_wrong(tmp_path: Path) -> None:
    with served(tmp_path) as life, Http2(life.grpc.port) as client:
        stream = client.begin(f"{SERVICE}Generate", FIRST)
        client.send(frame(DATA, 1, stream))
        assert client.end_of(stream) == INVALID


def test_a_path_that_is_no_text_does_not_end_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as life, Http2(life.grpc.port) as client:
        for path in (b"/\xff\xfe/x", b"/octavo.v1.Inference/\xff", b"/nothing/here", b"x" * 9000):
            assert client.end_of(client.call(path)) == UNIMPLEMENTED, path
        assert answers(life.grpc.port, FIRST)


def test_metadata_has_as_many_values_as_a_head_over_http(tmp_path: Path) -> None:
    with served(tmp_path, max_headers=20) as life, Http2(life.grpc.port) as client:
        few, many = ([(b"x-%d" % number, b"1") for number in range(n)] for n in (15, 40))
        for values, status in ((few, OK), (many, EXHAUSTED)):
            stream = client.begin(f"{SERVICE}GetServerInfo", FIRST, values)
            client.send(frame(DATA, 1, stream, framed(b"")))
            assert client.end_of(stream) == status
        stream = client.begin(f"{SERVICE}GetServerInfo", FIRST, [(b"x", b"1" * 40_000)])
        assert client.end_of(stream) == EXHAUSTED


def test_a_call_whose_answer_is_not_read_ends_with_its_connection(tmp_path: Path) -> None:
    with served(tmp_path, stall_seconds=0.2) as life, Http2(life.grpc.port, window=0) as client:
        kinds = messages.messages()
        sampling = kinds.SamplingParams(max_tokens=200)
        request = kinds.GenerateRequest(prompt="x", sampling_params=sampling)
        client.call(f"{SERVICE}GenerateStream", request.SerializeToString(), FIRST)
        assert client.wait_closed()
        wait_until(lambda: not (life.grpc._entry.calls.num_open or life.server.active))
        assert answers(life.grpc.port, FIRST)


def test_a_client_that_leaves_unread_answers_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = messages.messages()
    sampling = kinds.SamplingParams(max_tokens=200, ignore_eos=True)
    message = kinds.GenerateRequest(prompt="x", sampling_params=sampling).SerializeToString()
    gc.collect()  # which logs what other tests have left
    caplog.clear()
    with served(tmp_path) as life:
        calls, watches = life.grpc._entry.calls, life.grpc._health.watches
        for _ in range(3):
            with Http2(life.grpc.port, window=100) as client:
                for _ in range(8):
                    client.call(f"{SERVICE}GenerateStream", message, FIRST)
                wait_until(lambda: not client.read(0.01) and len(client.num_bytes) == 8)
            wait_until(lambda: not (calls.num_open or life.server.active))
            with Http2(life.grpc.port, window=0) as client:
                for _ in range(8):
                    client.call(WATCH)
                    client.call(REFLECT, b"\x3a\x00", FIRST)
                    client.call(f"{SERVICE}GetServerInfo", key=FIRST)
                    client.call(CHECK)
                wait_until(lambda: watches.num_taken == 8 and calls.num_open == 16)
            wait_until(lambda: not (calls.num_open or watches.num_taken))
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_connections_beyond_a_limit_may_ask_for_health_alone(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_connections": 16, "header_seconds": 300.0}
    with served(tmp_path, **options) as life, contextlib.ExitStack() as stack:
        port = life.grpc.port

        def ask(source: str) -> tuple[int | None, int | None]:
            client = stack.enter_context(Http2(port, source))
            health = client.end_of(client.call(CHECK))
            return client.end_of(client.call(f"{SERVICE}GetServerInfo", key=FIRST)), health

        # Four in all, of which one address has two.
        assert [ask("127.0.0.1") for _ in range(3)] == [(OK, OK), (OK, OK), (EXHAUSTED, OK)]
        assert [ask("127.0.0.2") for _ in range(2)] == [(OK, OK), (OK, OK)]
        assert [ask("127.0.0.3") for _ in range(40)] == [(UNAVAILABLE, OK)] * 40
        assert life.grpc._relay.connections.num_open == 4
        text = life.server.metrics.text("m", "octavo").decode()
        assert re.search(r"^octavo:grpc_connections.* 4[.]0$", text, re.MULTILINE)
        stack.close()
        wait_until(lambda: life.grpc._relay.connections.num_open == 0)
        wait_until(lambda: not (life.grpc._relay._open or life.grpc._relay._by_name))
        assert answers(port, FIRST)
