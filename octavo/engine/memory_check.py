"""Compares the memory that was predicted with what a start has really taken."""

from __future__ import annotations

import logging

from octavo.observe.machine import give_back_freed, own_bytes
from octavo.observe.memory_bill import MemoryBill, difference
from octavo.runner.kv_cache import readable

log = logging.getLogger(__name__)


class Scales:
    """Made before the weights are loaded, asked afterwards."""

    def __init__(self, bill: MemoryBill) -> None:
        self._bill = bill
        self._before = own_bytes()

    def weigh(self, measured: int) -> None:
        """Log the comparison with what the backend says that it holds.

        What the process has grown by is told beside it: weights that are used where they lie in
        their file are held, but are not the process's own.
        """
        predicted = self._bill.weights_bytes
        give_back_freed()
        grown = own_bytes() - self._before
        log.info(
            "weights: %s predicted, %s measured (%s); the process grew by %s",
            readable(predicted),
            readable(measured),
            difference(predicted, measured),
            readable(grown),
        )
