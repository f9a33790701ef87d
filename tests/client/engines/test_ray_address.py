"""The address of a Ray cluster: one at which no server listens is refused at once."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from octavo.client.remote.ray_cluster import connected, first_line
from octavo.core.config import ConfigError


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Put a Ray in place that notes how it is begun; return the notes."""
    notes: list[object] = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **given: notes.append(given))
    monkeypatch.setitem(sys.modules, "ray", ray)
    return notes


def test_a_cluster_that_cannot_be_reached_is_named(
    begun: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=f"no Ray cluster at RAY_ADDRESS={address}"):
            connected("engines")
    assert not begun


@pytest.mark.parametrize("address", ["", "auto", "ray://127.0.0.1:1", "local"])
def test_what_is_no_host_and_port_is_left_to_ray(
    address: str, begun: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    connected("engines")
    assert len(begun) == 1


def test_a_cluster_that_listens_is_taken(
    begun: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")
        connected("engines")
    assert len(begun) == 1


def test_the_first_line_of_an_error_says_what_there_is() -> None:
    assert first_line(RuntimeError("it died\n\tclass_name: x\n")) == "it died"
    assert first_line(RuntimeError()) == "RuntimeError"
