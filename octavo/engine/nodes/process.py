"""The main program of a member of another node: `python -m octavo.engine.nodes.process`.

The program of the node starts it. It joins the first node, and is from then on what a stage on that
machine is (`octavo.engine.stages.process`), over sealed connections; or it is the first one of the
node's ranks (`octavo.engine.nodes.ranks`). It ends with the engine or with the program of its node,
which starts another.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from dataclasses import replace

from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import open_with_drafter, weight_files
from octavo.engine.nodes.connection import SealedLink
from octavo.engine.nodes.group import secret_of, setting_of
from octavo.engine.nodes.introduction import introduction, report_failure
from octavo.engine.nodes.joining import RefusedError, join
from octavo.engine.nodes.messages import Join, StartNode
from octavo.engine.nodes.ranks import serve_ranks
from octavo.engine.nodes.signs import send_signs
from octavo.engine.ranks.link import Link, Sign, Started, StartRank
from octavo.engine.ranks.process import begin, end_with, not_started
from octavo.engine.stages.process import serve_stage
from octavo.loader.errors import CheckpointError, DownloadError
from octavo.observe.log import set_up_log
from octavo.options.engine import EngineArguments
from octavo.options.processes.machines import host_of
from octavo.wire.message_types import WireError, unpack

log = logging.getLogger(__name__)


def main(argv: list[str]) -> int:
    """Join the first node and compute until the engine ends; return the exit status."""
    parser = argparse.ArgumentParser(prog=__name__, description=__doc__)
    parser.add_argument("--link", type=int, required=True)
    begin()
    program = Link(socket.socket(fileno=parser.parse_args(argv).link))
    node = program.receive(StartNode)
    if node is None:
        return 1
    set_up_log(node.log_level)
    end_with(program)
    own = unpack(node.arguments, EngineArguments)
    try:
        control, *links = _joined(node, own)
    except RefusedError as error:
        program.send(Sign(f"node 0 refuses this node: {error}", is_final=True))
        return 5
    except (OSError, DownloadError) as error:
        failure = f"the model cannot be read: {error}"
        log.error("%s", failure)
        report_failure(own, failure)
        return 1
    except (ConfigError, CheckpointError) as error:  # as it would be the next time
        report_failure(own, str(error))
        program.send(Sign(str(error), is_final=True))
        return 5
    try:
        start = control.receive(StartRank)
        if start is None:
            return 0  # another node has left, or the engine has ended: all of it begins anew
        arguments = of_this_node(unpack(start.arguments, EngineArguments), own)
    except (ConfigError, WireError) as error:
        control.send(Started(failure=str(error)))
        return 3

    def on_start() -> None:
        send_signs(control, program)

    try:
        if len(links) == 2:
            links_of_ranks = links[0], links[1]
            return serve_ranks(control, start, arguments, links_of_ranks, on_start, program)
        steps, listeners = links[0].frames, (program,)
        return serve_stage(control, start, arguments, node.member, steps, on_start, listeners)
    except (ConfigError, OSError) as error:  # its further ranks cannot be started here
        with contextlib.suppress(OSError):
            control.send(not_started(error))
        log.error("it does not start: %s", error)
        return 3


def _joined(node: StartNode, own: EngineArguments) -> list[SealedLink]:
    """Return the connections to the first node, once it has taken this member."""
    source, opened = open_with_drafter(own)
    setting = setting_of(own, source, weight_files(opened))

    def make_join(channel: str) -> Join:
        place = node.node, node.member, channel
        return introduction(own, setting, *place, ended=node.ended)

    where, channels = (host_of(own.master_addr), own.master_port), setting.division.channels
    return join(*where, secret_of(own), channels, make_join)


def of_this_node(arguments: EngineArguments, own: EngineArguments) -> EngineArguments:
    """Return the engine's arguments with what is this machine's own: paths, threads, addresses.

    The order of sums is the engine's: where this processor has none of it, the model does not load.
    """
    return replace(
        arguments,
        model=own.model,
        tokenizer=own.tokenizer,
        num_threads=own.num_threads,
        cpu_isa=own.cpu_isa,
        link_secret_file=own.link_secret_file,
        link_secret=own.link_secret,
        node_rank=own.node_rank,
        master_addr=own.master_addr,  # node 0 may listen at all of its addresses
        master_port=own.master_port,
        headless=True,
    )


if __name__ == "__main__":
    # Nothing is left to save, and what native code refers to need not be taken apart.
    os._exit(main(sys.argv[1:]))
