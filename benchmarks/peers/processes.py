"""Trees of processes: their signals, and the memory they hold.

Engines start processes of their own, some in sessions of their own; a measurement covers the whole
tree.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def tree(root: int) -> list[int]:
    """Return a process and all its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                # Behind the name, which may hold anything: state, parent.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has just ended
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for number in found:
        found.extend(children.get(number, ()))
    return found


def stop(root: int) -> None:
    """Stop the processes: some engines' threads spin while they have nothing to do."""
    _send(tree(root), signal.SIGSTOP)


def go_on(root: int) -> None:
    """Continue the stopped processes."""
    _send(tree(root), signal.SIGCONT)


def end(process: subprocess.Popen[Any], patience_s: float = 0.0) -> None:
    """End all processes and wait for the first, which gets time to end by itself."""
    members = tree(process.pid)
    if patience_s:
        _send(members, signal.SIGCONT)
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            print(f"process {process.pid} did not end by itself and is killed", file=sys.stderr)
    _send(members, signal.SIGKILL)
    process.wait()


def memory_mb(root: int) -> tuple[float, float]:
    """Return the megabytes (10^6) of the tree, each page shared among its users.

    A page counts once for every process that maps it.
    """
    shared = resident = 0
    for number in tree(root):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        fields = {key: value for key, _, value in (line.partition(":") for line in lines)}
        shared += int(fields.get("Pss", "0").split()[0])
        resident += int(fields.get("Rss", "0").split()[0])
    return shared * 1024 / 1e6, resident * 1024 / 1e6


def _send(members: list[int], number: signal.Signals) -> None:
    for each in members:
        try:
            os.kill(each, number)
        except ProcessLookupError:
            continue
