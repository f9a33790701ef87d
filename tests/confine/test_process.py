"""A confined process, as the kernel treats it: it cannot do what it has given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.confine.filter import why_unavailable
from tests.confine.attempts import results_of

pytestmark = pytest.mark.skipif(
    why_unavailable() is not None, reason="this kernel has no filters of system calls"
)

PROGRAM = """
import ctypes, json, os, pathlib, resource, socket, subprocess, sys, threading

from octavo.confine.process import confine, give_up_privileges

other = threading.Event(), threading.Event()
found = {}
path = pathlib.Path(sys.argv[1])
kept = path.open("r+")

def attempt(name, function):
    try:
        function()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__

def in_a_thread_from_before():
    other[0].wait()
    attempt("socket in an older thread", socket.socket)
    other[1].set()

give_up_privileges()
threading.Thread(target=in_a_thread_from_before).start()
found["missing"] = confine(may_read=sys.argv[2] == "read")
attempt("read", path.read_text)
attempt("write", lambda: path.write_text("x"))
attempt("create", (path.parent / "new").touch)
attempt("remove", path.unlink)
attempt("rename", lambda: path.rename(path.parent / "new"))
attempt("change", lambda: path.chmod(0o777))
attempt("make a directory", (path.parent / "folder").mkdir)
attempt("socket", socket.socket)
attempt("socket in a family of its own", lambda: socket.socket(socket.AF_UNIX))
attempt("fork", os.fork)
attempt("spawn", lambda: subprocess.run(["true"]))
attempt("exec", lambda: os.execv(sys.executable, [sys.executable]))
attempt("signal the parent", lambda: os.kill(os.getppid(), 0))
attempt("signal all", lambda: os.kill(-1, 0))
attempt("signal itself", lambda: os.kill(os.getpid(), 0))
attempt("write to what was open", lambda: (kept.seek(0), kept.write("kept"), kept.flush()))
attempt("start a thread", lambda: threading.Thread(target=int).start())
attempt("limits", lambda: resource.getrlimit(resource.RLIMIT_AS))
other[0].set()
other[1].wait()
prctl = ctypes.CDLL(None).prctl
found["no new privileges"] = prctl(39, 0, 0, 0, 0)
found["dumpable"] = prctl(3, 0, 0, 0, 0)
found["core"] = resource.getrlimit(resource.RLIMIT_CORE)
print(json.dumps(found))
"""
ROOT = Path(__file__).parents[2]


def attempts(tmp_path: Path, mode: str) -> dict[str, Any]:
    """Return the result of each attempt of a confined process, by its name."""
    path = tmp_path / "file"
    path.write_text("text")
    found = results_of(PROGRAM, str(path), mode)
    assert path.read_text() == "kept"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
    return found


def test_a_confined_process_has_no_files_no_network_and_no_other_processes(tmp_path: Path) -> None:
    found = attempts(tmp_path, "nothing")
    assert found.pop("missing") is None
    done = {name for name, result in found.items() if result == "done"}
    assert done == {"signal itself", "write to what was open", "start a thread", "limits"}
    assert found["no new privileges"] == 1
    assert found["dumpable"] == 0
    assert found["core"] == [0, 0]


def test_a_confined_process_may_be_permitted_to_read_files(tmp_path: Path) -> None:
    found = attempts(tmp_path, "read")
    done = {name for name, result in found.items() if result == "done"}
    kept = {"signal itself", "write to what was open", "start a thread", "limits"}
    assert done == kept | {"read"}
