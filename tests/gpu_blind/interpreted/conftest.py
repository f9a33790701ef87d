"""Every launch of these tests is repaired and watched."""

from __future__ import annotations

import pytest

from octavo.backends.base import StepSize
from octavo.backends.cuda.backend import CudaBackend
from tests.gpu_blind.interpreted import haste, repair, sanitizer

repair.install()
sanitizer.install()
haste.install()


@pytest.fixture(autouse=True)
def unwatched_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the largest step alone, whose rows are all written to the null block."""
    reserve = CudaBackend.reserve

    def unwatched(self: CudaBackend, size: StepSize, spare_bytes: int) -> int:
        with sanitizer.paused():
            return reserve(self, size, spare_bytes)

    monkeypatch.setattr(CudaBackend, "reserve", unwatched)
