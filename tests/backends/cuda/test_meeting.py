"""Devices that meet: a rank that never comes, what an aborted exchange brings, and descriptors."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo import env
from octavo.backends.base import BackendEndedError
from octavo.backends.cuda.exchange import DeviceCommunicator
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.distributed.context import ParallelContext
from tests.backends.cuda.test_graphs import BLOCKS, KINDS, outputs_of
from tests.backends.cuda.two_devices import make_two
from tests.runner.tiny import FULL

ENDED = "rank 1 has ended: its process was ended by SIGKILL"


@pytest.fixture
def meeting() -> Iterator[int]:
    descriptor = os.memfd_create("meeting")
    yield descriptor
    os.close(descriptor)


def connected(meeting: int) -> list[DeviceCommunicator]:
    """Connect two devices, each in a thread as libraries need it."""
    made = [DeviceCommunicator(ParallelContext(rank, 2)) for rank in range(2)]
    other = Thread(target=made[1].join, args=(FakeAccelerator(), meeting))
    other.start()
    made[0].join(FakeAccelerator(), meeting)
    other.join()
    return made


def test_a_rank_that_ends_before_the_devices_meet_ends_the_wait_for_it(meeting: int) -> None:
    waits = Event()

    class Waiting(FakeAccelerator):
        def join(self, meeting: int, context: ParallelContext) -> Any:
            waits.set()
            return super().join(meeting, context)

    first = DeviceCommunicator(ParallelContext(0, 2))

    def end() -> None:
        waits.wait()
        first.end(ENDED)

    Thread(target=end).start()
    with pytest.raises(BackendEndedError, match=ENDED):
        first.join(Waiting(), meeting)
    # The library still waits, in a thread that has been left behind, until one comes after all.
    DeviceCommunicator(ParallelContext(1, 2)).join(FakeAccelerator(), meeting)


def test_a_device_that_cannot_be_connected_says_why(meeting: int) -> None:
    class Broken(FakeAccelerator):
        def join(self, meeting: int, context: ParallelContext) -> Any:
            raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        DeviceCommunicator(ParallelContext(0, 2)).join(Broken(), meeting)


def left_open() -> int:
    """Connect two devices and let them go; return how many descriptors are open then."""
    meeting = os.memfd_create("meeting")
    before = len(os.listdir("/proc/self/fd"))
    made = connected(meeting)
    assert len(os.listdir("/proc/self/fd")) >= before + len(made)
    os.close(meeting)
    del made
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_no_descriptor_is_left_open() -> None:
    """The file stays open as long as libraries write to it by its name, and no longer."""
    first = left_open()  # with what libraries open once for all
    assert left_open() == first


class Aborted:
    """An exchange that was aborted: a card goes on with whatever its memory holds."""

    def gather(self, values: Tensor) -> Tensor:
        return torch.stack((values, values))

    def end(self) -> None:
        pass


def test_a_step_whose_exchange_was_aborted_has_no_tokens() -> None:
    made = make_two(FULL, BLOCKS, 4)
    made._links = []
    made.communicator._exchange = Aborted()
    made.communicator.end(ENDED)
    with pytest.raises(BackendEndedError, match=ENDED):
        outputs_of(made, KINDS, [4])


def test_libraries_of_cards_open_nothing_beyond_what_ranks_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_RAS_ENABLE", "1")  # the user's word holds
    env.stay_on_loopback()
    found = env.child_environment({})
    assert (found["NCCL_SOCKET_IFNAME"], found["NCCL_RAS_ENABLE"]) == ("lo", "1")
    monkeypatch.delenv("NCCL_RAS_ENABLE")
    env.stay_on_loopback()
    assert env.child_environment({})["NCCL_RAS_ENABLE"] == "0"
