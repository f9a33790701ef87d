"""Engines that are started elsewhere: links need the secret, and one that is lost is replaced."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from octavo.client.process import ProcessClient, make_client
from octavo.client.remote.agent import Agent, Ended
from octavo.client.remote.launcher import KILLED, RemoteLauncher
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.wire.channel import HEARTBEAT_SOCKET, WORK_SOCKET, identity
from octavo.wire.link import LinkKeys, SecretError, keys_of, read_secret, use_as_engine
from tests.client.clients import FACTORY, Caller, check, eventually, patient, request, run

SECRET = b"a secret of the tests, which no other test has"
SECONDS = 300.0


class LocalAgent:
    """An agent of this machine: a thread waits for its engine, as a worker of Ray would."""

    def __init__(self, address: str, epoch: int, secret: bytes) -> None:
        self.agent = Agent(address, epoch, secret, FACTORY)
        self.is_lost = False  # with its machine: its end is never reported
        self._ended: Ended | None = None
        self._calls: list[Callable[[], None]] = []
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        ended = self.agent.run()
        if not self.is_lost:
            self._ended = ended
            for call in self._calls:
                call()

    def watch(self, on_end: Callable[[], None]) -> None:
        self._calls.append(on_end)

    def ended(self) -> Ended | None:
        return self._ended

    def dump_stacks(self) -> None:
        self.agent.dump_stacks()

    def kill(self) -> None:
        if not self.is_lost:
            self.agent.kill()


class Machines:
    """The agents that were started, in order."""

    def __init__(self) -> None:
        self.agents: list[LocalAgent] = []

    def start(self, address: str, epoch: int, secret: bytes) -> LocalAgent:
        assert secret == SECRET
        self.agents.append(LocalAgent(address, epoch, secret))
        return self.agents[-1]


@contextmanager
def two_engines(settings: str, **timing: Any) -> Iterator[tuple[ProcessClient, Machines]]:
    machines = Machines()
    launchers = [RemoteLauncher(machines.start, "127.0.0.1", SECRET) for _ in range(2)]
    arguments = EngineArguments(model=f"fake?{settings}")
    client = make_client(arguments, launchers, patient(restart_delay_seconds=0.01, **timing))
    try:
        client.start()
        yield client, machines
    finally:
        client.close()
        for each in machines.agents:
            each.agent.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "lose"])
def test_requests_of_an_engine_that_is_lost_continue_on_another(how: str, tmp_path: Path) -> None:
    """No token is lost, repeated or changed, whether its agent says that it ended or never does."""
    gate = tmp_path / "gate"
    gate.touch()
    with two_engines(f"gate={gate}") as (client, machines):

        async def world() -> None:
            caller = Caller(client)
            requests = [request(f"r{index}", [index, 1], max_tokens=40) for index in range(20)]
            caller.send(*requests)
            await caller.until(lambda: len(caller.events) >= 20)  # each has a token
            first = machines.agents[0]
            if how == "lose":
                first.is_lost = True
                process = client.engines[0].supervisor.run
                assert process is not None
                process.process.kill()  # as the front end does after a silence
                assert process.process.exit_reason() == KILLED
            else:
                first.agent.kill()
            await eventually(lambda: client.members[0].vitals.num_deaths == 1)
            gate.unlink()
            await caller.until(caller.is_done)
            check(caller, *requests)
            await eventually(lambda: client.members[0].vitals.num_restarts == 1)

        run(world)
    assert len(machines.agents) == 3


def engine_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: LinkKeys | None
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.IDENTITY, identity(WORK_SOCKET, 1))
    socket.set(zmq.LINGER, 0)
    if keys is not None:
        use_as_engine(socket, keys)
    socket.connect(address)
    return socket


def _mixed(secret: bytes) -> LinkKeys:
    """Return the keys of one who knows the front end's public key and no more."""
    public, private = zmq.curve_keypair()
    right = keys_of(secret)
    return LinkKeys(right.front, right.engine._replace(public=public, private=private))


@pytest.mark.parametrize("who", ["nobody", "another", "listener"])
def test_who_does_not_know_the_secret_is_never_heard(who: str) -> None:
    keys = {"nobody": None, "another": keys_of(secrets.token_bytes(32)), "listener": _mixed(SECRET)}
    launcher = RemoteLauncher(lambda *_: pytest.fail("nothing is launched"), "127.0.0.1", SECRET)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        wrong = context.socket(zmq.DEALER)
        wrong.set(zmq.IDENTITY, identity(HEARTBEAT_SOCKET, 1))
        wrong.set(zmq.LINGER, 0)
        if (given := keys[who]) is not None:
            use_as_engine(wrong, given)
        events = wrong.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_DISCONNECTED
        )
        wrong.connect(launcher.address)
        wrong.send(b"let me in")
        assert events.poll(int(SECONDS) * 1000), "its connection was not ended"
        right = engine_socket(context, launcher.address, keys_of(SECRET))
        right.send(b"hello")
        launcher.wait(SECONDS)
        found = launcher.receive()
        assert found is not None
        assert (found.data, found.is_heartbeat) == (b"hello", False)
        assert launcher.receive() is None
    finally:
        context.destroy(linger=0)
        launcher.close()


def test_a_secret_is_drawn_for_this_machine_and_needed_for_others() -> None:
    with pytest.raises(ConfigError, match="secret"):
        RemoteLauncher(lambda *_: pytest.fail("nothing is launched"), "0.0.0.0", None)
    given: list[bytes] = []

    def start(address: str, epoch: int, secret: bytes) -> Any:
        given.append(secret)

    launchers = [RemoteLauncher(start, "127.0.0.1", None) for _ in range(2)]
    for each in launchers:
        each.launch(1)
        each.close()
    assert len(set(given)) == 2


def test_keys_follow_from_the_secret_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert read_secret(path) == SECRET
    assert keys_of(read_secret(path)) == keys_of(SECRET)
    assert (
        len({*keys_of(SECRET).front, *keys_of(SECRET).engine, *keys_of(SECRET + b"x").front}) == 6
    )
    path.write_bytes(b"short\n")
    with pytest.raises(SecretError, match="16"):
        read_secret(path)
    with pytest.raises(SecretError, match="cannot be read"):
        read_secret(tmp_path / "gone")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"link_host": "10.0.0.1"}, "link_host"),
        ({"link_secret_file": "/secret"}, "link_secret_file"),
        ({"engine_cpus": 2}, "engine_cpus"),
        ({"data_parallel_backend": "ray", "link_host": "0.0.0.0"}, "link_secret_file"),
        ({"data_parallel_backend": "ray", "enable_lora": True}, "enable_lora"),
        ({"data_parallel_backend": "ray", "spare_engine": True}, "spare_engine"),
        ({"data_parallel_backend": "slurm"}, "data_parallel_backend"),
        ({"distributed_executor_backend": "ray"}, "data_parallel_backend=ray"),
    ],
)
def test_settings_of_links_that_cannot_be(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_arguments("a-model", given)


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from octavo.client.process import launch_engines

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[ray\]'"):
        launch_engines(EngineArguments(model="a-model", data_parallel_backend="ray"))


def test_a_watcher_of_a_closed_loop_is_not_called() -> None:
    """An agent may say that it ended after the front end's event loop has."""
    calls: list[Callable[[], None]] = []

    class Silent(LocalAgent):
        def __init__(self) -> None:
            pass

        def watch(self, on_end: Callable[[], None]) -> None:
            calls.append(on_end)

    launcher = RemoteLauncher(lambda *_: Silent(), "127.0.0.1", SECRET)

    async def watch() -> None:
        launcher.launch(1).watch(lambda: pytest.fail("it is called"))
        await asyncio.sleep(0)

    try:
        asyncio.run(watch())
        calls[0]()
    finally:
        launcher.close()
