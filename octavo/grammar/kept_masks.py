"""The masks that were used last, by what determines them."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from octavo.grammar.protocol import Words

MAX_BYTES = 16 << 20  # of all of them

MaskKey = tuple[object, ...]


class KeptMasks:
    """Masks that need not be computed again; threads share them."""

    def __init__(self, num_words: int) -> None:
        self._most = max(1, MAX_BYTES // (4 * num_words))
        self._lock = Lock()
        self._kept: OrderedDict[MaskKey, Words] = OrderedDict()

    def read(self, key: MaskKey, row: Words) -> bool:
        """Write the mask of this key, if there is one; return whether there is."""
        with self._lock:
            mask = self._kept.get(key)
            if mask is None:
                return False
            self._kept.move_to_end(key)
        row[:] = mask
        return True

    def keep(self, key: MaskKey, row: Words) -> None:
        """Keep a mask; forget the one that was not used for longest if there are too many."""
        with self._lock:
            self._kept[key] = row.copy()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
