"""The arguments of a stage on another node: the engine's, with what is this machine's own."""

from __future__ import annotations

import contextlib
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
from octavo.engine.nodes.division import Division
from octavo.engine.nodes.group import RemoteMember
from octavo.engine.nodes.handshake import FrameKeys
from octavo.engine.nodes.headless import Node, _Member
from octavo.engine.nodes.process import of_this_node
from octavo.engine.nodes.signs import send_signs, wait_for_silence
from octavo.engine.ranks import group as ranks
from octavo.engine.ranks.followers import Follower, FurtherProcessError
from octavo.engine.ranks.group import NOTING_SECONDS, ProcessGroup
from octavo.engine.ranks.link import Link, Sign, Started, say_end
from octavo.engine.ranks.process import not_started
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
        group._followers.append(Follower("stage 1", 2, link))
        with pytest.raises(ConfigError, match=r"stage 1 of 2 did not start: .* not sealed"):
            group.wait()
        group.close()


def test_a_start_that_fails_elsewhere_names_the_rank_the_machine_and_why() -> None:
    """The first of a node's ranks answers for the others, whose numbers are among all nodes'."""
    ours, theirs = socket.socketpair()
    keys = bytes(32), bytes([1] * 32)
    link, other = SealedLink(ours, FrameKeys(*keys)), SealedLink(theirs, FrameKeys(*keys[::-1]))
    link.machine = "node 1 (b at 10.0.0.2)"
    division = Division(nnodes=2, stages=1, ranks=4)
    group = ProcessGroup(4)
    group._followers.append(RemoteMember(division, 1, link))
    other.send(not_started(FurtherProcessError("rank 3 of 4", "no memory")))
    with pytest.raises(ConfigError) as caught:
        group.wait()
    expected = "node 1 (b at 10.0.0.2): rank 3 of 4 did not start: no memory"
    assert str(caught.value) == expected
    other.send(not_started(ValueError("no such file")))
    with pytest.raises(ConfigError, match=r"2\): rank 2 of 4 did not start: no such file"):
        group.wait()
    other.close()
    with pytest.raises(ConfigError, match=r"rank 2 of 4 did not start: its connection has ended;"):
        group.wait()
    group.close()


def test_a_further_rank_of_a_node_has_its_number_among_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "PROGRAM", "octavo.no_such_program")
    made = ranks.RankGroup(2, sums=True, first=2, total=4)
    with pytest.raises(ConfigError, match=r"^rank 3 of 4 did not start: its process ended with"):
        made.wait()
    made.close()
    made.leave_memory()


def test_an_end_elsewhere_names_the_rank_the_machine_and_why() -> None:
    ours, theirs = socket.socketpair()
    keys = bytes(32), bytes([1] * 32)
    link, other = SealedLink(ours, FrameKeys(*keys)), SealedLink(theirs, FrameKeys(*keys[::-1]))
    link.machine = "node 1 (b at 10.0.0.2)"
    group = ProcessGroup(4)
    group._followers.append(RemoteMember(Division(nnodes=2, stages=1, ranks=4), 1, link))
    other.send(Started())
    group.wait()
    send_signs(other)
    say_end("rank 3 has ended: its process was ended by SIGKILL", [other])
    expected = "node 1 (b at 10.0.0.2): rank 3 has ended: its process was ended by SIGKILL"
    assert group._has_reason.wait(LIMIT)
    assert group.reason == group.reason_soon() == expected
    group.close()
    other.close()


def test_an_error_that_follows_from_an_end_waits_for_that() -> None:
    """The end of this process names the other one; the error would name this one."""
    group = ProcessGroup(2)
    ended = threading.Event()
    group._end = lambda reason: ended.set()
    passed = threading.Event()

    def compute() -> None:
        with contextlib.suppress(RuntimeError), group.noting_ends():
            raise RuntimeError("a barrier was left")
        passed.set()

    group.note_end("rank 1 has ended")
    threading.Thread(target=compute, daemon=True).start()
    assert ended.is_set()
    assert not passed.wait(2 * NOTING_SECONDS)
    other = ProcessGroup(2)
    with pytest.raises(RuntimeError, match="own"), other.noting_ends():
        raise RuntimeError("its own")


def test_a_process_is_watched_while_another_one_still_loads() -> None:
    """Signs of life come from it then, which would fill the buffers of its connection."""
    pairs = [socket.socketpair() for _ in range(2)]
    group = ProcessGroup(3)
    group._followers += [Follower(f"stage {at + 1}", 3, Link(p[0])) for at, p in enumerate(pairs)]
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
    monkeypatch.setattr(node, "_restart", lambda member, why: ended.append(member.number))
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
