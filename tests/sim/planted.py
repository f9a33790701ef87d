"""Plants bugs in the core, one by one, and demands that the simulator catches each.

A bug is a change of the source text. The core is copied, the text replaced, and the simulator
run on the copy. A bug that is not caught within NUM_SEEDS worlds is a hole in the simulator.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.sim.planted_bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
NUM_SEEDS = 1000
TIMEOUT_SECONDS = 300  # a bug may make the core spin; that is caught too


@dataclass(frozen=True)
class Verdict:
    """What became of one planted bug."""

    bug: Bug
    caught_by: str | None  # the first line the simulator printed

    def __str__(self) -> str:
        return f"{self.bug.name}: {self.caught_by or 'NOT CAUGHT'}"


def plant(bug: Bug, directory: Path) -> None:
    """Copy what a simulation needs and put the bug in."""
    shutil.copytree(ROOT / "octavo" / "core", directory / "octavo" / "core")
    shutil.copytree(ROOT / "tests" / "sim", directory / "tests" / "sim")
    for package in ("octavo", "tests"):
        shutil.copy(ROOT / package / "__init__.py", directory / package / "__init__.py")
    path = directory / "octavo" / "core" / bug.file
    path.write_text(bug.apply(path.read_text()))


class _Children:
    """Simulators that run just now, so that whoever interrupts us leaves none behind."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._stopped = threading.Event()

    def run(self, command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
        """Run one to its end; kill it if that takes too long, or if all are stopped."""
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=directory, stdout=pipe, stderr=pipe, text=True) as child:
            self._running[child.pid] = child
            try:
                if self._stopped.is_set():
                    child.kill()
                stdout, stderr = child.communicate(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            finally:
                del self._running[child.pid]
        return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)

    def stop(self) -> None:
        """Kill those that run, and those that are about to."""
        self._stopped.set()
        for child in list(self._running.values()):
            child.kill()


_CHILDREN = _Children()


def try_bug(bug: Bug) -> Verdict:
    """Plant one bug and let the simulator look for it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plant(bug, directory)
        command = [sys.executable, "-m", "tests.sim", "--workers", "1", "--no-shrink"]
        try:
            done = _CHILDREN.run([*command, "--seeds", str(NUM_SEEDS)], directory)
        except subprocess.TimeoutExpired:
            return Verdict(bug, "it never ends")
    if done.returncode == 0:
        return Verdict(bug, None)
    if not done.stdout.startswith("seed "):
        raise RuntimeError(f"{bug.name}: the simulator did not even run: {done.stderr[-500:]}")
    return Verdict(bug, done.stdout.splitlines()[0])


def run_planted(only: str, workers: int) -> int:
    """Try every bug whose name contains `only`; 0 if all are caught."""
    bugs = [bug for bug in BUGS if only in bug.name]
    if not bugs:
        file = Path("tests") / "sim" / "planted_bugs.py"
        print(f"--only {only!r}: no planted bug has a name that contains it; {file} has the names")
        return 2
    missed = 0
    with ThreadPoolExecutor(workers) as pool:
        try:
            for verdict in pool.map(try_bug, bugs):
                missed += verdict.caught_by is None
                print(verdict, flush=True)
        except BaseException:  # Ctrl-C above all: wait for nothing that has not been begun
            pool.shutdown(wait=False, cancel_futures=True)
            _CHILDREN.stop()
            raise
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught within {NUM_SEEDS} worlds each")
    return 1 if missed else 0
