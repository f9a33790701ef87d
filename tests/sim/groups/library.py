"""The engine's own code of ranks and stages, built for a simulated machine (native/machine.h).

The files of `csrc` are compiled as they are; the system's functions, the atomic words and the
clock are the simulator's. A planted bug is a change of the text of one of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
NATIVE = Path(__file__).with_name("native")
CSRC = ROOT / "csrc"
BUILT = ROOT / "build" / "sim"
# What a group runs; the simulator's own files come last.
SOURCES = (
    *("runtime/ranks.cpp", "runtime/barrier.cpp", "runtime/team.cpp", "runtime/arena.cpp"),
    *("link/frame_link.cpp", "link/sealing.cpp", "step/posted_step.cpp", "step/stages.cpp"),
    *("step/further_stages.cpp", "runtime/sums.cpp", "link/part_link.cpp", "nodes/following.cpp"),
    *("nodes/further_nodes.cpp", "nodes/node_sums.cpp"),
)
OWN = ("machine.cpp", "group.cpp", "sums.cpp")
WRAPPED = ("send", "recv", "shutdown", "close", "sched_yield", "poll")
CLOCK = "_ZNSt6chrono3_V212steady_clock3nowEv"  # std::chrono::steady_clock::now
COMPILER = "c++"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-pthread")

Changes = Mapping[str, tuple[str, str]]  # by a file of csrc: the text, and what replaces it


class Chances(ctypes.Structure):
    """The chances of what the machine of a group does rarely (native/machine.h)."""

    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in ("late", "lost", "repeated", "broken", "longest_late", "longest_delay")
    )


def has_compiler() -> bool:
    """Return whether the code can be built."""
    return shutil.which(COMPILER) is not None


def load(changes: Changes | None = None) -> ctypes.CDLL:
    """Build and load the code, with the changes of a planted bug."""
    return _loaded(tuple(sorted((changes or {}).items())))


@cache
def _loaded(changes: tuple[tuple[str, tuple[str, str]], ...]) -> ctypes.CDLL:
    library: Any = ctypes.CDLL(str(_built(dict(changes))))
    number, pointer, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_double
    wide, many = ctypes.c_int64, ctypes.POINTER(ctypes.c_int32)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "new": (pointer, (number,) * 5 + (ctypes.c_uint64, ctypes.POINTER(Chances))),
        "free": (None, (pointer,)),
        "begin": (None, (pointer, many, many)),
        "take": (None, (pointer,)),
        "send": (None, (pointer, wide)),
        "run": (number, (pointer, real)),
        "idle": (None, (pointer, real)),
        "settle": (None, (pointer, real)),
        "now": (real, (pointer,)),
        "num_faults": (number, (pointer,)),
        "failure": (ctypes.c_char_p, (pointer,)),
        "all_computed": (number, (pointer,)),
        "states": (number, (pointer, ctypes.POINTER(ctypes.c_uint64))),
        "right_state": (ctypes.c_uint64, (pointer, many, number)),
        "kill": (None, (pointer, number, wide)),
        "stop": (None, (pointer, number)),
        "fail": (None, (pointer, number, wide)),
        "state_of": (number, (pointer, number)),
        "fill": (None, (pointer, number)),
        "close": (None, (pointer,)),
        "num_carriers": (number, (pointer,)),
        "end": (None, (pointer, ctypes.c_char_p)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"group_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _built(changes: dict[str, tuple[str, str]]) -> Path:
    """Return the library; what has not changed is not compiled again."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for path, (before, after) in changes.items():
            text = (CSRC / path).read_text()
            if before not in text:
                raise ValueError(f"csrc/{path} has no {before!r}")
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text.replace(before, after))
        sources = [copy / each if each in changes else CSRC / each for each in SOURCES]
        sources += [NATIVE / each for each in OWN]
        headers = _digest([*_headers(copy), *_headers(CSRC), *_headers(NATIVE)], " ".join(FLAGS))
        with ThreadPoolExecutor(2) as pool:
            objects = [*pool.map(partial(_object, copy, headers), sources)]
        found = BUILT / f"groups-{_digest(objects, ' '.join(WRAPPED))}.so"
        if not found.exists():
            wraps = [f"-Wl,--wrap={each}" for each in (*WRAPPED, CLOCK)]
            _make(found, "-shared", "-pthread", *map(str, objects), *wraps)
    return found


def _headers(directory: Path) -> list[Path]:
    folders = ("", "runtime", "link", "step", "program", "kernels", "nodes")
    return [path for each in folders for path in sorted((directory / each).glob("*.h"))]


def _object(changed: Path, headers: str, source: Path) -> Path:
    found = BUILT / f"{source.stem}-{_digest([source], headers)}.o"
    if not found.exists():
        places = [f"-I{each}" for each in (NATIVE, changed, CSRC)]
        _make(found, *FLAGS, "-include", "prelude.h", *places, "-c", str(source))
    return found


def _make(path: Path, *words: str) -> None:
    """Let the compiler make a file, which is there as a whole or not at all."""
    with tempfile.TemporaryDirectory(dir=BUILT) as name:
        made = Path(name) / path.name
        done = subprocess.run(
            [COMPILER, *words, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{path.name} cannot be built:\n{done.stderr}")
        os.replace(made, path)


def _digest(paths: Sequence[Path], *more: str) -> str:
    """Return a name for the contents of files."""
    found = hashlib.blake2b("\0".join(more).encode(), digest_size=12)
    for path in paths:
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()
