"""The frames of jobs and answers: four bytes of length, then msgpack."""

from __future__ import annotations

import socket
import struct
import time
from typing import BinaryIO

import msgspec

from octavo.workers.jobs import Answer, BodyJob, Job

LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 256 << 20
_RECEIVED_BYTES = 1 << 18  # at once

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def pieces(job: Job) -> tuple[bytes, ...]:
    """Return the frame of a job in pieces; a large body is one of them, and is not copied."""
    if not isinstance(job, BodyJob):
        return (encode(job),)
    head = encode(msgspec.structs.replace(job, body=b""))
    # The end is the empty body in msgpack: c4 and a length of 0. c6 has a length of four bytes.
    assert head.endswith(b"\xc4\x00")
    return head[:-2] + b"\xc6" + len(job.body).to_bytes(4, "big"), job.body


def read_frame(source: BinaryIO) -> bytes | None:
    """Read the next frame; return None at the end of the stream."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return source.read(length)


def write_frame(sink: BinaryIO, frame: bytes) -> None:
    """Write a frame and flush it."""
    sink.write(LENGTH.pack(len(frame)))
    sink.write(frame)
    sink.flush()


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
