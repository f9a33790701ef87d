"""The places where an engine can run, as users name them: a line for each.

Each has a module, whose function `start(arguments, timing, processors, meanwhile)` returns the
client of an engine that is ready. The front end checks the names without importing it.
"""

from __future__ import annotations

ENGINES: dict[str, str] = {
    "process": "octavo.client.process",  # a process of its own, which is started again
    "inline": "octavo.client.inline",  # a thread of this process
}
