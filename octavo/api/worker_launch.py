"""The start of a process that answers jobs on a socket, which is its standard input."""

from __future__ import annotations

import socket
import subprocess
import sys

from octavo import env


def launch(module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the program of a module, without waiting for it; return it and our end of the socket.

    Its standard error is to be read only if it does not start: nothing comes later.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            # -P: a model's directory may be the current one, and must not provide modules.
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=env.environment_without_secrets(),
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent to handle
        )
    return process, ours
