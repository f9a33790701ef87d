"""Describes how an engine's process ended, and what usually causes that."""

from __future__ import annotations

import signal

_CAUSES = {
    signal.SIGBUS: "a file that it had mapped, such as the model's weights, became shorter or can "
    "no longer be read; restore it, and never write into a model's file while it is in use",
    signal.SIGSYS: "it made a system call that this machine forbids",
    signal.SIGXCPU: "it used more processor time than `ulimit -t` allows",
}


def describe_exit(status: int, num_killed_for_memory: int) -> str:
    """Return the reason as a clause; `status` is the exit code, or minus the signal.

    `num_killed_for_memory` is the number of processes on this machine that the kernel has killed
    for lack of memory since this one was started.
    """
    if status >= 0:
        return f"its process ended with exit code {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"its process was ended by signal {-status}"
    if number is signal.SIGKILL and num_killed_for_memory:
        return (
            "its process was ended by SIGKILL, and the kernel has ended a process because memory "
            "ran out; free some, or lower kv_cache_memory_bytes or max_num_seqs"
        )
    cause = _CAUSES.get(number)
    return f"its process was ended by {number.name}" + (f": {cause}" if cause else "")


def name_of(number: int, epoch: int, model: str) -> str:
    """Return the name of an engine's process in the log: 1.3, or 1.3 of a model among several."""
    return f"{number}.{epoch} of {model}" if model else f"{number}.{epoch}"
