"""SageMaker's stateful sessions, of which a key has a limited number for a limited time.

A session is a name that SageMaker's routing keeps on one instance. It holds nothing here: prefixes
are cached by their content, so that a conversation finds its own where it is routed to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from octavo.transport.errors import ApiError, invalid

HEADER = "x-amzn-sagemaker-session-id"
MAX_SESSIONS = 1024  # of a key
SECONDS = 1200.0
_NAME_BYTES = 16


class Sessions:
    """The open sessions of all keys; each ends after a fixed time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: dict[str, dict[str, float]] = {}  # by owner and name, the earliest first

    def create(self, owner: str) -> str:
        """Return the name of a new session; refuse one too many of a key."""
        sessions = self._open_of(owner)
        if len(sessions) >= MAX_SESSIONS:
            raise ApiError(
                429,
                f"{MAX_SESSIONS} sessions are open, which is the limit; close some, or wait until "
                f"they end: each does after {SECONDS:g} s",
                code="too_many_sessions",
            )
        name = secrets.token_hex(_NAME_BYTES)
        sessions[name] = self._clock() + SECONDS
        return name

    def check(self, owner: str, name: str) -> None:
        """Raise ApiError unless a session of this key is open."""
        if name not in self._open_of(owner):
            raise invalid(
                f"session not found: {name[:64]!r} was closed, has ended, or is another key's; "
                'begin one with the body {"requestType": "NEW_SESSION"}',
                HEADER,
                "session_not_found",
            )

    def close(self, owner: str, name: str) -> None:
        """End a session; raise ApiError if it is not open."""
        self.check(owner, name)
        del self._ends[owner][name]

    def _open_of(self, owner: str) -> dict[str, float]:
        """Return the sessions of a key, without those that have ended."""
        sessions, now = self._ends.setdefault(owner, {}), self._clock()
        for name, end in list(sessions.items()):
            if end > now:
                break
            del sessions[name]
        return sessions
