"""Every shader on a Vulkan device against the torch backend; only `make test-vulkan` runs it."""

from __future__ import annotations

import pytest

from benchmarks.vulkan.device import Device
from tests.vulkan.cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_case(device: Device, name: str) -> None:
    CASES[name](device)
