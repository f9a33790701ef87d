"""Launches an engine on this machine, whose further nodes something else places on others.

What places them passes no plan and no token: nodes join the engine over links of their own
(`octavo.engine.nodes`). An engine and its nodes end together, and the next one has other nodes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from octavo.client.launcher import EngineProcess, ProcessLauncher
from octavo.options.engine import EngineArguments
from octavo.options.processes.machines import as_placed

SECRET_BYTES = 32


class PlacedNodes(Protocol):
    """The further nodes of one engine, which run or are about to."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end`, in any thread, when one has ended, or none can be placed."""

    def ended(self) -> str | None:
        """Return why the first of them has ended; None if all run, as far as is known."""

    def close(self) -> None:
        """End all of them, and free what they hold; do not wait."""


PlaceNodes = Callable[[], PlacedNodes]


class NodesLauncher(ProcessLauncher):
    """A launcher of processes, each with nodes of its own on other machines."""

    def __init__(self, place: PlaceNodes, factory: str | None = None) -> None:
        super().__init__(factory)
        self._place = place

    def launch(self, epoch: int) -> EngineProcess:
        process = super().launch(epoch)
        try:
            return EngineOnNodes(process, self._place())
        except BaseException:
            process.close()
            raise


class EngineOnNodes:
    """Implements `octavo.client.launcher.EngineProcess` for an engine with further nodes."""

    def __init__(self, process: EngineProcess, nodes: PlacedNodes) -> None:
        self.engine = process
        self._nodes = nodes
        self._reason: str | None = None  # why it was ended, if one of its nodes had

    def watch(self, on_exit: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_exit)

        self.engine.watch(on_exit)
        self._nodes.watch(wake)

    def exit_reason(self) -> str | None:
        """Describe how the process ended; it ends with the first of its nodes.

        An engine that waits for its nodes to join would wait for ever; others see it by themselves.
        """
        own = self.engine.exit_reason()
        if own is not None:
            return self._reason or own
        if self._reason is None and (reason := self._nodes.ended()) is not None:
            self._reason = reason
            self.engine.kill()
        return None

    def send(self, data: bytes) -> bool:
        return self.engine.send(data)

    def dump_stacks(self) -> None:
        self.engine.dump_stacks()

    def kill(self) -> None:
        self.engine.kill()

    def was_killed(self) -> bool:
        return self.engine.was_killed()

    def last_step(self) -> tuple[int, ...]:
        return self.engine.last_step()

    def close(self) -> None:
        self.engine.close()
        self._nodes.close()


def first_node(arguments: EngineArguments, address: str) -> EngineArguments:
    """Return the arguments of an engine on this machine, whose address for the others this is.

    Without a file that all machines have, its nodes are given a secret that is drawn here.
    """
    secret = None if arguments.link_secret_file else secrets.token_bytes(SECRET_BYTES)
    placed = as_placed(arguments, address, secret)
    return replace(
        placed,
        model=_whole(arguments.model),
        tokenizer=arguments.tokenizer and _whole(arguments.tokenizer),
        link_secret_file=arguments.link_secret_file and _whole(arguments.link_secret_file),
    )


def _whole(name: str) -> str:
    """Return a path as a process with another working directory finds it, or another name."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def further_node(first: EngineArguments, rank: int) -> EngineArguments:
    """Return the arguments of a node that is not the first."""
    return replace(first, node_rank=rank, headless=True)
