"""The main program of a further rank with a device: `python -m octavo.engine.ranks.device_process`.

Only an engine starts it. It loads its share of the weights into its device, confines itself as the
engine does, and computes its share of each step. It knows no request. It ends with the engine.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys

from octavo.backends.cuda.ranks import FollowingBackend
from octavo.distributed.context import DevicePlace
from octavo.engine.ranks.link import Started, say_end
from octavo.engine.ranks.process import (
    begin,
    confine_at,
    end_with,
    load,
    not_started,
    receive_start,
)
from octavo.observe.collection import freeze
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import unpack

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Compute a rank's share until the engine ends; return the exit status."""
    parser = argparse.ArgumentParser(prog=__name__, description=__doc__)
    for name in ("--link", "--steps", "--meeting", "--rank", "--ranks"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args(argv)
    begin()
    link, start = receive_start(options.link)
    if start is None:
        return 1
    end_with(link)
    steps = socket.socket(fileno=options.steps)
    place = DevicePlace(options.rank, options.ranks, options.meeting, (steps,))
    try:
        backend = load(start, unpack(start.arguments, EngineArguments), place)
        assert isinstance(backend, FollowingBackend), "no other backend has ranks with devices"
        answer = Started(backend.weight_bytes)
    except Exception as error:
        link.send(not_started(error))
        return 3
    link.send(answer)
    try:
        backend.follow()
        # Libraries of devices open modules and kernels when they use them first.
        confine_at(place, may_read=True)
        freeze()
        backend.follow_steps()
    except Exception as error:
        ended = f"{place.name} has ended: {str(error) or type(error).__name__}"
        say_end(ended, (link,))
        log.error("%s", ended)
    return 4


if __name__ == "__main__":
    # Nothing is left to save, and what libraries refer to need not be taken apart.
    os._exit(main(sys.argv[1:]))
