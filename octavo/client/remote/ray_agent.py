"""Agents as actors of Ray, which places each on a machine of its cluster and watches over it."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from octavo.client.remote.agent import Agent, Ended
from octavo.client.remote.launcher import RemoteLauncher
from octavo.client.remote.ray_cluster import connected, first_line
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments
from octavo.wire.link import SecretError, read_secret

log = logging.getLogger(__name__)

PLACED_SECONDS = 30.0  # after which the log says that an engine has no place yet
SPREAD = "SPREAD"  # Ray's strategy: over as many machines as there are


class _Actor:
    """An agent in a worker of Ray; each method may be called while another runs."""

    def __init__(self, address: str, epoch: int, secret: bytes | Path, factory: str | None) -> None:
        self._agent: Agent | None = None
        self._failure = ""  # an error of a constructor would lose its reason in Ray
        try:
            known = read_secret(secret) if isinstance(secret, Path) else secret
            self._agent = Agent(address, epoch, known, factory)
        except (SecretError, OSError) as error:
            self._failure = f"on {platform.node()}: {error}"

    def run(self) -> Ended:
        """Return how the engine has ended, once it has."""
        return Ended(self._failure, False, ()) if self._agent is None else self._agent.run()

    def dump_stacks(self) -> None:
        """Make the engine log its stacks."""
        if self._agent is not None:
            self._agent.dump_stacks()


class RayAgents:
    """A cluster of Ray, on which agents are started."""

    def __init__(
        self, num_cpus: float, secret_file: Path | None, factory: str | None = None
    ) -> None:
        self._ray = ray = connected("the engines of a Ray cluster")
        self._num_cpus = num_cpus
        self._factory = factory  # MODULE:FUNCTION, for tests
        self._secret_file = secret_file  # the same on all machines; None: all is on this one
        # A method that waits for the engine's end must not hold up the others.
        self._actors = ray.remote(_Actor).options(
            num_cpus=num_cpus, max_concurrency=4, max_restarts=0, scheduling_strategy=SPREAD
        )

    def start(self, address: str, epoch: int, secret: bytes) -> RayAgent:
        """Start an agent, wherever Ray has room for it."""
        given = secret if self._secret_file is None else self._secret_file
        actor = self._actors.remote(address, epoch, given, self._factory)
        return RayAgent(self._ray, actor, self._num_cpus)


class RayAgent:
    """Implements `octavo.client.remote.launcher.RemoteAgent` by an actor of Ray."""

    def __init__(self, ray: Any, actor: Any, num_cpus: float) -> None:
        self._ray = ray
        self._actor = actor
        self._is_said = False
        self._future: Future[Any] = actor.run.remote().future()
        text = (
            "Ray has placed no engine for %g s: it waits for a machine with %g free processors "
            "(--engine-cpus), as `ray status` shows"
        )
        timer = threading.Timer(PLACED_SECONDS, log.warning, [text, PLACED_SECONDS, num_cpus])
        timer.daemon = True
        timer.start()
        placed: Future[Any] = actor.__ray_ready__.remote().future()
        placed.add_done_callback(lambda _: timer.cancel())

    def watch(self, on_end: Callable[[], None]) -> None:
        self._future.add_done_callback(lambda _: on_end())

    def ended(self) -> Ended | None:
        if not self._future.done():
            return None
        error = self._future.exception()
        if error is None:
            found: Ended = self._future.result()
            return found
        if not self._is_said:  # it is asked for more than once
            self._is_said = True
            log.info("the actor of an engine has ended: %s", first_line(error))
        return Ended(f"its actor has ended ({type(error).__name__})", False, ())

    def dump_stacks(self) -> None:
        self._actor.dump_stacks.remote()

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


def ray_launchers(arguments: EngineArguments) -> Iterator[RemoteLauncher]:
    """Yield a launcher for each engine, whose agents Ray places."""
    file = arguments.link_secret_file
    path = None if file is None else Path(file)
    try:
        secret = None if path is None else read_secret(path)
    except SecretError as error:
        raise ConfigError(str(error)) from None
    agents = RayAgents(arguments.engine_cpus, path)
    for _ in range(arguments.data_parallel_size):
        yield RemoteLauncher(agents.start, arguments.link_host, secret)
