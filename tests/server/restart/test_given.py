"""A socket that another process has opened is used only where the settings say it is."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import env
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError, ServerStartError
from octavo.transport.restart.given import given_socket
from octavo.transport.restart.handover import Offer, find_predecessor
from octavo.transport.restart.systemd import Notifier
from octavo.transport.sockets import bind_unix

LIMIT = 300.0


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def pass_on(monkeypatch: pytest.MonkeyPatch, *passed: socket.socket) -> None:
    """Let the sockets be those that systemd passes to this process."""
    numbers = [os.dup(each.fileno()) for each in passed]
    monkeypatch.setattr(env, "passed_descriptors", lambda: numbers)


def test_the_socket_of_systemd_is_used(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(monkeypatch, listening)
    given = given_socket(ServerSettings(port=listening.getsockname()[1]))
    assert given is not None
    with given.listening as found:
        assert given.predecessor is None
        assert found.getsockname() == listening.getsockname()
        assert not found.get_inheritable()


@pytest.mark.parametrize(
    "settings",
    [{"port": 1}, {"host": "127.0.0.2", "port": 0}, {"uds": Path("/nowhere/socket")}],
)
def test_a_socket_elsewhere_is_refused(
    settings: dict[str, object], listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(monkeypatch, listening)
    with pytest.raises(ServerSettingsError, match="is passed is at"):
        given_socket(ServerSettings(**settings))  # type: ignore[arg-type]


def test_a_socket_of_all_addresses_needs_the_settings_that_need_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        pass_on(monkeypatch, everywhere)
        with pytest.raises(ServerSettingsError, match="who needs a key"):
            given_socket(ServerSettings(port=everywhere.getsockname()[1]))


def test_a_unix_socket_for_everyone_needs_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clients"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0o666)
        pass_on(monkeypatch, listening)
        with pytest.raises(ServerSettingsError, match="SocketMode=0600"):
            given_socket(ServerSettings(uds=path))
        path.chmod(0o600)
        pass_on(monkeypatch, listening)
        given = given_socket(ServerSettings(uds=path))
        assert given is not None
        given.listening.close()


def test_what_is_no_single_listening_socket_is_refused(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_on(monkeypatch, listening, listening)
    with pytest.raises(ServerSettingsError, match="2 sockets"):
        given_socket(ServerSettings())
    with socket.socket() as silent:
        pass_on(monkeypatch, silent)
        with pytest.raises(ServerSettingsError, match="does not listen"):
            given_socket(ServerSettings())


def test_the_variables_are_those_of_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_FDS", "2")
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    assert not env.passed_descriptors()
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    assert list(env.passed_descriptors()) == [3, 4]
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    assert env.watchdog_seconds() == 2.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert env.watchdog_seconds() is None
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    kept = env.child_environment({})
    assert not {"LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC", "NOTIFY_SOCKET"} & set(kept)


def test_who_asks_without_taking_over_changes_nothing(
    listening: socket.socket, tmp_path: Path
) -> None:
    path = tmp_path / "handover"
    left = threading.Event()

    def ask() -> None:
        for _ in range(2):
            found = find_predecessor(path)
            assert found is not None
            assert found.listening.getsockname() == listening.getsockname()
            found.close()
        assert not left.is_set()
        found = find_predecessor(path)
        assert found is not None
        found.finish()
        found.listening.close()

    async def main() -> None:
        offer = Offer(listening, left.set)
        offer.start(bind_unix(path, 0o600, "socket", "--handover"))
        await asyncio.to_thread(ask)
        assert left.is_set()
        assert await asyncio.to_thread(find_predecessor, path) is None  # it is over
        offer.stop()

    asyncio.run(main())


def test_what_offers_no_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "handover"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"something else")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ServerStartError, match="hands no socket over"):
            find_predecessor(path)
        thread.join(LIMIT)


@pytest.mark.parametrize("name", ["grpc_port", "journal", "responses_store", "batch_dir"])
def test_what_belongs_to_one_server_excludes_a_handover(name: str, tmp_path: Path) -> None:
    value = 0 if name == "grpc_port" else tmp_path / "x"
    with pytest.raises(ServerSettingsError, match=name):
        ServerSettings(handover=tmp_path / "h", **{name: value})  # type: ignore[arg-type]


def test_a_service_that_has_failed_gives_no_further_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    num_asked = 0

    def has_failed() -> bool:
        nonlocal num_asked
        num_asked += 1
        return num_asked > 2

    async def main() -> None:
        notifier = Notifier()
        notifier.say_ready()
        watching = asyncio.get_running_loop().create_task(notifier.watch(has_failed))
        while num_asked < 6:
            await asyncio.sleep(0.001)
        watching.cancel()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(address))
        receiver.setblocking(False)
        asyncio.run(main())
        received = [receiver.recv(100) for _ in range(3)]
        assert received == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        with pytest.raises(BlockingIOError):
            receiver.recv(100)
    errors = [each for each in caplog.records if each.name.startswith("octavo")]
    assert len(errors) == 1


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier().say("READY=1")
    asyncio.run(asyncio.wait_for(Notifier().watch(lambda: False), LIMIT))
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    Notifier().say("READY=1")
