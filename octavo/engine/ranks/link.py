"""The connection between an engine and one of its further ranks, while that starts.

Frames are four bytes of length and msgpack. Later the connection says one thing: its end is the end
of the other process.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TypeVar

from msgspec import Raw, Struct

from octavo.distributed.frames import Frames
from octavo.wire.message_types import pack, unpack

MOST_FRAME_BYTES = 16 << 20
Message = TypeVar("Message", bound=Struct)


class FileState(Struct, frozen=True):
    """A file of weights as the engine found it."""

    path: str
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Read the state of a file."""
        state = path.stat()
        return cls(str(path.resolve()), state.st_size, state.st_mtime_ns)


class StartRank(Struct, frozen=True):
    """The first message to a rank: what it loads, and how."""

    arguments: Raw  # of type EngineArguments, as the engine has resolved them
    block_size: int
    # Of all models, if they are the same files; those of another machine are compared before.
    files: tuple[FileState, ...] | None
    log_level: int


class Started(Struct, frozen=True):
    """The answer of a rank that has its weights, or the reason why it has not."""

    weight_bytes: int = 0
    failure: str = ""
    # Of a process on another machine: the bytes of a page of its KV cache, and of its free memory.
    page_bytes: int = 0
    free_bytes: int = 0


class Link:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._frames = Frames(connection, MOST_FRAME_BYTES)

    def send(self, message: Struct) -> None:
        """Send a message; raise OSError if the other process has ended."""
        self._frames.send(pack(message))

    def receive(self, kind: type[Message]) -> Message | None:
        """Wait for the next message; return None if the other process has ended."""
        data = self._frames.receive()
        return None if data is None else unpack(data, kind)

    def wait_for_end(self) -> None:
        """Return when the other process has ended; nothing else is sent."""
        while self._frames.read(1) is not None:
            pass
