"""Engines that are started elsewhere: links need the secret, and one that is lost is replaced."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from octavo.client.process import ProcessClient, make_client
from octavo.client.remote import launcher as launcher_module
from octavo.client.remote import ray_agent
from octavo.client.remote.agent import Agent, Ended
from octavo.client.remote.launcher import KILLED, RemoteLauncher
from octavo.client.remote.ray_agent import _Actor
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.wire.channel import HEARTBEAT_SOCKET, WORK_SOCKET, identity
from octavo.wire.crash_record import CrashRecord
from octavo.wire.link import LinkKeys, SecretError, keys_of, read_secret, use_as_engine
from tests.client.clients import FACTORY, Caller, check, eventually, patient, request, run

SECRET = b"a secret of the tests, which no other test has"
SECONDS = 300.0
RAY_WITH_SECRET = {"data_parallel_backend": "ray", "link_secret_file": "/secret"}


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


def test_a_connection_without_a_handshake_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time bounds what it makes the front end keep."""
    monkeypatch.setattr(launcher_module, "HANDSHAKE_MILLISECONDS", 50)
    launcher = RemoteLauncher(lambda *_: pytest.fail("nothing is launched"), "127.0.0.1", SECRET)
    try:
        assert launcher._socket.get(zmq.HANDSHAKE_IVL) == 50  # ZeroMQ's own time is 30 s
        port = int(launcher.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), SECONDS) as silent:
            while silent.recv(4096):  # a greeting
                pass
    finally:
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
        ({"data_parallel_backend": "ray", "link_host": "10.0.0.1"}, "link_secret_file"),
        ({**RAY_WITH_SECRET, "link_host": "0.0.0.0"}, "no address to which engines can"),
        ({**RAY_WITH_SECRET, "link_host": "[::]"}, "no address to which engines can"),
        ({**RAY_WITH_SECRET, "link_host": "*"}, "no address to which engines can"),
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


def test_what_keeps_an_engine_from_its_start_is_its_reason(tmp_path: Path) -> None:
    """The secret may be missing on its machine."""
    actor = _Actor("tcp://127.0.0.1:1", 1, tmp_path / "gone", None)
    ended = actor.run()
    assert re.search(r"the secret in .*gone cannot be read: no such file", ended.reason)
    assert (ended.was_killed, ended.last_step) == (False, ())
    actor.dump_stacks()  # there are none


def test_an_engine_with_another_secret_says_so_and_ends() -> None:
    launcher = RemoteLauncher(lambda *_: pytest.fail("nothing is launched"), "127.0.0.1", SECRET)
    record = CrashRecord.make()
    reading, writing = os.pipe()
    try:
        os.write(writing, b"what another front end knows")
        os.close(writing)
        program = "import sys; from octavo.engine import process; process.LINK_SECONDS = 0.1; "
        program += "sys.exit(process.main(sys.argv[1:]))"
        words = ["--socket", launcher.address, "--epoch", "1", "--parent", str(os.getpid())]
        words += ["--crash-record", str(record), "--secret", str(reading), "--factory", FACTORY]
        ended = subprocess.run(
            [sys.executable, "-c", program, *words],
            pass_fds=[reading, record],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(record)
        launcher.close()
    assert ended.returncode == 1
    assert f"the front end at {launcher.address} has not answered" in ended.stderr
    assert "--link-secret-file" in ended.stderr
    assert "what another" not in ended.stderr


class Placed:
    """An actor of Ray, as far as `RayAgent` uses one."""

    def __init__(self) -> None:
        self.done: Future[Any] = Future()
        self.run = self.__ray_ready__ = self

    def remote(self) -> Placed:
        return self

    def future(self) -> Future[Any]:
        return self.done


def test_an_engine_that_ray_does_not_place_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_agent, "PLACED_SECONDS", 0.001)
    agent = ray_agent.RayAgent(None, Placed(), 64)
    deadline = time.monotonic() + SECONDS
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.001)
    assert "a machine with 64 free processors (--engine-cpus)" in caplog.text
    assert agent.ended() is None
