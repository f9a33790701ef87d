"""An engine believes nothing that its loader sends, and goes on whatever that is."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.loader_process import connection as module
from octavo.loader_process.connection import (
    LOADER_ENDED,
    MAX_IN_FLIGHT,
    NO_LOADER,
    TIMED_OUT,
    TOO_MANY,
    WAIT_SECONDS,
    FileError,
    LoaderConnection,
    TensorFile,
)
from octavo.loader_process.messages import (
    MAX_FILE_BYTES,
    MAX_PACKET_BYTES,
    FileRead,
    FileRefused,
    LoaderEnded,
    ReadFile,
    Table,
    TableEntry,
    decode_request,
    encode,
    receive,
    send,
    send_now,
)
from octavo.loader_process.read import Directories, read_file
from octavo.loader_process.sealed import make_sealed
from tests.loader_process.files import ARRAYS, no_descriptor_left, write_file

Answer = tuple[int, TensorFile | FileError]


class Pair:
    """An engine's connection, and a loader's end that the test plays."""

    def __init__(self) -> None:
        engine, self.loader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.now = 0.0
        self.connection = LoaderConnection(engine, lambda: self.now)
        self.files: deque[Answer] = deque()

    def close(self) -> None:
        self.loader.close()
        self.connection._thread.join()

    def ask(self, path: str) -> int:
        """Let the engine ask for a file."""
        numbers: list[int] = []
        numbers.append(
            self.connection.request(path, lambda file: self.files.append((numbers[0], file)))
        )
        return numbers[0]

    def request(self, path: str = "/files/one") -> int:
        """Let the engine ask for a file, and the loader get the request."""
        number = self.ask(path)
        assert decode_request(receive(self.loader)[0]) == ReadFile(number, path)
        return number

    def answer(self) -> Answer:
        """Wait for the only answer."""
        deadline = time.monotonic() + 300
        while not (self.connection._errors or self.files):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        answers: list[Answer] = [*self.files, *self.connection.take()]
        self.files.clear()
        (answer,) = answers
        return answer

    def error(self) -> str:
        _, error = self.answer()
        assert isinstance(error, FileError)
        return error.code


@pytest.fixture
def pair() -> Iterator[Pair]:
    with no_descriptor_left():
        pair = Pair()
        yield pair
        pair.close()


def sealed(data: bytes) -> int:
    def write(to: int) -> None:
        os.write(to, data)

    return make_sealed("test", len(data), write)


def passed(pair: Pair, number: int, content: bytes, table: bytes) -> None:
    """Send what a loader would, of given content and table."""
    opened = sealed(content), sealed(table)
    send(pair.loader, FileRead(number, len(content), len(table)), opened)
    for descriptor in opened:
        os.close(descriptor)


def table(*entries: TableEntry, **parts: Any) -> bytes:
    return encode(Table(entries, **{"metadata": {}, "beside": {}, **parts}))


def test_a_file_is_taken_over_and_outlives_the_connection(pair: Pair, tmp_path: Path) -> None:
    path = write_file(tmp_path)
    number = pair.request(str(path))
    opened = read_file(Directories([tmp_path]), path, ())
    assert pair.connection.num_in_flight == 1
    send(pair.loader, FileRead(number, *(os.fstat(each).st_size for each in opened)), opened)
    for descriptor in opened:
        os.close(descriptor)
    answered, file = pair.answer()
    assert (answered, pair.connection.num_in_flight) == (number, 0)
    assert isinstance(file, TensorFile)
    path.unlink()
    pair.close()
    tensor = file.checkpoint.read("numbers")
    np.testing.assert_array_equal(tensor, ARRAYS["numbers"])
    assert not tensor.flags.writeable


def test_a_refusal_is_an_error_and_the_next_file_is_read(pair: Pair) -> None:
    send_now(pair.loader, FileRefused(pair.request(), "damaged", "its header\n\x1b[2J is none"))
    _, error = pair.answer()
    assert isinstance(error, FileError)
    assert (error.code, str(error)) == ("damaged", "its header??[2J is none")
    passed(pair, pair.request(), b"x", table())
    assert isinstance(pair.answer()[1], TensorFile)


def unsealed(pair: Pair, number: int) -> None:
    content, described = os.memfd_create("open", os.MFD_ALLOW_SEALING), sealed(table())
    os.write(content, b"x")
    send(pair.loader, FileRead(number, 1, len(table())), (content, described))
    os.close(content)
    os.close(described)


def a_pipe(pair: Pair, number: int) -> None:
    reading, writing = os.pipe()
    send(pair.loader, FileRead(number, 1, 1), (reading, writing))
    os.close(reading)
    os.close(writing)


def a_file(pair: Pair, number: int) -> None:
    with Path(__file__).open("rb") as file:
        send(pair.loader, FileRead(number, 1, 1), (file.fileno(), file.fileno()))


def of_another_size(pair: Pair, number: int) -> None:
    opened = sealed(b"x"), sealed(table())
    send(pair.loader, FileRead(number, 2, len(table())), opened)
    for descriptor in opened:
        os.close(descriptor)


def with_descriptors(count: int) -> Callable[[Pair, int], None]:
    def act(pair: Pair, number: int) -> None:
        descriptor = sealed(b"x")
        send(pair.loader, FileRead(number, 1, 1), (descriptor,) * count)
        os.close(descriptor)

    return act


def a_refusal_with_a_descriptor(pair: Pair, number: int) -> None:
    descriptor = sealed(b"x")
    send(pair.loader, FileRefused(number, "code", "why"), (descriptor,))
    os.close(descriptor)


def packet(data: bytes) -> Callable[[Pair, int], None]:
    def act(pair: Pair, number: int) -> None:
        pair.loader.send(data)

    return act


def described(*entries: TableEntry, content: bytes = bytes(8)) -> Callable[[Pair, int], None]:
    return lambda pair, number: passed(pair, number, content, table(*entries))


HUGE = MAX_FILE_BYTES
ATTACKS: dict[str, Callable[[Pair, int], None]] = {
    "memory that can change": unsealed,
    "a pipe": a_pipe,
    "a file": a_file,
    "another size": of_another_size,
    "no descriptors": with_descriptors(0),
    "one descriptor": with_descriptors(1),
    "more descriptors": with_descriptors(3),
    "a hundred descriptors": with_descriptors(100),
    "a descriptor for nothing": a_refusal_with_a_descriptor,
    "junk": packet(b"\xc1\x00"),
    "a request": packet(encode(ReadFile(0, "/x"))),
    "a packet that is too long": packet(bytes(MAX_PACKET_BYTES + 1)),
    "a number out of bounds": packet(encode(FileRefused(-1, "code", "why"))),
    "a text out of bounds": packet(encode(FileRefused(0, "code", "w" * 5000))),
    "a size out of bounds": packet(encode(FileRead(0, HUGE + 1, 1))),
    "a table that is none": lambda pair, number: passed(pair, number, b"x", b"\x93\xc1"),
    "a table of another form": lambda pair, number: passed(pair, number, b"x", b"\xc4\x01x"),
    "metadata of another form": lambda pair, number: passed(
        pair, number, b"x", table(metadata={"a": 1})
    ),
    "an unknown type": described(TableEntry("t", "F31", (1,), 0)),
    "a type of blocks": described(TableEntry("t", "Q4_0", (32,), 0)),
    "a tensor behind the end": described(TableEntry("t", "F32", (1,), 8)),
    "a tensor across the end": described(TableEntry("t", "F32", (2,), 4)),
    "a tensor of all memory": described(TableEntry("t", "F32", (HUGE, HUGE, HUGE), 0)),
    "a size that is negative": described(TableEntry("t", "F32", (-1,), 0)),
    "tensors that overlap": described(
        TableEntry("t", "F32", (1,), 0), TableEntry("u", "F32", (1,), 2)
    ),
    "two tensors of a name": described(
        TableEntry("t", "F32", (1,), 0), TableEntry("t", "F32", (1,), 4)
    ),
    "no content": described(content=b""),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_breaks_the_protocol_ends_the_loading_and_not_the_engine(
    pair: Pair, attack: Callable[[Pair, int], None]
) -> None:
    attack(pair, pair.request())
    assert pair.error() == LOADER_ENDED
    pair.connection._thread.join()
    with pytest.raises(FileError) as caught:
        pair.ask("/files/two")
    assert caught.value.code == NO_LOADER
    assert pair.loader.recv(100) == b""  # a loader that still runs ends too


def test_answers_that_nobody_waits_for_are_dropped(pair: Pair) -> None:
    for number in (5, 2**40):
        passed(pair, number, b"x", table())
        send_now(pair.loader, FileRefused(number, "code", "why"))
    number = pair.request()
    passed(pair, number, b"x", table())
    passed(pair, number, b"x", table())
    assert pair.answer()[0] == number
    number = pair.request()
    send_now(pair.loader, FileRefused(number, "code", "why"))
    assert pair.answer()[0] == number


def test_the_end_of_a_loader_is_an_error_for_its_file_and_its_successor_reads_the_others(
    pair: Pair,
) -> None:
    numbers = [pair.ask(f"/files/{name}") for name in "abc"]
    assert decode_request(receive(pair.loader)[0]) == ReadFile(numbers[0], "/files/a")
    send_now(pair.loader, LoaderEnded("its process was ended by SIGKILL"))
    number, error = pair.answer()
    assert isinstance(error, FileError)
    assert (number, error.code) == (numbers[0], LOADER_ENDED)
    for asked in numbers[1:]:
        request = decode_request(receive(pair.loader)[0])
        assert request.number == asked
        passed(pair, request.number, b"x", table())
        number, file = pair.answer()
        assert number == asked
        assert isinstance(file, TensorFile)


def test_the_time_of_a_request_begins_when_it_is_the_oldest(pair: Pair) -> None:
    one, two, three = (pair.request(f"/files/{name}") for name in "abc")
    pair.now = WAIT_SECONDS - 1
    send_now(pair.loader, FileRefused(three, "code", "why"))  # not the oldest
    assert pair.answer()[0] == three
    pair.now = WAIT_SECONDS
    ((ended, error),) = pair.connection.take()
    assert isinstance(error, FileError)
    assert (ended, error.code) == (one, TIMED_OUT)
    pair.now = 2 * WAIT_SECONDS - 1
    assert pair.connection.take() == []
    pair.now = 2 * WAIT_SECONDS
    assert [number for number, _ in pair.connection.take()] == [two]


@contextmanager
def passing_on(pair: Pair) -> Iterator[None]:
    """Let the connection pass a file on that takes until the end of this."""
    has_begun, gate = threading.Event(), threading.Event()

    def then(_: TensorFile) -> None:
        has_begun.set()
        assert gate.wait(300)

    number = pair.connection.request("/files/large", then)
    receive(pair.loader)
    passed(pair, number, b"x", table())
    assert has_begun.wait(300)
    try:
        yield
    finally:
        gate.set()


def test_no_request_is_given_up_while_its_answer_lies_behind_a_file_that_is_passed_on(
    pair: Pair,
) -> None:
    with passing_on(pair):
        number = pair.request()
        passed(pair, number, b"x", table())
        pair.now = 3 * WAIT_SECONDS
        assert pair.connection.take() == []
    answered, file = pair.answer()
    assert answered == number
    assert isinstance(file, TensorFile)


def test_the_time_of_the_oldest_begins_again_when_a_file_has_been_passed_on(pair: Pair) -> None:
    with passing_on(pair):
        number = pair.request()
        pair.now = 3 * WAIT_SECONDS
    deadline = time.monotonic() + 300
    while pair.connection._is_passing_on:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    pair.now = 4 * WAIT_SECONDS - 1
    assert pair.connection.take() == []
    pair.now = 4 * WAIT_SECONDS
    assert [(each, error.code) for each, error in pair.connection.take()] == [(number, TIMED_OUT)]


def test_a_request_without_an_answer_ends_by_itself(pair: Pair) -> None:
    number = pair.request()
    pair.now = WAIT_SECONDS - 1
    assert pair.connection.take() == []
    pair.now = WAIT_SECONDS
    ((ended, error),) = pair.connection.take()
    assert isinstance(error, FileError)
    assert (ended, error.code) == (number, TIMED_OUT)
    passed(pair, number, b"x", table())  # too late
    send_now(pair.loader, FileRefused(pair.request(), "code", "why"))
    assert pair.error() == "code"


def test_so_many_files_are_asked_for_at_once(pair: Pair) -> None:
    for number in range(MAX_IN_FLIGHT):
        assert pair.ask("/files/one") == number
    with pytest.raises(FileError) as caught:
        pair.ask("/files/one")
    assert caught.value.code == TOO_MANY


def test_a_loader_that_reads_nothing_does_not_hold_up_the_engine(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_IN_FLIGHT", 10**6)

    def ask_for_ever() -> None:
        for _ in range(10**6):
            pair.ask("/" + "x" * 4000)

    with pytest.raises(FileError) as caught:
        ask_for_ever()
    assert caught.value.code == TOO_MANY


def test_a_connection_that_is_closed_leaves_no_thread() -> None:
    pair = Pair()
    pair.connection.close()
    assert pair.loader.recv(100) == b""
    pair.loader.close()
    assert not pair.connection._thread.is_alive()
