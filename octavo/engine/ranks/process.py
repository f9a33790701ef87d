"""The main program of a further rank: `python -m octavo.engine.ranks.process`.

Only an engine starts it. It loads its share of the weights, confines itself as the engine does, and
computes its share of each step. It knows no request. It ends with the engine.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from octavo.backends.adapter_weights import AdapterSettings
from octavo.backends.base import Backend
from octavo.confine.process import confine, die_before_parent, give_up_privileges
from octavo.distributed.context import NodePlace, Place, RankPlace, StagePlace
from octavo.engine.drafting.drafter import (
    layout_of,
    open_with_drafter,
    record_programs,
    weight_files,
)
from octavo.engine.ranks.followers import FurtherProcessError
from octavo.engine.ranks.link import FileState, Link, Started, StartRank, say_end
from octavo.engine.ranks.placement import Share, add_words, bind
from octavo.engine.shortage import describe_shortage, is_shortage
from octavo.models.build import bind as bind_model
from octavo.models.load import OpenedModel
from octavo.observe.collection import freeze
from octavo.observe.log import set_up_log
from octavo.observe.output import never_wait_for_stderr
from octavo.options.engine import EngineArguments
from octavo.usable import choose_backend
from octavo.wire.message_types import unpack

from octavo.backends.native.backend import NativeBackend  # isort: skip
from octavo.backends.native.ranks.messages import follow  # isort: skip

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Compute a rank's share until the engine ends; return the exit status."""
    options = _parse(argv)
    share = Share(options.processors, options.nodes, options.threads)
    begin()
    bind(share, f"rank {options.rank}")
    link, start = receive_start(options.link)
    if start is None:
        return 1

    def follow_first(backend: NativeBackend) -> None:
        os.close(place.descriptor)
        follow(backend, place.name)

    arguments = unpack(start.arguments, EngineArguments)
    sums = arguments.tensor_parallel_form == "sums"
    given = options.rank, options.ranks, options.memory, options.memory_bytes
    nodes = arguments.nnodes
    machine = NodePlace(arguments.node_rank, nodes) if nodes > 1 else None
    place = RankPlace(*given, share.threads, sums=sums, machine=machine)
    return follow_start(link, start, arguments, place, follow_first)


def begin() -> None:
    """Prepare this process, as each further process does first."""
    never_wait_for_stderr()
    die_before_parent()
    give_up_privileges()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program that has the terminal handles Ctrl-C


def receive_start(descriptor: int) -> tuple[Link, StartRank | None]:
    """Return the connection to the engine, and what it sends first; None if it has ended.

    From then on, this process logs as the engine asks for.
    """
    link = Link(socket.socket(fileno=descriptor))
    start = link.receive(StartRank)
    if start is not None:
        set_up_log(start.log_level)
    return link, start


def follow_start(
    link: Link,
    start: StartRank,
    arguments: EngineArguments,
    place: RankPlace | StagePlace,
    follow_engine: Callable[[NativeBackend], None],
    started: Callable[[NativeBackend], Started] = lambda backend: Started(backend.weight_bytes),
    listeners: Sequence[Link] = (),
) -> int:
    """Load the weights and compute steps until the engine ends; return the exit status.

    Why it ends before that is sent to the engine, and to further listeners.
    """
    end_with(link)
    try:
        backend = load(start, arguments, place)
        assert isinstance(backend, NativeBackend), "no other backend has one memory for its ranks"
        answer = started(backend)
    except Exception as error:
        link.send(not_started(error))
        return 3
    confine_at(place, may_read=False)
    freeze()
    gc.disable()  # from now on it makes nothing that refers to itself
    link.send(answer)
    try:
        follow_engine(backend)
    except Exception as error:
        ended = f"{place.name} has ended: {str(error) or type(error).__name__}"
        say_end(ended, (link, *listeners))
        log.error("%s", ended)
    return 4


def load(start: StartRank, arguments: EngineArguments, place: Place) -> Backend:
    """Return the backend with the share of the weights that belongs to a place."""
    _, opened = open_with_drafter(arguments)
    files = weight_files(opened)
    found = tuple(FileState.of(file.path) for file in files)
    if start.files is not None and found != start.files:
        raise ValueError("the model's files have changed since the engine opened them")
    backend = choose_backend(arguments).kind.make(arguments, files, place)
    layout = layout_of(opened)
    bind_model(opened.model, backend, opened.weights, place.context)
    record_programs(opened, layout, backend, start.block_size, _adapter_settings(arguments, opened))
    backend.settle()
    return backend


def _adapter_settings(arguments: EngineArguments, opened: OpenedModel) -> AdapterSettings | None:
    if not arguments.enable_lora:
        return None
    from octavo.engine.adapters import AdapterParts  # here, since few engines have adapters

    return AdapterParts(arguments, opened.model).settings


def end_with(link: Link) -> None:
    """End this process with the one at the other end."""

    def wait() -> None:
        link.wait_for_end()
        os._exit(0)

    threading.Thread(target=wait, name="octavo engine's end", daemon=True).start()


def confine_at(place: Place, *, may_read: bool) -> None:
    """Give up files, network and other processes, as the engine does."""
    missing = confine(may_read=may_read)
    if missing is not None:
        log.warning("%s is not confined: %s", place.name, missing)


def not_started(error: Exception) -> Started:
    """Return the answer of a rank that does not start, or whose further processes do not."""
    if isinstance(error, FurtherProcessError):
        return Started(failure=error.why, who=error.who)
    return Started(failure=_describe(error))


def _describe(error: Exception) -> str:
    if is_shortage(error):
        return describe_shortage("load its share of the weights", error)
    if not isinstance(error, ValueError | OSError):
        traceback.print_exc()
    return str(error) or type(error).__name__


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=__name__, description=__doc__)
    for name in ("--link", "--memory", "--memory-bytes", "--rank", "--ranks"):
        parser.add_argument(name, type=int, required=True)
    add_words(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Nothing is left to save, and what native code refers to need not be taken apart.
    os._exit(main(sys.argv[1:]))
