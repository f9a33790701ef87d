"""Plants bugs in the core, one by one, and demands that the simulator catches each.

A bug is a change of the source text. The core is copied, the text replaced, and the simulator
run on the copy. A bug that is not caught within NUM_SEEDS worlds is a hole in the simulator.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
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


def try_bug(bug: Bug) -> Verdict:
    """Plant one bug and let the simulator look for it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plant(bug, directory)
        command = [sys.executable, "-m", "tests.sim", "--workers", "1", "--no-shrink"]
        try:
            done = subprocess.run(
                [*command, "--seeds", str(NUM_SEEDS)],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
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
    missed = 0
    with ThreadPoolExecutor(workers) as pool:
        for verdict in pool.map(try_bug, bugs):
            missed += verdict.caught_by is None
            print(verdict, flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught within {NUM_SEEDS} worlds each")
    return 1 if missed or not bugs else 0
