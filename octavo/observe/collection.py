"""Keeps the garbage collector from objects that all stay alive: of imports and of loading."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_GC_THRESHOLDS = (10_000, 20, 100)  # between two collections of each generation

_has_frozen = False  # asking `gc` would count all that is frozen, one by one


def freeze() -> None:
    """Keep all objects that are alive now out of later collections."""
    global _has_frozen
    gc.collect()
    gc.freeze()
    _has_frozen = True


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
            if not _has_frozen:  # what is frozen stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def settle_memory() -> None:
    """Keep the objects made so far out of garbage collection, and make collections rare.

    Large blocks are given back when they are freed, since bodies of clients may be large.

    Objects of the start-up stay alive, and need not be traversed while clients wait. By default
    Python collects every 700 objects, which is every few tokens.
    """
    from octavo.observe.heap import give_large_blocks_back  # here: every command imports this file

    freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    give_large_blocks_back()
