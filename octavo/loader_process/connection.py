"""An engine's connection to its loader: requests out, files in sealed memory back.

A thread receives what the loader sends, checks it, maps it, and passes it on; nothing of it is
believed. The engine's own thread sends requests and takes the errors that have come. An answer that
breaks the protocol ends the connection: the engine goes on without a loader.

While a file is passed on, which may take minutes, the answers behind it lie unread. No request is
given up meanwhile, and the time of the oldest begins again afterwards.
"""

from __future__ import annotations

import logging
import mmap
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from octavo.loader.checkpoint import Checkpoint, TensorInfo, check_layout
from octavo.loader.errors import CheckpointError
from octavo.loader.gguf.types import TENSOR_TYPES
from octavo.loader.mapped_file import MappedFile
from octavo.loader.metadata import Metadata
from octavo.loader.safetensors import TYPES
from octavo.loader_process.messages import (
    FILE_SECONDS,
    MAX_PACKET_BYTES,
    FileRead,
    FileRefused,
    LoaderEnded,
    LoaderProtocolError,
    ReadFile,
    Table,
    TableEntry,
    close_all,
    decode_answer,
    decode_table,
    encode,
    printable,
    receive,
    send_now,
)
from octavo.loader_process.sealed import NotSealedError, check_sealed

log = logging.getLogger(__name__)

_TYPES = {**{kind.name: kind for kind in TENSOR_TYPES.values()}, **TYPES}
MAX_IN_FLIGHT = 16
WAIT_SECONDS = FILE_SECONDS + 5.0  # for the oldest request, after which it gets no answer
NO_LOADER, TOO_MANY, LOADER_ENDED, TIMED_OUT = "no_loader", "too_many", "loader_ended", "timed_out"
TOO_LARGE, NO_MEMORY = "too_large", "no_memory"


class FileError(Exception):
    """The reason why there is no file, with a code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TensorFile(NamedTuple):
    """A file of tensors, which are views of sealed memory; it is kept as long as one of them."""

    checkpoint: Checkpoint
    beside: Mapping[str, bytes]  # JSON files beside it that were asked for and exist
    num_bytes: int


Then = Callable[[TensorFile], object]  # called in the thread that receives


class _Asked(NamedTuple):
    """A request without an answer."""

    path: str
    then: Then


class LoaderConnection:
    """The engine's end; all but the receiving belongs to the engine's own thread."""

    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Lock()
        # The requests without an answer, oldest first: the loader reads one at a time.
        self._in_flight: dict[int, _Asked] = {}
        self._until = 0.0  # when the oldest is given up
        self._is_passing_on = False  # answers may lie unread: nothing is given up
        self._errors: deque[tuple[int, FileError]] = deque()
        self._next_number = 0
        self._why_closed: str | None = None
        self._thread = threading.Thread(target=self._receive_all, name="octavo files", daemon=True)
        self._thread.start()

    @property
    def num_in_flight(self) -> int:
        """The number of requests without an answer, or with an error that has not been taken."""
        return len(self._in_flight) + len(self._errors)

    def request(
        self, path: str, then: Then, beside: Sequence[str] = (), names: Sequence[str] = ()
    ) -> int:
        """Ask for a file, or for one of these names in a directory; return the request's number.

        `then` gets the file, in the thread that receives it: the next one waits meanwhile. Raise
        FileError if it cannot be asked for.
        """
        number = self._next_number
        message = ReadFile(number, path, tuple(beside), tuple(names))
        if len(encode(message)) > MAX_PACKET_BYTES:
            raise FileError(TOO_LARGE, "the path is too long")
        with self._lock:
            if self._why_closed is not None:
                raise FileError(NO_LOADER, self._why_closed)
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                raise FileError(TOO_MANY, f"{MAX_IN_FLIGHT} files are being loaded already")
            self._next_number += 1
            if not self._in_flight:
                self._until = self._clock() + WAIT_SECONDS
            self._in_flight[number] = _Asked(path, then)
        try:
            send_now(self._connection, message)
        except OSError as error:
            with self._lock:
                self._in_flight.pop(number, None)
            code = TOO_MANY if isinstance(error, BlockingIOError) else NO_LOADER
            raise FileError(code, f"the loader cannot be reached: {error.strerror}") from None
        return number

    def take(self) -> list[tuple[int, FileError]]:
        """Return the errors that have come, and one for a request that was read too long."""
        with self._lock:
            is_over = not self._is_passing_on and self._until <= self._clock()
            if self._in_flight and is_over:
                self._fail_oldest(TIMED_OUT, f"no answer for {WAIT_SECONDS:g} s")
            taken = list(self._errors)
            self._errors.clear()
        return taken

    def close(self) -> None:
        """End the connection, and with it the loader; wait for the thread."""
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    # the thread that receives

    def _receive_all(self) -> None:
        why = "the loader has ended, and there will be no other in this engine's life"
        try:
            while (packet := receive(self._connection))[0]:
                self._take_in(*packet)
        except (LoaderProtocolError, NotSealedError, CheckpointError) as error:
            why = f"the loader broke the protocol: {printable(str(error))}"
            log.error("%s; nothing more is loaded", why)
        except OSError as error:
            why = f"the loader cannot be reached: {error.strerror}"
        except BaseException as error:  # of this process, as a lack of memory
            why = f"a file could not be taken over: {type(error).__name__}: {error}"
            log.exception("nothing more is loaded")
        with self._lock:
            self._why_closed = why
            while self._in_flight:
                self._fail_oldest(LOADER_ENDED, why)
        self._connection.close()

    def _take_in(self, data: bytes, descriptors: list[int]) -> None:
        """Take one packet; close its descriptors."""
        try:
            message = decode_answer(data)
            if len(descriptors) != (2 if isinstance(message, FileRead) else 0):
                raise LoaderProtocolError(f"{len(descriptors)} descriptors came with {message}")
            match message:
                case LoaderEnded(reason):
                    with self._lock:  # its successor reads what it had not begun to read
                        if self._in_flight:
                            why = f"the loader ended meanwhile: {reason}"
                            self._fail_oldest(LOADER_ENDED, why)
                case FileRefused(number, code, text):
                    with self._lock:
                        self._end(number, FileError(code, printable(text)))
                case FileRead(number):
                    self._pass_on(number, message, descriptors)
        finally:
            close_all(descriptors)

    def _pass_on(self, number: int, message: FileRead, descriptors: list[int]) -> None:
        """Map a file that was read, and pass it on if it is still wanted."""
        with self._lock:
            asked = self._in_flight.get(number)
        if asked is None:
            return
        answer = _opened(Path(asked.path), message, descriptors)
        with self._lock:
            was_open = self._end(number, answer if isinstance(answer, FileError) else None)
            if not was_open or isinstance(answer, FileError):
                return
            self._is_passing_on = True
        try:
            asked.then(answer)
        finally:
            with self._lock:
                self._is_passing_on = False
                self._until = self._clock() + WAIT_SECONDS

    def _end(self, number: int, error: FileError | None) -> bool:
        """End a request; return False if it has ended: its loader may have, or its time."""
        is_oldest = number == next(iter(self._in_flight), None)
        was_open = self._in_flight.pop(number, None) is not None
        if was_open and error is not None:
            self._errors.append((number, error))
        if is_oldest:
            self._until = self._clock() + WAIT_SECONDS  # for the next one
        return was_open

    def _fail_oldest(self, code: str, why: str) -> None:
        self._end(next(iter(self._in_flight)), FileError(code, printable(why)))


def _opened(path: Path, message: FileRead, descriptors: list[int]) -> TensorFile | FileError:
    try:
        return open_sealed(path, message, *descriptors)
    except (MemoryError, OSError) as error:
        return FileError(NO_MEMORY, f"there is no memory to map the file: {error}")


def open_sealed(path: Path, message: FileRead, content: int, table: int) -> TensorFile:
    """Check and map what a loader has passed; raise an error if any of it is wrong."""
    check_sealed(content, message.num_bytes)
    check_sealed(table, message.table_bytes)
    with mmap.mmap(table, message.table_bytes, access=mmap.ACCESS_READ) as mapped:
        described = decode_table(mapped[:])
    path = path / described.name if described.name else path
    file = MappedFile.of_descriptor(path, content)
    tensors = _tensors(described, file)
    metadata = Metadata.of_strings(path, described.metadata)
    checkpoint = Checkpoint(path, tensors, metadata)
    return TensorFile(checkpoint, described.beside, file.num_bytes)


def _tensors(described: Table, file: MappedFile) -> dict[str, TensorInfo]:
    """Return the tensors of a table, each of a known type and inside the file."""
    tensors = {entry.name: _info(entry, file) for entry in described.tensors}
    if len(tensors) != len(described.tensors):
        raise LoaderProtocolError("a table has two tensors of one name")
    check_layout(tensors.values(), data_start=0, gaps_allowed=True)
    return tensors


def _info(entry: TableEntry, file: MappedFile) -> TensorInfo:
    kind = _TYPES.get(entry.type)
    if kind is None:
        raise LoaderProtocolError("a table has a tensor of an unknown type")
    try:
        num_bytes = kind.num_bytes(entry.shape)
    except ValueError as error:
        raise LoaderProtocolError(f"a table has an impossible tensor: {error}") from None
    return TensorInfo(entry.name, entry.shape, kind, file, entry.offset, num_bytes)
