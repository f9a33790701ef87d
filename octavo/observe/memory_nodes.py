"""Reads which nodes of memory (NUMA) this process may use, and the processors near them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo.observe.machine import ROOT

_NODES = "sys/devices/system/node"
_PROCESSORS = "sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A node with memory that this process may use, and the processors nearest to it."""

    number: int
    cores: tuple[tuple[int, ...], ...]  # the processors of each core

    @property
    def processors(self) -> list[int]:
        """The processors of all cores."""
        return [processor for core in self.cores for processor in core]


def memory_nodes(root: Path = ROOT, allowed: Iterable[int] | None = None) -> list[MemoryNode]:
    """Return the nodes that have memory and processors for this process; none if unknown.

    The processors of a node without memory count for the nearest node that has some. `allowed` has
    the processors that this process may use, if they are not to be asked for.
    """
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    usable = set(allowed)
    online = _numbers(root / _PROCESSORS / "online")
    if online:
        usable &= online
    paths = {
        int(path.name.removeprefix("node")): path
        for path in (root / _NODES).glob("node[0-9]*")
        if path.name.removeprefix("node").isdigit()
    }
    with_memory = {*paths} & (_numbers(root / _NODES / "has_memory") or {*paths})
    with_memory &= _allowed_nodes(root) or {*paths}
    processors: dict[int, set[int]] = {number: set() for number in with_memory}
    for number in sorted(paths):
        nearest = _nearest(paths, number, with_memory)
        if nearest is not None:
            processors[nearest] |= _numbers(paths[number] / "cpulist") & usable
    return [
        MemoryNode(number, _cores(root, processors[number]))
        for number in sorted(processors)
        if processors[number]
    ]


def _nearest(paths: dict[int, Path], number: int, with_memory: set[int]) -> int | None:
    """Return a node itself if it has memory, or else the one with memory that is nearest to it."""
    if number in with_memory:
        return number
    words = _text(paths[number] / "distance").split()
    # The distances are those to all nodes that are online, in their order.
    distances = dict(zip(sorted(paths), map(int, words), strict=False))
    return min(with_memory, key=lambda each: (distances.get(each, 255), each), default=None)


def _cores(root: Path, processors: set[int]) -> tuple[tuple[int, ...], ...]:
    found: dict[str, list[int]] = {}
    for each in sorted(processors):
        siblings = _text(root / _PROCESSORS / f"cpu{each}/topology/thread_siblings_list").strip()
        found.setdefault(siblings or f"alone {each}", []).append(each)
    return tuple(map(tuple, found.values()))


def _allowed_nodes(root: Path) -> set[int]:
    """Return the nodes whose memory a set of processors (cpuset) leaves this process; none: all."""
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            return _parsed(value)
    return set()


def _numbers(path: Path) -> set[int]:
    return _parsed(_text(path))


def _parsed(text: str) -> set[int]:
    """Return the numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for word in filter(None, text.strip().split(",")):
        first, _, last = word.partition("-")
        found |= {*range(int(first), int(last or first) + 1)}
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
