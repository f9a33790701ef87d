"""The arguments of a stage on another node: the engine's, with what is this machine's own."""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import SealedLink
from octavo.engine.nodes.handshake import FrameKeys
from octavo.engine.nodes.headless import Node, _Member
from octavo.engine.nodes.messages import Sign
from octavo.engine.nodes.process import of_this_node
from octavo.engine.nodes.signs import send_signs, wait_for_silence
from octavo.engine.ranks.followers import Follower
from octavo.engine.ranks.group import ProcessGroup
from octavo.engine.ranks.link import Link, Started
from octavo.options.engine import EngineArguments
from tests.client.clients import LIMIT


def test_a_node_joins_a_first_one_that_listens_at_all_of_its_addresses() -> None:
    """The address at which node 0 listens need not be one to which another can connect."""
    stages: dict[str, Any] = {
        "pipeline_parallel_size": 2,
        "nnodes": 2,
        "link_secret_file": "/secret",
    }
    first = EngineArguments("/a", **stages, master_addr="0.0.0.0", max_num_seqs=3, num_threads=8)
    own = EngineArguments(
        "/b", **stages, node_rank=1, headless=True, master_addr="10.0.0.1", num_threads=2
    )
    found = of_this_node(first, own)
    assert (found.model, found.max_num_seqs, found.num_threads) == ("/b", 3, 2)
    assert found.master_addr == "10.0.0.1"


def test_a_secret_that_cannot_be_read_is_an_error_of_the_settings(tmp_path: Path) -> None:
    arguments = EngineArguments(
        "m",
        pipeline_parallel_size=2,
        nnodes=2,
        node_rank=1,
        headless=True,
        link_secret_file=str(tmp_path / "secret"),
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        Node(arguments)


def test_an_answer_that_was_changed_on_its_way_ends_the_start_and_names_the_stage() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(bytes(100))
        group = ProcessGroup(2)
        link = SealedLink(ours, FrameKeys(bytes(32), bytes([1] * 32)))
        group._followers.append(Follower("stage 1", link))
        with pytest.raises(ConfigError, match=r"stage 1 of 2 did not start: .* not sealed"):
            group.wait()
        group.close()


def test_a_process_is_watched_while_another_one_still_loads() -> None:
    """Signs of life come from it then, which would fill the buffers of its connection."""
    pairs = [socket.socketpair() for _ in range(2)]
    group = ProcessGroup(3)
    group._followers += [Follower(f"stage {at + 1}", Link(p[0])) for at, p in enumerate(pairs)]
    ended = threading.Event()
    group._end = lambda reason: ended.set()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.wait)
        Link(pairs[0][1]).send(Started())
        pairs[0][1].close()
        assert ended.wait(LIMIT)
        assert not waiting.done()
        Link(pairs[1][1]).send(Started())
        waiting.result()
    assert group.reason == "stage 1 has ended: its connection ended"
    group.close()
    pairs[1][1].close()


def test_a_connection_is_one_for_parts_once() -> None:
    """A second one would seal other parts with the same key and the same numbers."""
    ours, theirs = socket.socketpair()
    with theirs:
        link = SealedLink(ours, FrameKeys(bytes(32), bytes([1] * 32)))
        link.part_link()
        with pytest.raises(ValueError, match="already"):
            link.part_link()
        link.close()


def test_a_process_that_is_silent_is_taken_for_one_that_has_ended() -> None:
    ours, theirs = socket.socketpair()
    link, other = Link(ours), Link(theirs)
    send_signs(other)
    assert link.receive(Sign) == Sign()
    wait_for_silence(Link(other.connection), 0.01)  # the other end sends nothing, and stays open
    ours.close()
    theirs.close()


def test_a_node_that_was_stopped_itself_takes_the_signs_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first wait behind SIGCONT may return nothing, whatever has come."""
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    stages: dict[str, Any] = {"pipeline_parallel_size": 4, "nnodes": 2, "node_rank": 1}
    node = Node(EngineArguments("m", **stages, headless=True, link_secret_file=str(secret)))
    ended: list[int] = []
    monkeypatch.setattr(node, "_restart", lambda member: ended.append(member.number))
    pairs = {number: socket.socketpair() for number in node.numbers}
    for number, (ours, _) in pairs.items():
        process: Any = None
        made = _Member(number, node.name_of(number), process, Link(ours), heard_at=-100.0)
        node._members[number] = made
        node._selector.register(ours, selectors.EVENT_READ, made)
    Link(pairs[2][1]).send(Sign())
    node._end_silent()
    assert ended == [3]  # which has sent nothing
    node._hear(node._members[2])
    node._end_silent()
    assert ended == [3, 3]
    for pair in pairs.values():
        for each in pair:
            each.close()
