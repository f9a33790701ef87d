"""The front end starts fast: it imports no backend, numpy or ZeroMQ before it needs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import octavo.api.async_llm, octavo.server.lifecycle
heavy = ("torch", "numpy", "zmq", "octavo.models.build", "octavo.runner")
heavy += ("octavo.backends.base", "octavo.backends.native", "octavo.backends.torch")
heavy += ("jinja2",)  # templates are rendered in prompt workers
print(*(name for name in heavy if name in sys.modules))
"""


def test_the_server_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
