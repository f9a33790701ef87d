"""Which processors and which memory each rank has, on invented machines; and that it is bound."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from octavo.engine.ranks import group, placement
from octavo.engine.ranks.followers import LocalFollower
from octavo.engine.ranks.placement import Share, add_words, divided
from octavo.observe.memory_nodes import MemoryNode, memory_nodes
from tests.ranks.small import answers, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a system without ranks")


def nodes(*sizes: int, siblings: int = 1) -> list[MemoryNode]:
    """Return nodes with so many cores each."""
    found, first = [], 0
    for number, size in enumerate(sizes):
        cores = [
            tuple(range(each * siblings, (each + 1) * siblings))
            for each in range(first, first + size)
        ]
        found.append(MemoryNode(number * 2, tuple(cores)))
        first += size
    return found


def test_each_rank_has_a_node() -> None:
    assert divided(nodes(2, 2, siblings=2), 2) == [
        Share((0, 1, 2, 3), (0,), 2),
        Share((4, 5, 6, 7), (2,), 2),
    ]


def test_ranks_of_one_node_divide_its_cores() -> None:
    assert divided(nodes(4, 4), 4) == [
        Share((0, 1), (0,), 2),
        Share((2, 3), (0,), 2),
        Share((4, 5), (2,), 2),
        Share((6, 7), (2,), 2),
    ]


def test_a_rank_has_several_nodes_where_there_are_more() -> None:
    assert divided(nodes(1, 1, 1, 1), 2) == [Share((0, 1), (0, 2), 2), Share((2, 3), (4, 6), 2)]


def test_all_ranks_have_as_many_threads_as_the_smallest_part_and_the_quota_allow() -> None:
    assert [each.threads for each in divided(nodes(8, 3), 2)] == [3, 3]
    assert [each.threads for each in divided(nodes(8, 8), 2, quota=5.5)] == [2, 2]
    assert [each.threads for each in divided(nodes(8, 8), 2, quota=0.5)] == [1, 1]


@pytest.mark.parametrize("found", [nodes(), nodes(8), nodes(1, 1)])
def test_nothing_is_bound_without_several_nodes_and_a_core_for_each_rank(
    found: list[MemoryNode],
) -> None:
    assert divided(found, 3) == [Share()] * 3


@pytest.mark.parametrize("seed", range(50))
def test_parts_are_apart_and_whole(seed: int) -> None:
    rng = random.Random(seed)
    found = nodes(*(rng.randint(1, 9) for _ in range(rng.randint(2, 6))), siblings=2)
    shares = divided(found, rng.randint(2, 9))
    if shares[0].processors:
        given = sorted(each for share in shares for each in share.processors)
        assert given == [each for node in found for each in node.processors]
        for share in shares:
            own = {each for node in found if node.number in share.nodes for each in node.processors}
            assert {*share.processors} <= own


def test_the_words_of_a_share_are_read_again() -> None:
    for share in (Share(), Share((0, 3), (1,), 2)):
        parser = argparse.ArgumentParser()
        add_words(parser)
        options = parser.parse_args(share.words)
        assert Share(options.processors, options.nodes, options.threads) == share


@pytest.fixture
def affinity() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


_BOUND = """
import os
from octavo.engine.ranks.placement import Share, bind
bind(Share(({processor},), ({node},), 1), "rank 0")
data = bytearray(50 << 20)
maps = open("/proc/self/numa_maps").read()
print(sorted(os.sched_getaffinity(0)), maps.count("prefer"))
"""


def test_a_process_is_bound_to_processors_and_memory() -> None:
    found = memory_nodes()
    if not found or not Path("/proc/self/numa_maps").exists():
        pytest.skip("a system that knows no nodes of memory")
    processor = found[0].processors[-1]
    program = _BOUND.format(processor=processor, node=found[0].number)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    if "not bound" in ended.stderr:
        pytest.skip(ended.stderr)
    processors, _, preferring = ended.stdout.strip().rpartition(" ")
    assert processors == f"[{processor}]"
    assert int(preferring)


def test_a_system_without_a_rule_for_memory_binds_the_processors(
    affinity: set[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A container may not call `set_mempolicy`: a warning would say what is not so."""

    def refuse(nodes: Sequence[int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(placement, "_prefer", refuse)
    with caplog.at_level(logging.INFO):
        placement.bind(Share((max(affinity),), (0,), 1), "rank 0")
    assert os.sched_getaffinity(0) == {max(affinity)}
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "runs on the processors of nodes 0" in record.getMessage()


def test_processors_that_are_refused_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    placement.bind(Share((1 << 15,), (0,), 1), "rank 0")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "is not bound to the processors" in record.getMessage()


@pytest.mark.slow
def test_bound_ranks_compute_the_same(
    tmp_path: Path, affinity: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank runs where its share says, and the bits are those of one process."""
    model = write(tmp_path, "LlamaForCausalLM")
    expected = answers(model)[0]
    node = next((each.number for each in memory_nodes()), 0)
    parts = [min(affinity)], [max(affinity)]
    shares = [Share(tuple(each), (node,), 1) for each in parts]
    monkeypatch.setattr(group, "shares_of_ranks", lambda _: shares)
    seen: list[set[int]] = []
    wait = group.ProcessGroup.wait

    def note(ranks: group.ProcessGroup) -> int:
        result = wait(ranks)
        for each in ranks._followers:
            assert isinstance(each, LocalFollower)
            seen.append(os.sched_getaffinity(each.process.pid))
        return result

    monkeypatch.setattr(group.ProcessGroup, "wait", note)
    found = answers(model, tensor_parallel_size=2)[0]
    assert (os.sched_getaffinity(0), seen) == ({*parts[0]}, [{*parts[1]}])
    assert found == expected
