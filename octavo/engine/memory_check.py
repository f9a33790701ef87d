"""Compares the predicted memory of the weights with the memory that loading them really took."""

from __future__ import annotations

import logging

from octavo.observe.machine import give_back_freed, own_bytes
from octavo.observe.memory_bill import MemoryBill, difference
from octavo.runner.kv_cache import readable

log = logging.getLogger(__name__)


class MemoryCheck:
    """A comparison that begins when it is made, before the weights are loaded."""

    def __init__(self, bill: MemoryBill) -> None:
        self._bill = bill
        self._before = own_bytes()

    def log_result(self, measured: int) -> None:
        """Log the prediction beside the bytes that the backend holds.

        The growth of the process is logged too. It can be smaller: weights that are used where
        they are mapped from their file are held by the backend, but are not the process's own.
        """
        predicted = self._bill.all_weights_bytes
        give_back_freed()
        grown = own_bytes() - self._before
        log.info(
            "weights: %s predicted, %s measured (%s); the process grew by %s",
            readable(predicted),
            readable(measured),
            difference(predicted, measured),
            readable(grown),
        )
