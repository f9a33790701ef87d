"""The file of SQLite under each store: a change is there as a whole or not at all."""

from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from octavo.serving.store.database import Database, UnusableError

TABLES = "CREATE TABLE one (number INTEGER PRIMARY KEY, data BLOB); CREATE TABLE two (number)"
ADD = "INSERT INTO one VALUES (?, ?)"
_WRITE = f"""
import sys, pathlib
from octavo.serving.store.database import Database
database = Database(pathlib.Path(sys.argv[1]), {TABLES!r}, waits=True)
for number in range(0, 1_000_000, 2):
    database.write({ADD!r}, [(number, bytes(3000)), (number + 1, b"")])
    print(number, flush=True)
"""


def numbers_in(path: Path) -> list[int]:
    with closing(Database(path, TABLES, waits=True)) as database:
        return [number for (number,) in database.rows("SELECT number FROM one ORDER BY number")]


@contextmanager
def at_most(num_bytes: int) -> Iterator[None]:
    """Let no file of this process become larger, as a quota does."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_a_write_that_fails_in_its_midst_has_no_effect(tmp_path: Path) -> None:
    def rows() -> Iterator[tuple[int, bytes]]:
        yield 2, b""
        raise LookupError

    path = tmp_path / "file"
    with closing(Database(path, TABLES, waits=True)) as database:
        database.write(ADD, [(1, b"")])
        with pytest.raises(LookupError):
            database.write(ADD, rows())
        with pytest.raises(OSError, match="UNIQUE") as failed:
            database.write(ADD, [(3, b""), (1, b"")])
        assert failed.value.errno == errno.EIO
        database.write(ADD, [(4, b"")])
        with pytest.raises(UnusableError, match="in use"):
            Database(path, TABLES, waits=True)
    assert numbers_in(path) == [1, 4]
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_is_named_and_takes_further_writes_later(
    tmp_path: Path, code: int
) -> None:
    path = tmp_path / "file"
    with closing(Database(path, TABLES, waits=True)) as database:
        database.write(ADD, [(1, b"")])
        large = [(2, bytes(1 << 20))]
        if code == errno.ENOSPC:
            list(database.rows("PRAGMA max_page_count = 9"))
            with pytest.raises(OSError, match="full") as failed:
                database.write(ADD, large)
            list(database.rows("PRAGMA max_page_count = 9999"))
        else:
            with at_most(200_000), pytest.raises(OSError) as failed:  # noqa: PT011
                database.write(ADD, large)
        assert failed.value.errno == code
        database.write(ADD, [(3, bytes(1 << 20))])
    assert numbers_in(path) == [1, 3]


def test_a_kill_costs_no_write_that_has_ended_and_leaves_no_part_of_another(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    for num_writes in (1, 7, 40):
        path.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITE, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(num_writes)]
        process.send_signal(signal.SIGKILL)
        shown += process.communicate()[0].splitlines()
        found = numbers_in(path)
        assert found == list(range(len(found)))
        assert len(found) % 2 == 0
        assert len(found) >= int(shown[-1]) + 2
