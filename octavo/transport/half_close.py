"""Shows whether a client that has ended its input still reads its response.

A client that only ends its input sends the same packet as one that closes the connection. A write
shows the difference: a closed connection answers it with a reset, after which the next write fails
and the transport reports the loss. So bytes that change nothing are written one by one: those with
which every response begins or, within a stream, leading zeros of the next chunk's size.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.transport.response import Response

_COMMON = b"HTTP/1.1 "  # of all responses
_PAUSES = (0.02, 0.1, 0.4, 1.0, 4.0, 15.0, 60.0, 120.0)  # seconds after each byte


class Probe:
    """The writes on one connection while a response is due on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        response: Response,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._response = response
        self._pauses = iter(_PAUSES)
        self._timer: asyncio.TimerHandle | None = None
        self._write()

    def stop(self) -> None:
        """Write no more; the response is complete, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        response = self._response
        if self._transport.is_closing() or response.complete:
            return
        if not response.started:
            begin = response.num_ahead
            response.num_ahead = min(begin + 1, len(_COMMON))
            self._transport.write(_COMMON[begin : begin + 1])
        elif response.is_chunked and not self._transport.get_write_buffer_size():
            self._transport.write(b"0")
        pause = next(self._pauses, None)
        if pause is not None:
            self._timer = self._loop.call_later(pause, self._write)
