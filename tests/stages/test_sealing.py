"""Sealed frames: as RFC 8439 says, and nothing that another has changed, cut or sent is taken."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from octavo.backends.native import _native
from tests.stages.reference_cipher import nonce_of, sealed

HEAD = struct.Struct("=IIQQ")
MAGIC, MESSAGE = 0x4F637431, 3
TAG = 16
ONE, OTHER = bytes(range(32)), bytes(range(32, 64))


def test_the_reference_is_that_of_the_standard() -> None:
    """The example is that of section 2.8.2."""
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    encrypted, tag = sealed(key, nonce, text, bytes.fromhex("50515253c0c1c2c3c4c5c6c7"))
    assert encrypted.startswith(bytes.fromhex("d31a8d34648e60db7b86afbc53ef7ec2"))
    assert tag == bytes.fromhex("1ae10b594f09e26a7e902ecbd0600691")


@pytest.fixture
def wire() -> Iterator[tuple[_native.FrameLink, socket.socket]]:
    """Return a link that seals, and the connection that it sends over."""
    mine, other = socket.socketpair()
    with other:
        yield _native.FrameLink(mine.detach(), ONE, OTHER), other


def _receiver() -> tuple[socket.socket, _native.FrameLink]:
    mine, other = socket.socketpair()
    return mine, _native.FrameLink(other.detach(), OTHER, ONE)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 4000])
def test_frames_are_sealed_as_the_standard_says(
    wire: tuple[_native.FrameLink, socket.socket], size: int
) -> None:
    link, other = wire
    message = bytes(7 * i % 256 for i in range(size))
    for first in (0, 2 if size else 1):  # numbers of parts: a head and a content each
        link.send(message)
        number = 0 if first == 0 else 1
        head = HEAD.pack(MAGIC, MESSAGE, number, size)
        expected = b"".join(sealed(ONE, nonce_of(first), head))
        if size:
            expected += b"".join(sealed(ONE, nonce_of(first + 1), message))
        assert _read(other, len(expected)) == expected


@pytest.mark.parametrize("seed", range(8))
def test_tags_are_right_for_any_key(seed: int) -> None:
    """Sums near the prime have carries of their own; keys of equal bits reach more of them."""
    key = bytes([(0xFF, 0x00, 0x0F, 0xF0, 0x7F, 0x80, 0x55, 0xAA)[seed]]) * 32
    mine, other = socket.socketpair()
    with other:
        link = _native.FrameLink(mine.detach(), key, ONE)
        message = bytes([0xFF]) * (16 * (seed + 1))
        link.send(message)
        head = HEAD.pack(MAGIC, MESSAGE, 0, len(message))
        parts = [*sealed(key, nonce_of(0), head), *sealed(key, nonce_of(1), message)]
        assert _read(other, sum(map(len, parts))) == b"".join(parts)


def test_messages_of_many_parts_arrive_whole_and_in_order(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    link, connection = wire
    other = _native.FrameLink(connection.detach(), OTHER, ONE)
    for message in (b"one", b"", bytes(range(256)) * 300):
        link.send(message)
        assert other.receive() == message
        other.send(message[::-1])
        assert link.receive() == message[::-1]
    link.fail("no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        other.receive()


def _frames(wire: tuple[_native.FrameLink, socket.socket], *messages: bytes) -> list[bytes]:
    link, other = wire
    frames = []
    for message in messages:
        link.send(message)
        frames.append(_read(other, HEAD.size + TAG + len(message) + TAG))
    return frames


def _is_refused(link: _native.FrameLink) -> None:
    with pytest.raises(RuntimeError, match="was not sealed by its other end"):
        link.receive()


@pytest.mark.parametrize("at", [0, HEAD.size - 1, HEAD.size, HEAD.size + TAG, -TAG - 1, -1])
def test_a_changed_bit_is_refused(wire: tuple[_native.FrameLink, socket.socket], at: int) -> None:
    (frame,) = _frames(wire, b"something")
    changed = bytearray(frame)
    changed[at] ^= 1
    mine, link = _receiver()
    with mine:
        mine.sendall(changed)
        _is_refused(link)


def test_a_frame_that_comes_again_is_refused(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    (frame,) = _frames(wire, b"something")
    mine, link = _receiver()
    with mine:
        mine.sendall(frame + frame)
        assert link.receive() == b"something"
        _is_refused(link)


def test_frames_in_another_order_are_refused(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    one, other = _frames(wire, b"one", b"two")
    mine, link = _receiver()
    with mine:
        mine.sendall(other + one)
        _is_refused(link)


def test_a_part_that_is_left_out_is_refused(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    one, other = _frames(wire, b"one", b"two")
    mine, link = _receiver()
    with mine:
        mine.sendall(one[: HEAD.size + TAG] + other)
        _is_refused(link)


def test_what_the_receiver_has_sent_is_refused_as_its_own(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    """Each direction has its key, so nothing can be sent back."""
    (frame,) = _frames(wire, b"something")
    link, other = wire
    other.sendall(frame)
    _is_refused(link)


def test_a_frame_that_is_cut_off_is_an_end(
    wire: tuple[_native.FrameLink, socket.socket],
) -> None:
    (frame,) = _frames(wire, b"something")
    mine, link = _receiver()
    mine.sendall(frame[:-1])
    mine.close()
    with pytest.raises(ConnectionError):
        link.receive()


@pytest.mark.parametrize("sizes", [(31, 32), (32, 33), (0, 0)])
def test_keys_of_another_size_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a key must have 32 bytes"):
        _native.FrameLink(-1, bytes(sizes[0]), bytes(sizes[1]))
