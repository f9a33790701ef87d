"""A process that may read below some directories can do nothing else with files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.confine.filter import why_unavailable
from octavo.confine.landlock import restrict_reading
from tests.confine.attempts import results_of

ROOT = Path(__file__).parents[2]
VERSION_OF_LANDLOCK = """
import ctypes
print(ctypes.CDLL(None).syscall(444, None, 0, 1))
"""
PROGRAM = """
import json, os, pathlib, socket, sys

from octavo.confine.landlock import restrict_reading
from octavo.confine.process import confine, give_up_privileges

inside, outside, mode = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
found = {}

def attempt(name, function):
    try:
        function()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__

give_up_privileges()
found["missing"] = restrict_reading([inside])
if mode == "both":
    found["no filter"] = confine(may_read=True, may_share=True)
attempt("read", (inside / "file").read_text)
attempt("read deeper", (inside / "deeper" / "file").read_text)
attempt("read outside", (outside / "file").read_text)
attempt("read by the parent", (inside / ".." / "outside" / "file").read_text)
attempt("read by a link", (inside / "link").read_text)
attempt("read its own program", pathlib.Path(os.__file__).read_text)
attempt("read about processes", pathlib.Path("/proc/self/environ").read_bytes)
attempt("list", lambda: os.listdir(inside))
attempt("write", lambda: (inside / "file").write_text("x"))
attempt("make", (inside / "new").touch)
attempt("remove", (inside / "file").unlink)
attempt("shorten", lambda: os.truncate(inside / "file", 0))
attempt("run", lambda: os.execv("/bin/true", ["true"]))
attempt("share memory", lambda: os.ftruncate(os.memfd_create("shared"), 10))
if mode == "both":
    attempt("connect", socket.socket)
    attempt("fork", os.fork)
print(json.dumps(found))
"""


def has_landlock() -> bool:
    ran = subprocess.run(
        [sys.executable, "-c", VERSION_OF_LANDLOCK], capture_output=True, text=True
    )
    return int(ran.stdout) > 0


pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not has_landlock(), reason="no Landlock"
)


def attempts(tmp_path: Path, mode: str) -> dict[str, Any]:
    """Return the result of each attempt of a restricted process, by its name."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for directory in (inside / "deeper", outside):
        directory.mkdir(parents=True)
    for directory in (inside, inside / "deeper", outside):
        (directory / "file").write_text("text")
    (inside / "link").symlink_to(outside / "file")
    found = results_of(PROGRAM, str(inside), str(outside), mode)
    assert (inside / "file").read_text() == "text"
    assert sorted(os.listdir(inside)) == ["deeper", "file", "link"]
    return found


def test_files_are_read_below_the_directories_and_nowhere_else(tmp_path: Path) -> None:
    found = attempts(tmp_path, "alone")
    assert found.pop("missing") is None
    done = {name for name, result in found.items() if result == "done"}
    assert done == {"read", "read deeper", "share memory"}


def test_a_directory_that_is_not_there_is_an_error_and_restricts_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        restrict_reading([tmp_path, tmp_path / "absent"])
    assert (Path(__file__)).read_text()


@pytest.mark.skipif(why_unavailable() is not None, reason="no filters of system calls")
def test_with_the_filter_there_is_no_network_and_no_other_process_either(tmp_path: Path) -> None:
    found = attempts(tmp_path, "both")
    assert (found.pop("missing"), found.pop("no filter")) == (None, None)
    done = {name for name, result in found.items() if result == "done"}
    assert done == {"read", "read deeper", "share memory"}
