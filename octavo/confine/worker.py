"""The limits of a process that works on what clients send: memory, files, network, and its end."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from octavo.confine.process import confine, give_up_privileges


def confine_worker(num_bytes: int) -> None:
    """Limit this process to so much more memory, and make it the first to end without any.

    The server's log and `octavo doctor` say where the kernel cannot refuse it files and network.
    """
    limit_memory(num_bytes, is_final=True)
    with contextlib.suppress(OSError):  # not every container allows it
        Path("/proc/self/oom_score_adj").write_text("1000")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # a stack printed at a crash could hold a prompt
    os.close(nothing)
    give_up_privileges()
    confine(may_read=False)


def limit_memory(num_bytes: int, *, is_final: bool) -> None:
    """Limit this process's memory to so much more than it has, or to the limit it came with."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + num_bytes
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit if is_final else most))
