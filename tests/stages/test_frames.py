"""Frames between an engine and a stage: what is no frame, or no step, ends the connection."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from octavo.backends.native import _native

HEAD = struct.Struct("=IIQQ")
MAGIC, STEP, MESSAGE = 0x4F637431, 1, 3


Ends = tuple[socket.socket, _native.FrameLink]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return a connection, one end of which speaks in frames."""
    mine, other = socket.socketpair()
    with mine:
        yield mine, _native.FrameLink(other.detach())


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    mine, link = ends
    other = _native.FrameLink(mine.detach())
    for message in (b"one", b"", bytes(range(256)) * 300):
        link.send(message)
        assert other.receive() == message
    link.fail("no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        other.receive()


def test_an_end_is_an_error_of_connections(ends: Ends) -> None:
    mine, link = ends
    mine.close()
    with pytest.raises(ConnectionError):
        link.receive()
    with pytest.raises(ConnectionError):
        link.send(b"x" * (1 << 20))


@pytest.mark.parametrize(
    "head",
    [
        (0, MESSAGE, 0, 1),  # something else than Octavo
        (MAGIC, MESSAGE, 1, 1),  # one is missing
        (MAGIC, MESSAGE, 0, 1 << 40),  # more than there is memory for
    ],
)
def test_what_is_no_frame_is_refused(ends: Ends, head: tuple[int, ...]) -> None:
    mine, link = ends
    mine.sendall(HEAD.pack(*head) + b"x")
    with pytest.raises(RuntimeError, match="not the frame that should come"):
        link.receive()


def _program() -> _native.Program:
    return _native.Program(_native.tiers()[0], _native.Team(1, False))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        np.array([1, 1, 1, 1, 1, 0, 0, 0, 4], np.int32).tobytes(),  # without its numbers
        np.array([-1, 1, 1, 1, 1, 0, 0, 0, 4], np.int32).tobytes() + bytes(64),
        np.array([1, 1, 1, 1 << 30, 1, 0, 0, 0, 4], np.int32).tobytes() + bytes(64),
        np.array([1, 1, 1, 1, 1, 0, 0, 1, 4], np.int32).tobytes() + bytes(64),
        np.array([1, 1, 1, 1, 1, 0, 0, 3, 1], np.int32).tobytes()  # copies of a cache without any
        + np.zeros(10, np.int32).tobytes(),
    ],
)
def test_what_is_no_step_is_refused(ends: Ends, content: bytes) -> None:
    mine, link = ends
    mine.sendall(HEAD.pack(MAGIC, STEP, 0, len(content)) + content)
    with pytest.raises((RuntimeError, ValueError)):
        link.follow(_program(), None)
    assert b"a" in mine.recv(1 << 16)  # the other end gets the reason
