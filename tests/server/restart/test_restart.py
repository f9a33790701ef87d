"""A server is replaced under load, and no request fails: by a handover, and by systemd's socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.restart.program import LIMIT, Process, load_on

pytestmark = pytest.mark.slow
Start = Callable[..., Process]


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(settings: dict[str, Any], **more: Any) -> Process:
        started.append(Process(directory, settings, **more))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def by_handover(start: Start, directory: Path) -> None:
    """Let two servers follow on the first one's port, with its administration socket."""
    path, admin = directory / "handover", directory / "admin"
    settings = {"handover": str(path), "admin_socket": str(admin)}
    servers = [start({**settings, "port": 0})]
    port = servers[0].port
    with load_on(f"http://127.0.0.1:{port}") as load:
        for _ in range(2):
            load.wait_for_more(20)
            servers.append(start({**settings, "port": port}))
            assert servers[-2].wait() == 0  # its kept connections have ended too
            load.wait_for_more(20)
    transport = httpx.HTTPTransport(uds=str(admin))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=LIMIT) as client:
        assert client.get("/in_flight").json() == {"in_flight": []}
    assert path.stat().st_mode & 0o777 == 0o600
    servers[-1].stop()
    assert servers[-1].wait() == 0
    assert not list(directory.iterdir())


def by_handover_of_a_unix_socket(start: Start, directory: Path) -> None:
    uds = directory / "clients"
    settings = {"handover": str(directory / "handover"), "uds": str(uds)}
    first = start(settings)
    with load_on("http://localhost", str(uds)) as load:
        load.wait_for_more(10)
        second = start(settings)
        assert first.wait() == 0
        load.wait_for_more(10)
    second.stop()
    assert second.wait() == 0
    assert not list(directory.iterdir())


def by_systemd(start: Start, directory: Path) -> None:
    """End the old process before the new one starts; requests wait meanwhile."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        port = listening.getsockname()[1]
        server = start({"port": port}, passed=listening.fileno())
        with load_on(f"http://127.0.0.1:{port}") as load:
            for _ in range(2):
                load.wait_for_more(20)
                server.stop()
                assert server.wait() == 0
                server = start({"port": port}, passed=listening.fileno())
                load.wait_for_more(20)


@pytest.mark.sample(1)
@pytest.mark.parametrize("replace", [by_handover, by_handover_of_a_unix_socket, by_systemd])
def test_a_server_is_replaced_and_no_request_fails(
    replace: Callable[[Start, Path], None], start: Start, tmp_path: Path
) -> None:
    replace(start, tmp_path)


def test_systemd_gets_the_state_and_signs_of_life(start: Start, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(LIMIT)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "100000"}
        server = start({"port": 0}, environment=environment)
        states: list[bytes] = []
        while states.count(b"WATCHDOG=1") < 3 or b"READY=1" not in states:
            states.append(systemd.recv(100))
        server.stop()
        while b"STOPPING=1" not in states:
            states.append(systemd.recv(100))
        assert server.wait() == 0
    assert set(states) == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}
