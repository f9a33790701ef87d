"""Puts the search for garbage off while much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """For imports and for loading: what they make, a few hundred thousand objects, is all kept.

    To look through it again and again for garbage would take a tenth of a start.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
