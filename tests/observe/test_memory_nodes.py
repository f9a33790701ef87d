"""The nodes of memory of invented machines, as far as a process may use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.observe.memory_nodes import MemoryNode, memory_nodes

ALL = range(64)


def machine(
    root: Path,
    nodes: dict[int, str],
    files: dict[str, str] | None = None,
    *,
    siblings: int = 1,
    memory: str = "",
) -> Path:
    """Write the files of a machine whose cores have so many processors each, side by side."""
    given = {f"sys/devices/system/node/node{each}/cpulist": nodes[each] for each in nodes}
    given |= files or {}
    if memory:
        given["sys/devices/system/node/has_memory"] = memory
    for each in ALL:
        first = each // siblings * siblings
        path = f"sys/devices/system/cpu/cpu{each}/topology/thread_siblings_list"
        given[path] = f"{first}-{first + siblings - 1}" if siblings > 1 else str(each)
    for name, text in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def found(root: Path, allowed: range | set[int] = ALL) -> dict[int, list[int]]:
    return {each.number: each.processors for each in memory_nodes(root, allowed)}


def test_two_nodes_with_two_processors_a_core(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, siblings=2)
    assert memory_nodes(root, ALL) == [
        MemoryNode(0, ((0, 1), (2, 3))),
        MemoryNode(1, ((4, 5), (6, 7))),
    ]


def test_processors_of_a_node_need_not_follow_each_other(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-1,8-9", 1: "2-3", 10: "4"})
    assert found(root) == {0: [0, 1, 8, 9], 1: [2, 3], 10: [4]}


def test_processors_that_are_offline_are_no_part(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"sys/devices/system/cpu/online": "0-2,5"})
    assert found(root) == {0: [0, 1, 2], 1: [5]}


def test_a_set_of_processors_leaves_its_nodes_alone(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7"})
    assert found(root, {2, 4, 5}) == {0: [2], 1: [4, 5]}
    assert found(root, {6}) == {1: [6]}


def test_memory_that_a_set_leaves_out_is_no_node(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7"}, {"proc/self/status": "Mems_allowed_list:\t1"})
    assert found(root) == {1: [*range(8)]}


def test_processors_without_memory_count_for_the_nearest_node(tmp_path: Path) -> None:
    distances = {0: "10 20 30", 2: "20 10 12", 3: "30 12 10"}
    files = {f"sys/devices/system/node/node{n}/distance": distances[n] for n in distances}
    root = machine(tmp_path, {0: "0-1", 2: "2-3", 3: "4-5"}, files, memory="0,2")
    assert found(root) == {0: [0, 1], 2: [2, 3, 4, 5]}


def test_memory_without_processors_is_no_node(tmp_path: Path) -> None:
    assert found(machine(tmp_path, {0: "0-3", 1: ""}, memory="0-1")) == {0: [0, 1, 2, 3]}


def test_one_node_and_a_machine_that_lists_none(tmp_path: Path) -> None:
    assert found(machine(tmp_path / "one", {0: "0-3"})) == {0: [0, 1, 2, 3]}
    assert memory_nodes(tmp_path / "none", ALL) == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a system without such sets")
def test_processors_of_this_machine_are_those_that_this_process_may_use() -> None:
    processors = [each for node in memory_nodes() for each in node.processors]
    assert len(processors) == len({*processors})
    assert {*processors} <= os.sched_getaffinity(0)
