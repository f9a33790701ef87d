"""The adapters in the backend's slots, and what changes there before a step."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

from octavo.core.plan import NewSlot

Changes = tuple[tuple[int, Any | None, float], ...]  # as in HostBatch.adapter_slots

_FACTOR = "*"
_DIGEST = re.compile(r"[0-9a-z]{1,64}")


class AdapterSupply(Protocol):
    """The adapters in memory, in the backend's form."""

    def find(self, adapter: str) -> tuple[Any, float] | None:
        """Return an adapter and the factor of its pairs; None if it is not in memory."""


def split_id(adapter: str) -> tuple[str, float]:
    """Return the digest of an adapter's files, and the factor that follows it in its id.

    Raise ValueError for what is no id; a digest is the name of a directory.
    """
    digest, star, factor = adapter.partition(_FACTOR)
    try:
        value = float(factor) if star else 1.0
    except ValueError:
        value = math.nan
    if not _DIGEST.fullmatch(digest) or not math.isfinite(value):
        raise ValueError(f"{adapter[:200]!r} is not the digest of an adapter")
    return digest, value


class AdapterSlots:
    """The adapters in the slots, as of the plans that were submitted."""

    def __init__(self, supply: AdapterSupply) -> None:
        self._supply = supply
        self._held: dict[int, str] = {}

    def change(self, opened: Sequence[NewSlot]) -> tuple[Changes, tuple[int, ...]]:
        """Return the changes of a plan, and the sequences' slots whose adapter is not in memory.

        A slot changes only when nothing that runs has its adapter any more. One whose adapter has
        left memory is emptied, since it would keep what has made room for others.
        """
        changes: dict[int, tuple[Any | None, float]] = {}
        lost = []
        for new in opened:
            if new.lora is None or self._held.get(new.adapter) == new.lora:
                continue
            found = self._supply.find(new.lora)
            if found is None:
                lost.append(new.slot)
                continue
            self._held[new.adapter] = new.lora
            changes[new.adapter] = found
        for slot, lora in tuple(self._held.items()):
            if slot not in changes and self._supply.find(lora) is None:
                del self._held[slot]
                changes[slot] = None, 1.0
        return tuple((slot, *found) for slot, found in changes.items()), tuple(lost)
