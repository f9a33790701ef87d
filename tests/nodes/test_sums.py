"""Sums over the links of nodes, without a model: what comes is checked, and an end is an error."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from octavo.backends.native import _native
from tests.backends.native import _native_test
from tests.stages.reference_cipher import nonce_of
from tests.stages.reference_cipher import sealed as sealed_by

BYTES = 16 << 20
KEYS = bytes(range(32)), bytes(range(32, 64))
WIDEST = 1 << 15
HEAD = struct.Struct("=IIQQ")
PART, FRAME, STEP, COPY = 0x4F635031, 0x4F637431, 1, 5


@contextmanager
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("sums")
    os.ftruncate(descriptor, BYTES)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def connection() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


def one(
    rank: int, ranks: int, node: int, nodes: int, links: Sequence[socket.socket], *, at: int
) -> _native_test.TestSums:
    """Return a rank of a node, over the memory of the node."""
    keys = KEYS if node == 0 else KEYS[::-1]
    made = [link.detach() for link in links]
    return _native_test.TestSums(at, BYTES, rank, ranks, node, nodes, made, *keys)


def several(nodes: int, ranks: int) -> list[_native_test.TestSums]:
    """Return all ranks of all nodes, in one process."""
    pairs = [connection() for _ in range(1, nodes)]
    made = []
    for node in range(nodes):
        links = [ours for ours, _ in pairs] if node == 0 else [pairs[node - 1][1]]
        with memory() as at:
            made += [
                one(rank, ranks, node, nodes, [] if rank else links, at=at) for rank in range(ranks)
            ]
    return made


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 1), (2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize(("rounds", "width"), [(50, 48), (10, WIDEST)])
def test_sums_are_those_of_all_ranks(nodes: int, ranks: int, rounds: int, width: int) -> None:
    """However wide: no end waits with what it has to send until the other has read."""
    made = several(nodes, ranks)
    with ThreadPoolExecutor(len(made)) as pool:
        found = [pool.submit(each.add_up, rounds, width) for each in made]
    assert [each.result()[1] for each in found] == [0] * len(made)


@contextmanager
def beside_a_peer(peer: Callable[[socket.socket], object]) -> Iterator[Future[tuple[float, int]]]:
    """Let the first node add up with something else in place of the other one."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        ours, theirs = connection()
        at = stack.enter_context(memory())
        stack.enter_context(theirs)
        first = one(0, 1, 0, 2, [ours], at=at)
        waiting = pool.submit(first.add_up, 2, 48)
        peer(theirs)
        yield waiting


def sealed(head: tuple[int, ...], floats: int = 48, number: int = 0) -> bytes:
    """Return a part as a node with the secret can make it."""
    whole = b""
    for index, data in enumerate((HEAD.pack(*head), bytes(4 * floats))):
        whole += b"".join(sealed_by(KEYS[1], nonce_of(number + index), data))
    return whole


RIGHT = (PART, 1, 0, 48)


def _leave_within_a_part(peer: socket.socket) -> None:
    peer.sendall(sealed(RIGHT)[:100])
    peer.shutdown(socket.SHUT_WR)


ATTACKS: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "garbage": (lambda peer: peer.sendall(bytes(1 << 16)), "not sealed by its other end"),
    "another rank's part": (
        lambda peer: peer.sendall(sealed((PART, 0, 0, 48))),
        "not the part that should come",
    ),
    "the part of a later sum": (
        lambda peer: peer.sendall(sealed((PART, 1, 1, 48))),
        "not the part that should come",
    ),
    "a part of another size": (
        lambda peer: peer.sendall(sealed((PART, 1, 0, 1 << 60))),
        "not the part that should come",
    ),
    "a frame of steps": (
        lambda peer: peer.sendall(sealed((FRAME, 1, 0, 48))),
        "not the part that should come",
    ),
    "the same part once more": (
        lambda peer: peer.sendall(2 * sealed(RIGHT)),
        "not sealed by its other end",
    ),
    "a number that was changed": (
        lambda peer: peer.sendall(sealed(RIGHT)[:-17] + b"x" + sealed(RIGHT)[-16:]),
        "not sealed by its other end",
    ),
    "an end": (lambda peer: peer.close(), "its connection has ended"),
    "an end within a part": (
        _leave_within_a_part,
        "its connection has ended",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_no_part_ends_the_sum(attack: str) -> None:
    peer, message = ATTACKS[attack]
    with beside_a_peer(peer) as waiting, pytest.raises(RuntimeError, match=f"node 1: .*{message}"):
        waiting.result()


def test_parts_that_come_byte_by_byte_are_added_up() -> None:
    def send(peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = sealed(RIGHT) + sealed((PART, 1, 1, 48), number=2)
        for at in range(len(data)):
            peer.sendall(data[at : at + 1])

    with beside_a_peer(send) as waiting:
        assert waiting.result()[1] == 1  # the second sum has this node's part alone


def test_a_node_that_waits_in_a_sum_says_why_its_ranks_have_ended() -> None:
    first, _ = several(2, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.add_up, 1, 48)
        first.end("rank 1 has ended: it gave no sign of life")
        with pytest.raises(RuntimeError, match="rank 1 has ended: it gave no sign of life"):
            waiting.result()


def test_a_rank_behind_the_first_one_of_its_node_ends_with_it() -> None:
    """The first rank alone has a link, and says so in the memory that both have."""
    ours, theirs = connection()
    with memory() as at, ThreadPoolExecutor(2) as pool:
        ranks = [one(rank, 2, 0, 2, [] if rank else [ours], at=at) for rank in range(2)]
        waiting = [pool.submit(each.add_up, 1, 48) for each in ranks]
        theirs.close()
        with pytest.raises(RuntimeError, match="node 1: its connection has ended"):
            waiting[0].result()
        ranks[0].end("node 1: its connection has ended")  # as a program does
        with pytest.raises(RuntimeError, match="node 1: its connection has ended"):
            waiting[1].result()


@pytest.mark.parametrize(
    ("rank", "node", "count"), [(0, 0, 0), (0, 0, 2), (0, 1, 0), (1, 0, 1), (0, 2, 1), (0, -1, 1)]
)
def test_a_place_that_does_not_fit_its_links_is_refused(rank: int, node: int, count: int) -> None:
    with memory() as at, ExitStack() as stack:
        pairs = [connection() for _ in range(count)]
        for _, theirs in pairs:
            stack.enter_context(theirs)
        with pytest.raises(ValueError, match="a node must be one of several"):
            one(rank, 2, node, 2, [ours for ours, _ in pairs], at=at)


Ends = tuple[socket.socket, _native.FrameLink, _native.Program]


@pytest.fixture
def node() -> Iterator[Ends]:
    """Return the connection of a further node for steps, whose program computes nothing."""
    mine, other = socket.socketpair()
    ours, theirs = connection()
    with mine, theirs, memory() as at:
        ranks = _native.Ranks(at, BYTES, 0, 1, 1)
        sums = _native.NodeSums(ranks, 1, 2, [_native.PartLink(ours.detach(), *KEYS)])
        program = _native.Program(_native.tiers()[0], _native.Team(1, False), sums)
        yield mine, _native.FrameLink(other.detach()), program


SIZES = ("rows", "sequences", "width", "groups", "logits", "hidden", "kept", "echoes")


def step(rest: int = 0, part: int = 0, **sizes: int) -> bytes:
    """Return a step without rows: its sizes, and what follows."""
    numbers = np.zeros(22, np.int32)
    for name, value in sizes.items():
        numbers[SIZES.index(name)] = value
    numbers[10] = part
    return numbers.tobytes() + bytes(rest)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (STEP, b""),
        (STEP, step()),  # without row_starts
        (STEP, step(rest=8)),  # with one too many
        (STEP, step(rows=-1, rest=4)),
        (STEP, step(rows=1 << 30, rest=4)),
        (STEP, step(groups=1 << 30, rest=4)),
        (STEP, step(kept=1 << 30, rest=4)),
        (STEP, step(sequences=(1 << 31) - 1, width=(1 << 31) - 1, groups=64, rest=4)),
        (STEP, step(part=1, rest=4)),  # the part before stages
        (STEP, step(rows=1, sequences=1, rest=16)),  # no row is the sequence's
        (COPY, b""),
        (COPY, bytes(16)),
        (COPY, bytes(12)),  # of a cache that is not there
    ],
)
def test_what_is_no_step_is_refused(node: Ends, kind: int, content: bytes) -> None:
    mine, link, program = node
    mine.sendall(HEAD.pack(FRAME, kind, 0, len(content)) + content)
    with pytest.raises((RuntimeError, ValueError)):
        _native.follow_ranks(link, program, 0, 0)
    assert b"a" in mine.recv(1 << 16)  # the first node gets the reason


def test_columns_that_there_are_not_are_refused(node: Ends) -> None:
    _, link, program = node
    for first, columns in ((-1, 0), (0, -1), (0, 1)):
        with pytest.raises(ValueError, match="some columns of the logits"):
            _native.follow_ranks(link, program, first, columns)
