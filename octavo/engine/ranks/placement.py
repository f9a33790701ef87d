"""Divides the nodes of memory (NUMA) among ranks, and binds a process to its part.

The threads of a rank run on the processors of its nodes, and what it allocates lies there while
there is room: its weights are then near the cores that read them.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import platform
from collections.abc import Sequence
from typing import NamedTuple

from octavo.observe.machine import num_cores
from octavo.observe.memory_nodes import MemoryNode, memory_nodes

log = logging.getLogger(__name__)

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
# Both fall back to other nodes where these have no room; the second one, for several, is of 5.15.
_PREFERRED, _PREFERRED_MANY = 1, 5
_MOST_NODES = 1024


class Share(NamedTuple):
    """The processors and the nodes of one rank; none: it is bound to nothing."""

    processors: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    threads: int = 0  # by default, which all ranks have alike; 0: a part of all cores

    @property
    def words(self) -> list[str]:
        """The words with which the program of a rank is started."""
        if not self.processors:
            return []
        lists = ",".join(map(str, self.processors)), ",".join(map(str, self.nodes))
        return ["--processors", lists[0], "--nodes", lists[1], "--threads", str(self.threads)]


def shares_of_ranks(num_ranks: int) -> list[Share]:
    """Return the share of each rank on this machine, by what this process may use."""
    return divided(memory_nodes(), num_ranks, num_cores()[1])


def divided(nodes: Sequence[MemoryNode], num_ranks: int, quota: float | None = None) -> list[Share]:
    """Return the share of each rank: a part of one node, or some whole nodes.

    On a machine with one node, or where a rank would have no core, no rank is bound. `quota` is a
    container's limit of cores that run at once.
    """
    parts: list[tuple[list[tuple[int, ...]], tuple[int, ...]]] = []
    for rank in range(num_ranks):
        first = rank * len(nodes) // num_ranks
        end = max((rank + 1) * len(nodes) // num_ranks, first + 1)
        cores = [core for node in nodes[first:end] for core in node.cores]
        others = [each for each in range(num_ranks) if each * len(nodes) // num_ranks == first]
        if len(others) > 1:  # several ranks have one node
            index = others.index(rank)
            cores = cores[
                index * len(cores) // len(others) : (index + 1) * len(cores) // len(others)
            ]
        parts.append((cores, tuple(node.number for node in nodes[first:end])))
    if len(nodes) < 2 or not all(cores for cores, _ in parts):
        return [Share()] * num_ranks
    threads = min(len(cores) for cores, _ in parts)
    if quota is not None:
        threads = max(1, min(threads, int(quota / num_ranks)))
    return [
        Share(tuple(each for core in cores for each in core), numbers, threads)
        for cores, numbers in parts
    ]


def bind(share: Share, name: str) -> None:
    """Bind this thread, and those that it starts from now on, to a share."""
    if not share.processors:
        return
    nodes = ", ".join(map(str, share.nodes))
    try:
        os.sched_setaffinity(0, share.processors)
    except OSError as error:
        log.warning("%s is not bound to the processors of nodes %s: %s", name, nodes, error)
        return
    try:
        _prefer(share.nodes)
    except OSError as error:  # as in a container without CAP_SYS_NICE
        log.info(
            "%s runs on the processors of nodes %s; the system sets no rule for its memory (%s), "
            "so that this lies at the processor that writes it first",
            *(name, nodes, error.strerror),
        )
        return
    log.info("%s runs on the processors, and in the memory, of nodes %s", name, nodes)


def _prefer(nodes: Sequence[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return  # a page then lies at the processor that writes it first, as by default
    mask = (ctypes.c_ulong * (_MOST_NODES // 64))()
    for each in nodes:
        mask[each // 64] |= 1 << (each % 64)
    mode = _PREFERRED if len(nodes) == 1 else _PREFERRED_MANY
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(
        ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(_MOST_NODES + 1)
    )
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def add_words(parser: argparse.ArgumentParser) -> None:
    """Let a rank's program take the words of its share."""
    for name in ("--processors", "--nodes"):
        parser.add_argument(name, type=_listed, default=())
    parser.add_argument("--threads", type=int, default=0)


def _listed(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
