"""The start of a process that answers jobs on a socket, and the answers that come from there."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import msgspec

from octavo import env
from octavo.text.prompt_worker import LENGTH, MAX_FRAME_BYTES, Answer

_RECEIVED_BYTES = 1 << 18  # at once
_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


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


class AnswerFrames:
    """The answers of one process, put together from what its socket gives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def receive(self, connection: socket.socket) -> None:
        """Take what has arrived; raise ConnectionResetError at the end of the stream."""
        received = connection.recv(_RECEIVED_BYTES)
        if not received:
            raise ConnectionResetError
        self._data += received

    def next(self) -> Answer | None:
        """Return the next answer if all of it is there; raise DecodeError if it is none."""
        data = self._data
        if len(data) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        if end > LENGTH.size + MAX_FRAME_BYTES:
            raise msgspec.DecodeError("the frame is too long")
        if len(data) < end:
            return None
        answer = _decoder.decode(memoryview(data)[LENGTH.size : end])
        del data[:end]
        return answer

    def wait(self, connection: socket.socket, seconds: float) -> Answer:
        """Wait for the next answer; raise OSError if none comes, TimeoutError if it is late."""
        deadline = time.monotonic() + seconds
        while (answer := self.next()) is None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            self.receive(connection)
        return answer
