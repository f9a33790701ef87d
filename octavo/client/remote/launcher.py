"""Launches engines on other machines, each by an agent there, and speaks with them over TCP.

What starts the agents passes no plan and no token: these go over a link of our own, whose ends
prove that they know one secret.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from octavo.client.launcher import FrameSocket, send_to
from octavo.client.remote.agent import Ended
from octavo.core.config import ConfigError
from octavo.options.transport import is_loopback
from octavo.wire.channel import WORK_SOCKET, identity
from octavo.wire.link import keys_of, use_as_front

log = logging.getLogger(__name__)

DOMAIN = b"octavo"
# For a connection to prove that it has the key; ZeroMQ keeps what it sends before, up to a frame.
HANDSHAKE_MILLISECONDS = 10_000
KILLED = "it was ended by the front end"


class RemoteAgent(Protocol):
    """An agent on another machine."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end`, in any thread, when the engine or the agent has ended."""

    def ended(self) -> Ended | None:
        """Return how the engine has ended; None if it runs, as far as is known."""

    def dump_stacks(self) -> None:
        """Make the engine log its stacks; do not wait."""

    def kill(self) -> None:
        """End the agent and the engine; do not wait."""


StartAgent = Callable[[str, int, bytes], RemoteAgent]  # address, epoch, secret


class RemoteLauncher(FrameSocket):
    """A launcher whose engines are started elsewhere, one at a time.

    Without a secret there is one for this launcher alone, and only this machine can connect.
    """

    def __init__(self, start: StartAgent, host: str, secret: bytes | None) -> None:
        if secret is None and not is_loopback(host):
            raise ConfigError(
                f"engines on other machines would connect to {host}, and there is no secret that "
                "they share; give a file with one, the same on all machines"
            )
        self._start = start
        self._secret = secrets.token_bytes(32) if secret is None else secret
        super().__init__()
        self._authenticator = ThreadAuthenticator(self._context)
        try:
            self._authenticator.start()
            keys = keys_of(self._secret)
            known = _KnownKey(keys.engine.public)
            self._authenticator.configure_curve_callback(DOMAIN.decode(), known)
            use_as_front(self._socket, keys, DOMAIN)
            self._socket.set(zmq.IPV6, int(":" in host))
            self._socket.set(zmq.TCP_KEEPALIVE, 1)
            self._socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
            self._socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:*")
            self.address = self._socket.get_string(zmq.LAST_ENDPOINT)
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise ConfigError(f"engines cannot connect to {host}: {error}") from error
            raise

    def launch(self, epoch: int) -> RemoteProcess:
        agent = self._start(self.address, epoch, self._secret)
        return RemoteProcess(agent, self._socket, epoch)

    def close(self) -> None:
        self._authenticator.stop()
        super().close()


class _KnownKey:
    """The one key that an engine may have, for ZeroMQ's authentication."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether an engine may connect."""
        return secrets.compare_digest(key, self._key)


class RemoteProcess:
    """Implements `octavo.client.launcher.EngineProcess` for an engine on another machine.

    One that was killed has ended for this front end at once: its machine may be lost, so that
    no report of that ever comes. Its frames are those of an epoch that is over.
    """

    def __init__(self, agent: RemoteAgent, socket: zmq.Socket[bytes], epoch: int) -> None:
        self._agent = agent
        self._socket = socket
        self._name = identity(WORK_SOCKET, epoch)
        self._is_killed_by_us = False
        self._wake: Callable[[], None] | None = None

    def send(self, data: bytes) -> bool:
        return send_to(self._socket, self._name, data)

    def watch(self, on_exit: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_exit)

        self._wake = wake
        self._agent.watch(wake)

    def dump_stacks(self) -> None:
        self._agent.dump_stacks()

    def kill(self) -> None:
        if not self._is_killed_by_us and self._agent.ended() is None:
            self._is_killed_by_us = True
            self._agent.kill()
            if self._wake is not None:
                self._wake()

    def exit_reason(self) -> str | None:
        ended = self._agent.ended()
        if ended is not None:
            return ended.reason
        return KILLED if self._is_killed_by_us else None

    def was_killed(self) -> bool:
        ended = self._agent.ended()
        return ended is not None and ended.was_killed and not self._is_killed_by_us

    def last_step(self) -> tuple[int, ...]:
        ended = self._agent.ended()
        return () if ended is None else ended.last_step

    def close(self) -> None:
        self._wake = None
        self.kill()
