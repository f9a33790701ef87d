"""Processes of `octavo` that a benchmark starts with `--port 0`, and their ports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.env import child_environment

_READY = re.compile(r" at http://[\d.]+:(\d+)")


def port_of(process: subprocess.Popen[str]) -> int:
    """Wait until a server says on its standard output that it is ready; return its port."""
    assert process.stdout is not None
    for line in process.stdout:
        found = _READY.search(line)
        if found is not None:
            return int(found[1])
    raise AssertionError("the server has not started")


@contextmanager
def running(
    *words: str, log: int, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run a command of `octavo`, whose log goes to a descriptor, and kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "octavo", *words],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=child_environment(environment),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()  # which closes the pipe too
