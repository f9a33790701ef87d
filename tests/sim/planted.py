"""Plants bugs in the core, one at a time, and requires that the simulator catches each.

A bug is a change of the source text. The core is copied, the text is replaced, and the simulator
runs on the copy. A bug that is not caught within NUM_SEEDS worlds is a gap in the simulator.

SEEDS_FILE has the seed of the world that caught each bug last. That world is tried first, which
saves most of the time; where it no longer catches the bug, all worlds are tried in order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.sim.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
SEEDS_FILE = Path(__file__).with_name("bugs") / "seeds.txt"
NUM_SEEDS = 1000
TIMEOUT_SECONDS = 300  # a bug that makes the core loop for ever is caught too


@dataclass(frozen=True)
class Finding:
    """The result of planting one bug."""

    bug: Bug
    caught_by: str | None  # the first line of the simulator's report

    def __str__(self) -> str:
        return f"{self.bug.name}: {self.caught_by or 'NOT CAUGHT'}"

    @property
    def seed(self) -> int | None:
        """The seed of the world that caught the bug."""
        found = re.match(r"seed (\d+)", self.caught_by or "")
        return int(found[1]) if found else None


def plant(bug: Bug, directory: Path) -> None:
    """Copy the files that a simulation needs, and apply the bug."""
    shutil.copytree(ROOT / "octavo" / "core", directory / "octavo" / "core")
    shutil.copytree(ROOT / "tests" / "sim", directory / "tests" / "sim")
    for package in ("octavo", "tests"):  # without what the whole package does when it is imported
        (directory / package / "__init__.py").touch()
    path = directory / "octavo" / "core" / bug.file
    path.write_text(bug.apply(path.read_text()))


class _Children:
    """The running simulators, all of which an interrupt must end."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._stopped = threading.Event()

    def run(self, command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a simulator to its end; kill it if it takes too long, or after `stop`."""
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
        """Kill the running simulators, and those that are about to start."""
        self._stopped.set()
        for child in list(self._running.values()):
            child.kill()


_CHILDREN = _Children()


def try_bug(bug: Bug) -> Finding:
    """Plant a bug and let the simulator search for it."""
    known = read_seeds().get(bug.name)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        plant(bug, directory)
        finding = Finding(bug, None)
        if known is not None:
            finding = _search(bug, directory, first=known, count=1)
        if finding.caught_by is None:
            finding = _search(bug, directory, first=0, count=NUM_SEEDS)
    return finding


def _search(bug: Bug, directory: Path, first: int, count: int) -> Finding:
    """Run the simulator in the copy with the bug."""
    command = [sys.executable, "-m", "tests.sim", "--workers", "1", "--no-shrink"]
    command += [] if bug.kind is None else ["--kind", bug.kind]
    try:
        done = _CHILDREN.run([*command, "--from", str(first), "--seeds", str(count)], directory)
    except subprocess.TimeoutExpired:
        return Finding(bug, "it never ends")
    if done.returncode == 0:
        return Finding(bug, None)
    if not done.stdout.startswith("seed "):
        raise RuntimeError(f"{bug.name}: the simulator did not run: {done.stderr[-500:]}")
    return Finding(bug, done.stdout.splitlines()[0])


def read_seeds() -> dict[str, int]:
    """Return the seeds of SEEDS_FILE, by the names of the bugs."""
    lines = SEEDS_FILE.read_text().splitlines()
    return {name: int(seed) for seed, name in (line.split(" ", 1) for line in lines)}


def write_seeds(findings: list[Finding]) -> None:
    """Replace SEEDS_FILE by the seeds of a whole search."""
    lines = [f"{each.seed} {each.bug.name}\n" for each in findings if each.seed is not None]
    SEEDS_FILE.write_text("".join(lines))


def run_planted(only: str, workers: int) -> int:
    """Try every bug whose name contains `only`; return 0 if all are caught."""
    bugs = [bug for bug in BUGS if only in bug.name]
    if not bugs:
        where = "the files in tests/sim/bugs have the names"
        print(f"--only {only!r}: no planted bug has a name that contains it; {where}")
        return 2
    findings: list[Finding] = []
    with ThreadPoolExecutor(workers) as pool:
        try:
            for finding in pool.map(try_bug, bugs):
                findings.append(finding)
                print(finding, flush=True)
        except BaseException:  # Ctrl-C above all: do not start the rest
            pool.shutdown(wait=False, cancel_futures=True)
            _CHILDREN.stop()
            raise
    if not only:
        write_seeds(findings)
    missed = sum(finding.caught_by is None for finding in findings)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught within {NUM_SEEDS} worlds each")
    return 1 if missed else 0
