"""Socket directories: private, removed at the end, or after a kill by the next process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import locked_directory
from octavo.client.socket_directory import PREFIX, SocketDirectory, remove_abandoned_sockets


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the directories; pytest's own path can be too long for a socket."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


HOLDER = """
import sys
from octavo.client.socket_directory import SocketDirectory
print(SocketDirectory().path, flush=True)
sys.stdin.read()
"""


def test_a_directory_in_use_stays_and_an_abandoned_one_goes(parent: Path) -> None:
    own = SocketDirectory()
    assert own.path.stat().st_mode & 0o777 == 0o700
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        other = Path(holder.stdout.readline().strip())
        (other / "engine.sock").touch()
        assert other.parent == parent
        remove_abandoned_sockets(parent)
        assert own.path.exists()
        assert other.exists()
        holder.kill()
        holder.wait()
    third = SocketDirectory()  # the next one tidies up
    assert not other.exists()
    assert own.path.exists()
    for each in (own, third, third):
        each.close()
    assert not list(parent.iterdir())


def test_nothing_else_is_touched(parent: Path) -> None:
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    full = parent / f"{PREFIX}full"
    full.mkdir()
    (full / "precious").touch()
    (parent / "octavo-other").mkdir()
    (parent / f"{PREFIX}empty").mkdir()
    before = {path.name for path in parent.iterdir()}
    remove_abandoned_sockets(parent)
    assert before - {path.name for path in parent.iterdir()} == {f"{PREFIX}empty"}
    assert (full / "precious").exists()
    remove_abandoned_sockets(parent / "not there")


def test_the_directory_of_another_user_stays(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / f"{PREFIX}theirs").mkdir()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    remove_abandoned_sockets(parent)
    assert list(parent.iterdir())


def test_a_directory_that_was_removed_before_it_was_locked_is_made_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a directory for abandoned before it is locked."""
    lock = locked_directory.lock
    removed: list[Path] = []

    def late(path: Path) -> int:
        if not removed:
            removed.append(path)
            path.rmdir()
        return lock(path)

    monkeypatch.setattr(locked_directory, "lock", late)
    made = SocketDirectory()
    assert made.path.exists()
    assert made.path != removed[0]
    made.close()


def test_a_path_that_is_too_long_for_a_socket_is_refused(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = parent / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(OSError, match="set XDG_RUNTIME_DIR or TMPDIR"):
        SocketDirectory()
    assert not list(long.iterdir())
