"""Pauses the garbage collector during imports and loading, whose objects all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector in a block, and restore it at the end.

    Imports and loading make some hundred thousand objects. Collections in between would free
    nothing, and take a tenth of the start. All objects count as old afterwards, or the first
    collection would look through those that were just made.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # what another has frozen stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
