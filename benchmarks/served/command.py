"""The port of an `octavo serve` that a benchmark has started with `--port 0`."""

from __future__ import annotations

import re
import subprocess

_READY = re.compile(r" at http://[\d.]+:(\d+)")


def port_of(process: subprocess.Popen[str]) -> int:
    """Wait until a server says on its standard output that it is ready; return its port."""
    assert process.stdout is not None
    for line in process.stdout:
        found = _READY.search(line)
        if found is not None:
            return int(found[1])
    raise AssertionError("the server has not started")
