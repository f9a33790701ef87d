"""The main program of a further stage, or of its ranks: `python -m octavo.engine.stages.process`.

Only an engine starts it. It loads the weights of its layers, confines itself as the engine does,
and computes these layers of each step. It knows no request. It ends with the engine. Where stages
have several ranks, the first one of each starts the others: each ends with all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence

from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.ranks.messages import follow as follow_rank
from octavo.backends.native.stages.backend import StageBackend
from octavo.backends.native.stages.backend import follow as follow_stage
from octavo.distributed.context import RankPlace, StagePlace
from octavo.engine.ranks.link import Link, Started, StartRank
from octavo.engine.ranks.process import begin, follow_start, receive_start
from octavo.engine.stages.group import StageRanks, stages_on_machine
from octavo.observe import machine
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import unpack


def main(argv: list[str]) -> int:
    """Compute the layers of a stage until the engine ends; return the exit status."""
    parser = argparse.ArgumentParser(prog=__name__, description=__doc__)
    for name in ("--link", "--stage", "--stages"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--steps", "--memory", "--memory-bytes", "--rank", "--ranks"):
        parser.add_argument(name, type=int)
    options = parser.parse_args(argv)
    begin()
    link, start = receive_start(options.link)
    if start is None:
        return 1
    arguments = unpack(start.arguments, EngineArguments)
    if options.steps is not None:
        steps = _native.FrameLink(options.steps)
        return serve_stage(link, start, arguments, options.stage, steps)
    ranks = RankPlace(options.rank, options.ranks, options.memory, options.memory_bytes)
    place = StagePlace(options.stage, options.stages, (), ranks, stages_on_machine(arguments))

    def follow(backend: NativeBackend) -> None:
        os.close(ranks.descriptor)  # it is mapped
        follow_rank(backend, place.name)

    return follow_start(link, start, arguments, place, follow)


def serve_stage(
    link: Link,
    start: StartRank,
    arguments: EngineArguments,
    stage: int,
    steps: _native.FrameLink,
    on_start: Callable[[], None] = lambda: None,
    listeners: Sequence[Link] = (),
) -> int:
    """Compute a stage, with further ranks if it has any; return the exit status.

    `on_start` is called once the engine has the answer that the stage has its weights. Why the
    stage ends before the engine is sent to that, and to further listeners.
    """
    num_stages, num_ranks = arguments.pipeline_parallel_size, arguments.tensor_parallel_size
    ranks = None
    if num_ranks > 1:
        ranks = StageRanks(stage, num_stages, num_ranks)
        ranks.start(start, arguments, (link, *listeners))
    memory = None if ranks is None else ranks.memory.place()
    place = StagePlace(stage, num_stages, (steps,), memory, stages_on_machine(arguments))

    def started(backend: NativeBackend) -> Started:
        assert isinstance(backend, StageBackend)
        weight_bytes = backend.weight_bytes
        if ranks is not None:
            ranks.memory.close()  # it is mapped
            weight_bytes += ranks.wait()
        free = machine.memory().available
        return Started(weight_bytes, page_bytes=backend.page_bytes, free_bytes=free)

    def follow(backend: NativeBackend) -> None:
        on_start()
        with contextlib.nullcontext() if ranks is None else ranks.noting_ends():
            _follow_steps(backend)

    return follow_start(link, start, arguments, place, follow, started, listeners)


def _follow_steps(backend: NativeBackend) -> None:
    """Compute steps until their connection ends, and wait for the end of the other one.

    That one ends this process: it says whether the engine has ended, or only its steps.
    """
    follow_stage(backend)
    threading.Event().wait()


if __name__ == "__main__":
    # Nothing is left to save, and what native code refers to need not be taken apart.
    os._exit(main(sys.argv[1:]))
