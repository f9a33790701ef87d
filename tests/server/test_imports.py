"""The front end is light: it imports no backend, no arrays, no ZeroMQ before they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import octavo.api.async_llm, octavo.server.lifecycle
heavy = ("torch", "numpy", "zmq", "octavo.models.build", "octavo.runner", "octavo.backends")
print(*(name for name in heavy if name in sys.modules))
"""


def test_the_server_takes_nothing_heavy_along() -> None:
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[2]
    told = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert told.stdout.split() == []
