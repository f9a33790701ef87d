"""Names what did not fit when the system refuses memory while an engine starts."""

from __future__ import annotations

import errno

from octavo.observe.machine import memory
from octavo.resolve import free_text


def is_shortage(error: BaseException) -> bool:
    """Return whether an error means that the system refused memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # The loader of shared objects has no error of its own for it.
    is_unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    return is_unmapped or isinstance(error, MemoryError)


def describe_shortage(purpose: str, error: BaseException) -> str:
    """Return the message: what the memory was for, how much is left, and what limits it."""
    reason = f" ({error})" if str(error) else ""
    found = memory()
    return (
        f"there is not enough memory to {purpose}{reason}: {free_text(found)}; "
        f"{found.remedy}, or take a smaller model"
    )
