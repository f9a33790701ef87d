"""Programs that confine themselves, try things, and print the results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def results_of(program: str, *arguments: str) -> dict[str, Any]:
    """Run a program, and return what it prints: the result of each attempt, by its name."""
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
