"""Signs of life of a stage on another node: one that is stopped is noticed like one that has ended.

The system of the other machine acknowledges what is sent to a process that is stopped or hangs, so
only the process itself can say that it runs.
"""

from __future__ import annotations

import contextlib
import threading
import time

from octavo.engine.nodes.connection import CUT_SECONDS, bound_waiting
from octavo.engine.ranks.link import Link, Sign

SIGN_SECONDS = 1.0


def send_signs(*links: Link) -> None:
    """Send signs of life over connections, in a thread, until one of them ends."""

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                for link in links:
                    link.send(Sign())
                time.sleep(SIGN_SECONDS)

    threading.Thread(target=send, name="octavo signs of life", daemon=True).start()


def wait_for_silence(link: Link, seconds: float = CUT_SECONDS) -> str:
    """Return when the other process has ended, or has given no sign of life for so long.

    What it has said of its end is returned, if it has said anything.
    """
    bound_waiting(link.connection, seconds)
    return link.wait_for_end()
