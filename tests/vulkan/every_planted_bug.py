"""Each planted bug is found by its case; only `make test-vulkan` runs this."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.vulkan.device import Device
from tests.vulkan.cases import CASES
from tests.vulkan.planted import BUGS, Bug, planted


@pytest.fixture
def careless(only_device: Device) -> Iterator[Device]:
    """Return the device for shaders that may write behind arrays; its memory is freed."""
    yield only_device
    only_device.free()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug(careless: Device, bug: Bug) -> None:
    with planted(bug), pytest.raises(AssertionError):
        CASES[bug.case](careless)
