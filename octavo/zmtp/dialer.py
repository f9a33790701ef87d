"""Connects to an endpoint again and again, each time after a longer pause.

A name is looked up in a thread of its own: that may take half a minute where a server of names does
not answer, in which all other connections of the caller's thread would wait.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from octavo.zmtp.endpoint import Place, known_place, looked_up, new_socket

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.1, 5.0


class Dialer:
    """The attempts to connect to one endpoint, none of which waits."""

    def __init__(self, endpoint: str, clock: Callable[[], float]) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._next_try = clock()
        self._pause = FIRST_PAUSE_SECONDS
        self._num_tries = 0
        self._known = known_place(endpoint)
        self._lookup: _Lookup | None = None

    def dial(self) -> socket.socket | None:
        """Return a socket that connects, if it is time, and it is known where to.

        A name may have several addresses; each attempt takes the next one.
        """
        if self._clock() < self._next_try:
            return None
        try:
            places = self._places()
            if places is None:
                return None
            self._num_tries += 1
            return new_socket(places[(self._num_tries - 1) % len(places)])
        except OSError:  # the name is not found, or nothing listens: both may come later
            self.postpone()
            return None

    def _places(self) -> list[Place] | None:
        """Return where the endpoint is; None: that is being looked up."""
        if self._known is not None:
            return [self._known]
        if self._lookup is None:
            self._lookup = _Lookup(self._endpoint)
        lookup = self._lookup
        if not lookup.has_ended.is_set():
            return None
        self._lookup = None
        if not lookup.found:
            raise OSError("the name of its host is not found")
        return lookup.found

    def postpone(self, *, is_long: bool = False) -> None:
        """Let the next attempt come after a pause; the longest one if `is_long`."""
        if is_long:
            self._pause = LAST_PAUSE_SECONDS
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)

    def succeeded(self) -> None:
        """Begin with a short pause again."""
        self._pause = FIRST_PAUSE_SECONDS


class _Lookup:
    """The search for the addresses of a name, of which an endpoint has one at a time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.found: list[Place] = []
        self.has_ended = threading.Event()
        try:
            threading.Thread(target=self._run, name="octavo lookup", daemon=True).start()
        except RuntimeError as error:  # the system allows no more threads
            raise OSError(str(error)) from error

    def _run(self) -> None:
        try:
            self.found = looked_up(self._endpoint)
        except (OSError, UnicodeError):
            pass
        finally:
            self.has_ended.set()
