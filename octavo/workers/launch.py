"""The start of a process that answers jobs on a socket."""

from __future__ import annotations

import socket
import subprocess
import sys

from octavo import env
from octavo.workers.jobs import Duty

PROGRAM = "octavo.workers.program"


def launch(
    seconds: float, num_bytes: int, duty: Duty, *arguments: str
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a worker, without waiting for it; return its process and our end of the socket.

    Its standard error is to be read only if it does not start: nothing comes later.
    """
    limits = f"{seconds:g}", str(num_bytes)
    # -P: a model's directory may be the current one, and must not provide modules.
    command = [sys.executable, "-P", "-m", PROGRAM, *limits, duty, *arguments]
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env.environment_without_secrets(),
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent to handle
        )
    return process, ours
