"""Plants a bug in the code of groups, and runs worlds until one finds it: `… planted NAME`.

It is a process of its own, since such a bug may end the process in which it is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.sim.groups.bugs import NATIVE_BUGS
from tests.sim.groups.command import run_seed
from tests.sim.groups.library import load

NUM_WORLDS = 150
FOUND = 10  # the exit code; Python's own is 1
ROOT = Path(__file__).resolve().parents[3]


def main(name: str) -> int:
    """Search for one bug; return FOUND when a world has found it."""
    bugs = {each.name: each for each in NATIVE_BUGS}
    if name not in bugs:
        print(f"there is no bug {name!r}; there are:", *bugs, sep="\n", file=sys.stderr)
        return 2
    bug = bugs[name]
    library = load({bug.file: (bug.before, bug.after)})
    for seed in range(NUM_WORLDS):
        _, _, failure = run_seed(seed, library)
        if failure is not None:
            print(f"seed {seed}: {failure}")
            return FOUND
    return 0


def is_found(name: str) -> bool:
    """Return whether worlds find a bug, or the bug ends the process that runs them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.groups.planted", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode > 0 and done.returncode != FOUND:
        raise RuntimeError(f"{name}: the worlds did not run: {done.stderr[-2000:]}")
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
