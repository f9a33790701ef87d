"""A journal whose disk is full, slow or dead holds up no one, and is whole again afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.client.durable import requests as requests_module
from octavo.client.durable import writer as writer_module
from octavo.client.durable.file import JournalFile
from octavo.client.durable.requests import DurableRequests, Limits
from octavo.client.durable.writer import RETRY_SECONDS, JournalWriter
from tests.client.durable.make import MODEL, emit, opened, state_of

WAIT_SECONDS = 300.0


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Disk(JournalFile):
    """A file on a disk that can be full, or stand still."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_full = False
        self.works = threading.Event()
        self.works.set()

    def _write(self, descriptor: int, data: bytes) -> None:
        assert self.works.wait(WAIT_SECONDS)
        if self.is_full:
            os.write(descriptor, data[: len(data) // 2])  # as a disk does
            raise OSError(28, "No space left on device")
        super()._write(descriptor, data)


def made(path: Path, limits: Limits | None = None) -> tuple[Disk, DurableRequests, Clock]:
    disk, clock = Disk(path), Clock()
    return disk, DurableRequests(JournalWriter(disk, clock), MODEL, limits, clock), clock


def run(test: Callable[[], object]) -> None:
    async def world() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await test()  # type: ignore[misc]

    asyncio.run(world())


async def closed(requests: DurableRequests) -> None:
    await asyncio.to_thread(requests.writer.close)


def test_a_full_disk_is_reported_once_and_written_anew_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"

    async def world() -> None:
        disk, requests, clock = made(path)
        requests.writer.start(requests.snapshot())
        first = requests.begin("key", "first", b"head", 1)
        assert first is not None
        await requests.writer.written()
        before = path.read_bytes()
        disk.is_full = True
        for number in range(50):
            request = requests.begin("key", f"lost {number}", b"head", 1)
            assert request is not None
            emit(requests, request, (1, 2, 3))
            await requests.writer.written()  # nothing waits for a disk that refuses
            requests.tidy()
            clock.now += RETRY_SECONDS / 10
        assert not requests.writer.is_whole
        assert requests.writer.num_failures >= 4
        assert path.read_bytes() == before, "the file is as it was when it was last whole"
        ours = [each for each in caplog.records if each.name.startswith("octavo")]
        errors = [each for each in ours if each.levelno >= logging.ERROR]
        assert len(errors) == 1
        assert "No space left" in errors[0].getMessage()
        disk.is_full = False
        clock.now += RETRY_SECONDS
        requests.tidy()
        await requests.writer.written()
        emit(requests, first, (4,), "stop")
        assert requests.writer.is_whole
        state = state_of(requests)
        await closed(requests)
        assert state_of(opened(path)) == state
        assert len(state) == 51

    run(world)


def test_a_disk_that_stands_still_costs_a_bounded_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 100)
    path = tmp_path / "journal"

    async def world() -> None:
        disk, requests, clock = made(path)
        requests.writer.start(requests.snapshot())
        await requests.writer.written()
        disk.works.clear()
        request = requests.begin("key", "one", b"head", 1)
        assert request is not None
        for token in range(1000):
            emit(requests, request, (token,))
        assert not requests.writer.is_whole
        assert len(requests.writer._queue) <= 100
        disk.works.set()
        clock.now += RETRY_SECONDS
        requests.tidy()
        await requests.writer.written()
        assert requests.writer.is_whole
        state = state_of(requests)
        await closed(requests)
        assert state_of(opened(path)) == state

    run(world)


def test_the_file_is_written_anew_before_it_is_far_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "REWRITE_BYTES", 1 << 20)
    path = tmp_path / "journal"

    async def world() -> None:
        _, requests, clock = made(path, Limits(seconds=10, num_bytes=1 << 18))
        requests.writer.start(requests.snapshot())
        largest = 0
        for number in range(300):
            request = requests.begin("key", str(number), bytes(20_000), 1)
            assert request is not None
            emit(requests, request, tuple(range(100)), "length")
            requests.rest(request)
            await requests.writer.written()
            requests.tidy()
            clock.now += 0.1
            largest = max(largest, path.stat().st_size)
        assert largest < 3 << 20, "6 MB were written"
        assert requests.num_bytes <= 1 << 18
        state = state_of(requests)
        await closed(requests)
        assert state_of(opened(path)) == state

    run(world)
