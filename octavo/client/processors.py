"""Divides the processors of this machine among engines, so that none computes where another does.

Each engine pins its threads to the first cores that it may use, so without this all engines would
use the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from octavo.observe.machine import ROOT, num_cores
from octavo.observe.memory_nodes import memory_nodes


@contextmanager
def running_on(processors: Sequence[int]) -> Iterator[None]:
    """Let this thread, and a process that it starts, run on these processors; on all if none.

    So the process has no thread that was made before.
    """
    if not processors:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def divided(num_engines: int, root: Path = ROOT) -> list[Sequence[int]]:
    """Return the processors of each engine; none for one engine alone, which may use all."""
    if num_engines == 1:
        return [()]
    _, share = num_cores(root)
    return divide(cores(root), num_engines, share)


def divide(
    whole: Sequence[Sequence[int]], num_engines: int, share: float | None = None
) -> list[Sequence[int]]:
    """Return the processors of each engine, given those of each core, in an order of nearness.

    Where a container limits how many cores run at once, no engine gets more than its part of them.
    With fewer cores than engines, some engines share one.
    """
    parts: list[Sequence[int]] = []
    for index in range(num_engines):
        begin = index * len(whole) // num_engines
        end = max((index + 1) * len(whole) // num_engines, begin + 1)
        if share is not None:
            end = min(end, begin + max(1, int(share / num_engines)))
        parts.append([processor for core in whole[begin:end] for processor in core])
    return parts


def cores(root: Path = ROOT) -> list[list[int]]:
    """Return the processors of each core that this process may use, node of memory by node.

    The processors of a node need not have numbers that follow each other.
    """
    if not hasattr(os, "sched_getaffinity"):  # a system without engines in processes of their own
        return [[processor] for processor in range(os.cpu_count() or 1)]
    found: dict[str, list[int]] = {}
    for processor in sorted(os.sched_getaffinity(0)):
        path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = ""
        found.setdefault(siblings or f"alone {processor}", []).append(processor)
    places = {
        processor: place
        for place, node in enumerate(memory_nodes(root))
        for processor in node.processors
    }
    return sorted(found.values(), key=lambda core: places.get(core[0], len(places)))
