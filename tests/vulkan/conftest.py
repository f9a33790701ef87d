"""A Vulkan device for each module, whose memory is examined and freed behind each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.backends.torch.conftest import one_thread as one_thread

if TYPE_CHECKING:
    from benchmarks.vulkan.device import Device


@pytest.fixture(scope="session")
def only_device() -> Device:
    from benchmarks.vulkan.device import Device  # not where nothing but the folder is looked at

    return Device()


@pytest.fixture
def device(only_device: Device) -> Iterator[Device]:
    """Return the device; whatever a test does to its own memory must stay inside of it."""
    yield only_device
    touched = only_device.touched_guards()
    only_device.free()
    assert not touched
