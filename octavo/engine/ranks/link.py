"""The connection between an engine and one of its further ranks, while that starts.

Frames are four bytes of length and msgpack. Later its end is the end of the other process, which
says before why, if it can.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import Raw, Struct

from octavo.distributed.frames import FrameError, Frames
from octavo.wire.message_types import WireError, pack, unpack

MOST_FRAME_BYTES = 16 << 20
MOST_REASON = 4096  # characters
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
    who: str = ""  # which process cannot, if it is a further one of the one that answers
    # Of a process on another machine: the bytes of a page of its KV cache, and of its free memory.
    page_bytes: int = 0
    free_bytes: int = 0


class Sign(Struct, frozen=True):
    """A sign of life of a process; or its last one, which says why it ends."""

    ended: str = ""  # which process has ended, and why
    is_final: bool = False  # another one in its place would end in the same way


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

    def wait_for_end(self) -> str:
        """Return when the other process has ended; what it has said of that, if anything."""
        with contextlib.suppress(WireError, FrameError):  # what comes is no sign
            while (sign := self.receive(Sign)) is not None:
                if sign.ended:
                    return sign.ended
        return ""


def say_end(ended: str, links: Iterable[Link]) -> None:
    """Send the processes at other ends which process has ended, and why."""
    for link in links:
        with contextlib.suppress(OSError):  # it has ended too
            link.send(Sign(ended[:MOST_REASON]))
