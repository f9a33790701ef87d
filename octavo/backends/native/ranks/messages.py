"""The ranks of the native engine: how the first one's sizes and choices reach the others.

Steps cross in the memory of the ranks (csrc/runtime/ranks.h); what is rare is a message. All ranks
must take that memory in one order, so the first one sends a message before it does the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.base import BackendEndedError, StepSize
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.kernel_choice import Choice


class _Reserve(Struct, frozen=True, tag=True):
    size: StepSize


class _MakeCache(Struct, frozen=True, tag=True):
    num_blocks: int


class _UseKernels(Struct, frozen=True, tag=True):
    format: str
    choice: Choice


class _PutRows(Struct, frozen=True, tag=True):
    path: str
    piece: int
    first: int
    count: int
    place: int


class _Meet(Struct, frozen=True, tag=True):
    """A message that a rank takes when it has carried out those before it."""


_Message = _Reserve | _MakeCache | _UseKernels | _PutRows | _Meet
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Message).decode


class LeadingBackend(NativeBackend):
    """The backend of the first rank, whose steps the others compute with it.

    `reserve` is what it calls first once all have loaded their weights and recorded all programs.
    """

    def __init__(self, options: NativeOptions | None = None) -> None:
        self._is_followed = False
        super().__init__(options)

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        self._is_followed = True
        if self._calibration is not None:
            self._take_choices()  # those that were known before
        self._send(_Reserve(size))
        return super().reserve(size, spare_bytes)

    def make_cache(self, num_blocks: int) -> None:
        self._send(_MakeCache(num_blocks))
        super().make_cache(num_blocks)

    def _take_choices(self) -> None:
        if self._is_followed:
            super()._take_choices()

    def use_kernels(self, format_: str, choice: Choice) -> None:
        self._send(_UseKernels(format_, choice))
        super().use_kernels(format_, choice)

    def read_rows(self, path: str, piece: int, first: int, count: int) -> NDArray[np.float32]:
        """Return some rows of a weight, of which each rank has its share."""
        assert self.ranks is not None
        matrix = self.piece(path, piece)
        lent = self.ranks.lend_rows(count, matrix.inputs)
        self._send(_PutRows(path, piece, first, count, lent.place))
        self.ranks.put_rows(matrix, first, count, lent.place)
        self._send(_Meet())
        return lent.values

    def _send(self, message: _Message) -> None:
        self._send_bytes(_encode(message))

    def _send_bytes(self, message: bytes) -> None:
        assert self.ranks is not None
        try:
            self.ranks.send(message)
        except RuntimeError as error:
            raise BackendEndedError(str(error)) from error


def follow(backend: NativeBackend, name: str) -> None:
    """Compute this rank's share of all steps; raise RuntimeError when the ranks end.

    What this rank, of this name, cannot do ends the others, with the reason.
    """
    ranks = backend.ranks
    assert ranks is not None
    try:
        while True:
            carry_out(ranks.follow(backend.native_programs), backend)
    except Exception as error:
        ranks.end(f"{name} has ended: {str(error) or type(error).__name__}")
        raise


def carry_out(message: bytes, backend: NativeBackend) -> int | None:
    """Handle a message of the first process; return the bytes that this has taken.

    None: it takes none, and may come while steps are computed.
    """
    match _decode(message):
        case _Reserve(size):
            return backend.reserve(size, 0)
        case _MakeCache(num_blocks):
            backend.make_cache(num_blocks)
            return 0
        case _UseKernels(format_, choice):
            backend.use_kernels(format_, choice)
        case _PutRows(path, piece, first, count, place):
            assert backend.ranks is not None, "stages have no adapters"
            backend.ranks.put_rows(backend.piece(path, piece), first, count, place)
        case _Meet():
            pass
    return None


def answer_until_end(
    link: _native.FrameLink, receive: Callable[[], bytes], backend: NativeBackend
) -> None:
    """Carry out the messages of the first process, and answer those that want it, until it ends.

    `receive` computes all steps before a message. Why it fails is sent before it is raised.
    """
    try:
        while True:
            answer = carry_out(receive(), backend)
            if answer is not None:
                link.send(str(answer).encode())
    except ConnectionError:
        return
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            link.fail(str(error) or type(error).__name__)
        raise
