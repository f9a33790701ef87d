"""The messages between an engine and its loader, their bounds, and the socket that carries them.

A socket of packets connects the two: a message is one packet, and a file that was read comes with
two descriptors of sealed memory, its content and its table. Either side may be hostile to the
other, so each checks every message, and a packet that is none ends the connection.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

MAX_PACKET_BYTES = 1 << 15
MAX_PATH = 4096  # characters
MAX_TEXT = 4096
MAX_FILE_BYTES = 8 << 30
MAX_HEADER_BYTES = 16 << 20  # of a file, from which its table is made
MAX_TABLE_BYTES = 32 << 20
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME = 512
MAX_DIMENSIONS = 8
MAX_BESIDE = 4  # small files beside one
MAX_NAMES = 4  # of files that are looked for in a directory
MAX_BESIDE_BYTES = 1 << 20  # of each of them
FILE_SECONDS = 50.0  # in which a loader reads a file, or is ended

Natural = Annotated[int, Meta(ge=0, le=2**62)]
Size = Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]
Path = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]
FileName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Code = Annotated[str, Meta(min_length=1, max_length=64)]


class ReadFile(Struct, tag=0, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A request to read a file of tensors, and small JSON files that may lie beside it.

    Where the path is that of a directory, the first of `names` is read that is there.
    """

    number: Natural
    path: Path
    beside: Annotated[tuple[FileName, ...], Meta(max_length=MAX_BESIDE)] = ()
    names: Annotated[tuple[FileName, ...], Meta(max_length=MAX_NAMES)] = ()


class FileRead(Struct, tag=1, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A file that was read; its descriptors are those of its content and of its table."""

    number: Natural
    num_bytes: Size
    table_bytes: Annotated[int, Meta(ge=1, le=MAX_TABLE_BYTES)]


class FileRefused(Struct, tag=2, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The reason why a file was not read."""

    number: Natural
    code: Code
    message: Text


class LoaderEnded(Struct, tag=3, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The front end's word that the loader has ended, with the request that it was answering."""

    reason: Text


class TableEntry(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One tensor of a file."""

    name: Annotated[str, Meta(max_length=MAX_TENSOR_NAME)]
    type: Annotated[str, Meta(max_length=32)]
    shape: Annotated[tuple[Size, ...], Meta(max_length=MAX_DIMENSIONS)]
    offset: Size


class Table(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The tensors of a file, its metadata, and the JSON files that lie beside it.

    The name is that of the file in the directory that was asked for; None if the path was the
    file's own.
    """

    tensors: Annotated[tuple[TableEntry, ...], Meta(max_length=MAX_TENSORS)]
    metadata: dict[str, str]
    beside: dict[FileName, Annotated[bytes, Meta(max_length=MAX_BESIDE_BYTES)]]
    name: FileName | None = None


FromLoader = FileRead | FileRefused | LoaderEnded
Message = ReadFile | FromLoader
Kind = TypeVar("Kind")

_ENCODER = msgspec.msgpack.Encoder()
_READ_FILE = msgspec.msgpack.Decoder(ReadFile)
_FROM_LOADER: msgspec.msgpack.Decoder[FromLoader] = msgspec.msgpack.Decoder(FromLoader)
_TABLE = msgspec.msgpack.Decoder(Table)
_NUM_DESCRIPTORS = 2
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class LoaderProtocolError(ValueError):
    """Bytes or descriptors that are no message."""


def printable(text: str) -> str:
    """Return a text without control characters, and so short that a message can hold it."""
    return _UNPRINTABLE.sub("?", text)[: MAX_TEXT // 2]


def encode(message: Message | Table) -> bytes:
    return _ENCODER.encode(message)


def decode_request(data: bytes) -> ReadFile:
    return _decode(_READ_FILE, data)


def decode_answer(data: bytes) -> FromLoader:
    return _decode(_FROM_LOADER, data)


def decode_table(data: bytes) -> Table:
    return _decode(_TABLE, data)


def _decode(decoder: msgspec.msgpack.Decoder[Kind], data: bytes) -> Kind:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LoaderProtocolError(f"not a message: {error}") from error


def send(connection: socket.socket, message: Message, descriptors: Sequence[int]) -> None:
    """Send a message with descriptors, which stay open here; wait while there is no room."""
    socket.send_fds(connection, [encode(message)], list(descriptors))


def send_now(connection: socket.socket, message: Message) -> None:
    """Send a message; raise BlockingIOError if there is no room for it."""
    connection.send(encode(message), socket.MSG_DONTWAIT)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a packet; return it with its descriptors, or nothing if the other side has ended.

    Raise LoaderProtocolError if either was cut off.
    """
    data, descriptors, flags, _ = socket.recv_fds(
        connection, MAX_PACKET_BYTES, _NUM_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise LoaderProtocolError("a packet has too many bytes or descriptors")
    return data, descriptors


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
