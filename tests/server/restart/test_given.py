"""A socket that another process has opened is used only where the settings say it is."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import env
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError, ServerStartError
from octavo.server.lifecycle import ServerLifecycle
from octavo.server.site import OneModel
from octavo.serving.adapters.service import AdapterService
from octavo.serving.server import Server
from octavo.transport import lifecycle
from octavo.transport.restart.given import check_addresses, given_socket
from octavo.transport.restart.handover import Offer, find_predecessor, take_over
from octavo.transport.restart.systemd import Notifier
from octavo.transport.sockets import bind_beside, bind_unix, put_in_place
from tests.server.engine import FakeEngine
from tests.server.make import listening as serving_in_thread
from tests.server.make import patient

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


def test_a_socket_of_another_user_is_not_taken(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "handover"
    asked = socket.socket.getsockopt

    def getsockopt(self: socket.socket, level: int, name: int, *more: int) -> int | bytes:
        if name == socket.SO_PEERCRED:
            return struct.pack("iII", 1, os.geteuid() + 1, 0)
        return asked(self, level, name, *more)

    with bind_unix(path, 0o600, "socket", "--handover") as other:
        other.listen()
        monkeypatch.setattr(socket.socket, "getsockopt", getsockopt)
        with pytest.raises(ServerStartError, match="another user"):
            find_predecessor(path)


def test_a_file_at_the_path_of_the_handover_stays(tmp_path: Path) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text("model: tiny")
    for check in (
        lambda: find_predecessor(path),
        lambda: bind_beside(path, "handover socket", "--handover"),
        lambda: check_addresses(ServerSettings(port=0, handover=path)),
    ):
        with pytest.raises(ServerStartError, match="another path for --handover"):
            check()
    assert path.read_text() == "model: tiny"
    assert list(tmp_path.iterdir()) == [path]


def test_two_servers_that_start_at_once_do_not_share_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "handover"
    with bind_beside(path, "handover socket", "--handover"):
        with pytest.raises(ServerStartError, match="another server answers"):
            bind_beside(path, "handover socket", "--handover")
        put_in_place(path)
        bind_beside(path, "handover socket", "--handover").close()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_server_that_cannot_start_leaves_the_files_of_the_one_before(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """Let the next server fail before it has asked for the place, or while it does."""
    names = ("handover", "admin_socket", "uds")
    settings: dict[str, Any] = {name: tmp_path / name for name in names}
    files = set(settings.values())

    async def fail(*_: object) -> None:
        raise ServerStartError("on purpose")

    with serving_in_thread(directory, **settings):
        engine = FakeEngine(directory)
        if is_late:
            monkeypatch.setattr(lifecycle, "take_over", lambda _: asyncio.run(fail()))
        else:
            monkeypatch.setattr(AdapterService, "start", fail)
        site = OneModel(Server(engine, patient(port=0, **settings)))
        with pytest.raises(ServerStartError, match="on purpose"):
            asyncio.run(ServerLifecycle(site, handles_signals=False).run())
        engine.close()
        assert set(tmp_path.iterdir()) >= files
        assert not {each for each in tmp_path.iterdir() if each.suffix == ".new"}
        for path in files:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))


def test_a_server_may_take_longer_to_start_than_the_other_side_waits(
    listening: socket.socket, tmp_path: Path
) -> None:
    path = tmp_path / "handover"
    left = threading.Event()

    def ask() -> None:
        given = given_socket(ServerSettings(port=listening.getsockname()[1], handover=path))
        assert given is not None
        with given.listening:
            another = find_predecessor(path)  # the other side is free meanwhile
            assert another is not None
            another.close()
            assert not left.is_set()
            take_over(path)
            assert left.is_set()

    async def main() -> None:
        offer = Offer(listening, left.set)
        offer.start(bind_unix(path, 0o600, "socket", "--handover"))
        await asyncio.to_thread(ask)
        await asyncio.to_thread(take_over, path)  # it has ended: nothing is in the way
        offer.stop()

    asyncio.run(main())


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
