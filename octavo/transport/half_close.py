"""Shows whether a client that has ended its input still reads its response.

A client that only ends its input sends the same packet as one that closes the connection. A write
shows the difference: a closed connection answers it with a reset, after which the next write fails
and the transport reports the loss. So bytes that change nothing are written one by one: those with
which every response begins or, within a stream, leading zeros of the next chunk's size.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_COMMON = b"HTTP/1.1 "  # of all responses
_PAUSES = (0.02, 0.1, 0.4, 1.0, 4.0, 15.0, 60.0, 120.0)  # seconds after each byte


class Probe:
    """The writes on one connection while a response is due on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        cycle: RequestResponseCycle,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._cycle = cycle
        self._num_common = 0  # bytes of the response's beginning that have been written
        self._pauses = iter(_PAUSES)
        self._timer: asyncio.TimerHandle | None = None
        self._write()

    def stop(self) -> None:
        """Write no more; the response is complete, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        cycle = self._cycle
        if self._transport.is_closing() or cycle.response_complete:
            return
        if not cycle.response_started:
            begin = self._num_common
            self._num_common += 1
            self._transport.write(_COMMON[begin : begin + 1])
            cycle.transport = _Remainder(self._transport, self._num_common)
        elif cycle.chunked_encoding and not self._transport.get_write_buffer_size():
            self._transport.write(b"0")
        pause = next(self._pauses, None)
        if pause is not None:
            self._timer = self._loop.call_later(pause, self._write)


class _Remainder(asyncio.Transport):
    """A transport for a response whose first bytes have been written already."""

    def __init__(self, transport: asyncio.Transport, num_written: int) -> None:
        super().__init__()
        self._transport = transport
        self._num_written = num_written

    def write(self, data: Any) -> None:
        rest, self._num_written = data[self._num_written :], 0
        self._transport.write(rest)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
