"""Starts an engine in a process of its own, without waiting until it is ready.

Little is imported for it, so that the engine can be at its own imports while the front end is at
those that it alone needs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from octavo.client.restart_policy import Timing
from octavo.core.config import ConfigError
from octavo.engine_arguments import EngineArguments

if TYPE_CHECKING:
    from octavo.client.process import ProcessClient


def launch_engine(arguments: EngineArguments, timing: Timing | None = None) -> ProcessClient:
    """A client whose engine has begun to start; its `start` waits for it."""
    if not sys.platform.startswith("linux"):
        raise ConfigError("engine='process' needs Linux; use engine='inline'")
    from octavo.client.launcher import ProcessLauncher  # ZeroMQ comes with these
    from octavo.client.process import ProcessClient

    client = ProcessClient(arguments, ProcessLauncher(), timing)
    client.launch()
    return client
