"""The file of a journal: who may use it, and how it is replaced at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from octavo.client.durable.file import JournalFile, JournalFileError
from tests.client.durable.make import read


def payloads_of(path: Path) -> list[bytes]:
    return read(path.read_bytes())[1]


def test_only_this_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.touch(0o666)
    path.chmod(0o666)
    file = JournalFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.replace([b"one"])
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_has_one_server_also_after_it_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    for _ in range(2):
        with pytest.raises(JournalFileError, match="in use by another server"):
            JournalFile(path)
        file.replace([b"one"])
    file.close()
    JournalFile(path).close()


def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("octavo needs milk and bread\n")
    with pytest.raises(JournalFileError, match="no journal of Octavo's"):
        JournalFile(notes)
    assert notes.read_text() == "octavo needs milk and bread\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(notes)
    for name in ("pipe", ".", "link", "missing/journal"):
        with pytest.raises(JournalFileError):
            JournalFile(tmp_path / name)


def test_a_damaged_magic_is_still_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    file.replace([b"one"])
    file.close()
    whole = path.read_bytes()
    for at in range(16):
        path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
        damaged = JournalFile(path)
        assert not list(damaged.records)
        assert damaged.records.num_damaged == 1
        damaged.close()


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk becomes full at every possible byte."""
    path = tmp_path / "journal"
    file = JournalFile(path)
    file.replace([b"one"])
    before, write, room = path.read_bytes(), os.write, 0

    def limited(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        part = min(room, len(data))
        room -= part
        return write(descriptor, data[:part])

    monkeypatch.setattr(os, "write", limited)
    for num_bytes in range(40):
        room = num_bytes
        with pytest.raises(OSError, match="No space"):
            file.append([b"two", b"three"])
        room = num_bytes
        with pytest.raises(OSError, match="No space"):
            file.replace([b"four"])
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["journal"]
    room = 1000
    file.append([b"two", b"three"])
    assert payloads_of(path) == [b"one", b"two", b"three"]
    file.close()


def test_the_rest_of_a_server_that_died_while_it_rewrote_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    file.replace([b"one"])
    file.close()
    (tmp_path / "journal.next").write_bytes(b"octavo jour")
    file = JournalFile(path)
    assert list(file.records) == [b"one"]
    file.append([b"two"])
    file.close()
    assert os.listdir(tmp_path) == ["journal"]
    assert payloads_of(path) == [b"one", b"two"]
