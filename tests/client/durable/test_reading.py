"""The reading of a journal's file: in pieces of any size, with little memory, past all holes."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.client.durable import reading
from octavo.client.durable.file import JournalFile
from octavo.client.durable.framing import Framing
from octavo.client.durable.records import Began, Forgotten, Model, encode
from octavo.client.durable.requests import DurableRequests, Limits
from octavo.client.durable.writer import JournalWriter
from tests.client.durable.make import MODEL, read


def damaged(chance: random.Random, framing: Framing) -> bytes:
    """Return a file of records of many sizes, of which some are damaged or cut off."""
    parts = [framing.header]
    for _ in range(20):
        record = framing.frame(chance.randbytes(chance.choice([0, 1, 10, 300])))
        if chance.random() < 0.3:
            at = chance.randrange(len(record))
            record = chance.choice([record[:at], record[at:], b"\0" * at + record])
        parts.append(record)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(20))
def test_the_size_of_pieces_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = damaged(random.Random(seed), Framing.draw())
    whole = read(data)
    assert whole[2]
    for size in (9, 32, 333):
        monkeypatch.setattr(reading, "_PIECE_BYTES", size)
        assert read(data) == whole


@pytest.mark.parametrize("knows_holes", [True, False])
def test_a_sparse_file_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, knows_holes: bool
) -> None:
    path = tmp_path / "journal"
    framing, size = Framing.draw(), 128 << 20
    with path.open("wb") as file:
        file.write(framing.header + framing.frame(b"one"))
        file.seek(size)
        file.write(framing.frame(b"two"))
    path.chmod(0o600)
    if not knows_holes:

        def unknown(*_: int) -> int:
            raise OSError(22, "Invalid argument")

        monkeypatch.setattr(os, "lseek", unknown)
    tracemalloc.start()
    try:
        journal = JournalFile(path)
        assert list(journal.records) == [b"one", b"two"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert journal.records.num_damaged == 1
    journal.close()
    assert peak < 8 << 20


def test_a_hole_at_the_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    framing = Framing.draw()
    path.write_bytes(framing.header + framing.frame(b"one"))
    os.truncate(path, 1 << 30)
    path.chmod(0o600)
    pieces: list[int] = []
    pread = os.pread

    def counted(descriptor: int, length: int, at: int) -> bytes:
        pieces.append(at)
        return pread(descriptor, length, at)

    monkeypatch.setattr(os, "pread", counted)
    journal = JournalFile(path)
    assert list(journal.records) == [b"one"]
    assert journal.records.num_damaged == 1
    journal.close()
    assert len(pieces) < 8


def test_what_is_loaded_is_bounded_while_it_is_read(tmp_path: Path) -> None:
    """A file has more requests than may be kept, forgotten ones and others."""
    file = JournalFile(tmp_path / "journal")
    requests = DurableRequests(JournalWriter(file), MODEL, Limits(num_requests=10))
    most = 0

    def payloads() -> Iterator[bytes]:
        nonlocal most
        yield encode(Model(MODEL))
        for number in range(0, 30_000, 2):
            yield encode(Began(number, "key", f"{number}", number + 1, 1, b"head"))
            if number % 3:
                yield encode(Forgotten(number))
            most = max(most, len(requests))

    tracemalloc.start()
    try:
        assert requests.load(payloads()) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    file.close()
    assert most <= 20
    assert len(requests) == 10
    assert peak < 8 << 20
