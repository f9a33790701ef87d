"""The program of a node that is not the first: `octavo serve --headless`, or an actor of Ray.

It keeps a process for each of the node's stages, and starts another when one ends: with the engine,
of which the next one wants to be joined, or by itself. An actor is for one engine: it ends with the
first of its stages, and the next engine has other actors.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from typing import NoReturn

from msgspec import Raw, Struct

from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import CUT_SECONDS
from octavo.engine.nodes.group import secret_of
from octavo.engine.nodes.messages import Sign, StartNode
from octavo.engine.ranks.followers import describe_status, launch
from octavo.engine.ranks.link import Link
from octavo.loader.errors import CheckpointError
from octavo.loader.source import resolve
from octavo.observe.log import level_in_use
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import pack

log = logging.getLogger(__name__)

PROGRAM = "octavo.engine.nodes.process"
FAILED_SECONDS = 0.5  # before a stage that has failed is started again
_EXIT_SECONDS = 2.0
_TICK_SECONDS = 1.0


class StageEndedError(Exception):
    """An error for the end of a stage that its node does not start again; it says how it ended."""


class _Stage(Struct, eq=False):
    number: int
    process: subprocess.Popen[bytes]
    link: Link
    heard_at: float | None = None  # its last sign of life; None: it has not begun to give any


class Node:
    """The stages of this node."""

    def __init__(
        self,
        arguments: EngineArguments,
        sleep: Callable[[float], None] = time.sleep,
        *,
        is_for_one_engine: bool = False,
    ) -> None:
        secret_of(arguments)  # which is refused here, once, if it cannot be read
        self._arguments = arguments
        self._sleep = sleep
        self._is_for_one_engine = is_for_one_engine
        self._node = secrets.token_bytes(16)
        self._selector = selectors.DefaultSelector()
        self._stages: dict[int, _Stage] = {}
        local = arguments.pipeline_parallel_size // arguments.nnodes
        self.numbers = range(arguments.node_rank * local, (arguments.node_rank + 1) * local)

    def serve(self) -> NoReturn:
        """Keep the stages running for ever; raise ConfigError if they cannot ever join.

        If they are for one engine, raise StageEndedError when one has ended.
        """
        try:
            for number in self.numbers:
                self._launch(number)
            while True:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    self._hear(key.data)
                self._end_silent()
        finally:
            for stage in self._stages.values():
                _end(stage)

    def _launch(self, number: int) -> None:
        process, link = launch(PROGRAM, [])
        self._stages[number] = stage = _Stage(number, process, link)
        self._selector.register(link.connection, selectors.EVENT_READ, stage)
        message = StartNode(Raw(pack(self._arguments)), number, self._node, level_in_use())
        with contextlib.suppress(OSError):  # it has ended, as will be seen
            link.send(message)

    def _hear(self, stage: _Stage) -> None:
        """Take a sign of life, or the end, of a stage; raise ConfigError if it cannot ever join."""
        sign = stage.link.receive(Sign)
        if sign is None:
            self._restart(stage)
        elif sign.ended:
            raise ConfigError(sign.ended)
        else:
            stage.heard_at = time.monotonic()

    def _end_silent(self) -> None:
        """Restart the stages that give no sign of life.

        One whose signs have come has given some: this process may have been stopped meanwhile.
        """
        for stage in [*self._stages.values()]:
            if stage.heard_at is None or time.monotonic() < stage.heard_at + CUT_SECONDS:
                continue
            if any(key.data is stage for key, _ in self._selector.select(0)):
                continue
            log.error("stage %d gives no sign of life, and is ended", stage.number)
            self._restart(stage)

    def _restart(self, stage: _Stage) -> None:
        """Start a stage again, once it has ended."""
        self._selector.unregister(stage.link.connection)
        status = _end(stage)
        if self._is_for_one_engine:
            reason = "with its engine" if status == 0 else describe_status(status)
            raise StageEndedError(f"stage {stage.number} has ended: {reason}")
        if status == 0:
            log.info("the engine of stage %d has ended; it joins the next one", stage.number)
        else:
            log.error("stage %d has ended with exit code %d; it starts again", stage.number, status)
            self._sleep(FAILED_SECONDS)
        self._launch(stage.number)


def _end(stage: _Stage) -> int:
    """End a stage, which ends by itself with its connection; return its exit status."""
    with contextlib.suppress(OSError):
        stage.link.connection.shutdown(socket.SHUT_RDWR)
    try:
        stage.process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        stage.process.kill()
        stage.process.wait()
    stage.link.connection.close()
    return stage.process.returncode


def run_node(arguments: EngineArguments) -> int:
    """Run the stages of this node until Ctrl-C or SIGTERM; return the exit status."""
    node = Node(arguments)
    stages = ", ".join(map(str, node.numbers))
    log.info(
        "node %d of %d computes stage %s of %d, for node 0 at %s port %d",
        *(arguments.node_rank, arguments.nnodes, stages, arguments.pipeline_parallel_size),
        *(arguments.master_addr, arguments.master_port),
    )
    with contextlib.suppress(KeyboardInterrupt):
        node.serve()
    return 0


def run_for_one_engine(arguments: EngineArguments) -> str:
    """Run the stages of this node until the first of them ends; return why it has."""
    try:
        resolve(arguments.model)  # once, before each stage looks for it
        Node(arguments, is_for_one_engine=True).serve()
    except (StageEndedError, ConfigError, CheckpointError, OSError) as error:
        return str(error) or type(error).__name__
