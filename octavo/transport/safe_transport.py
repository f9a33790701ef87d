"""A connection's transport: safe after its end, and gentle at it.

uvloop closes a transport whose write fails, reports that one pass of the event loop later, and
raises for every use in between. And closing a connection whose client still sends resets it, which
may destroy the response before it is read. So the last response ends the output alone, and what
still arrives is dropped for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_SECONDS = 5.0


def _never() -> bool:
    return False


class SafeTransport(asyncio.Transport):
    """A transport around the event loop's own one."""

    def __init__(
        self,
        inner: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        may_still_send: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._may_still_send = may_still_send
        self._is_ended = False
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: Any) -> None:
        if not self.is_closing():
            self._inner.write(data)

    def is_closing(self) -> bool:
        """Return whether nothing more is written."""
        return self._is_ended or self._inner.is_closing()

    def close(self) -> None:
        """Close the connection once its client has read what was written."""
        if self.is_closing():
            return
        self._is_ended = True
        if not self._may_still_send():
            self._inner.close()
            return
        self._timer = self._loop.call_later(LINGER_SECONDS, self._inner.close)
        if self._inner.can_write_eof():  # not under TLS
            self._inner.write_eof()
        self._inner.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_ended = True
        self._inner.abort()

    def stop_lingering(self) -> None:
        """Close the connection now if only its client's output is awaited."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._inner.close()

    def lost(self) -> None:
        """Stop the timer; the connection does not exist any more."""
        self._is_ended = True
        self._may_still_send = _never  # no circle with the protocol, whose method it was
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not (self._is_held or self.is_closing()):
            self._inner.resume_reading()

    def hold_reading(self) -> None:
        """Read nothing more until `release_reading`."""
        self._is_held = True
        if not self._inner.is_closing():
            self._inner.pause_reading()

    def release_reading(self, *, is_paused: bool) -> None:
        """End what `hold_reading` began; read on unless reading is paused for another reason."""
        self._is_held = False
        if not (is_paused or self._inner.is_closing()):
            self._inner.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that are not written yet."""
        return 0 if self._inner.is_closing() else self._inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the inner transport knows about the connection."""
        return self._inner.get_extra_info(name, default)
