"""The error for an adapter that cannot be copied."""

from __future__ import annotations

MISSING, UNREADABLE, NOT_AN_ADAPTER = "missing", "unreadable", "not_an_adapter"
TOO_LARGE, CHANGED, NO_ROOM = "too_large", "changed", "no_room"
PASSING = (CHANGED, NO_ROOM)  # what may be otherwise when it is tried again


class AdapterFileError(Exception):
    """The reason why an adapter's files were not copied, with a code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
