"""Nodes of an engine on a cluster of Ray, of which a double says what was asked of it."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from octavo.client.remote.nodes import first_node
from octavo.client.remote.ray_nodes import RayNodes
from octavo.options.engine import read_arguments
from tests.client.clients import LIMIT


class Cluster:
    """A double of the module of Ray, and of the cluster behind it."""

    def __init__(self, *, has_room: bool = True) -> None:
        self.util = self
        self.has_room = has_room
        self.is_asked = threading.Event()
        self.is_removed = threading.Event()
        self.started: list[Any] = []
        self.killed: list[Any] = []

    def placement_group(self, *_: Any, **__: Any) -> Any:
        return self

    def wait(self, seconds: float) -> bool:
        self.is_asked.set()
        return self.has_room

    def remove_placement_group(self, group: Any) -> None:
        self.is_removed.set()

    def remote(self, kind: type) -> Any:
        return self

    def options(self, **_: Any) -> Any:
        return types.SimpleNamespace(remote=self._start)

    def _start(self) -> Any:
        reference = types.SimpleNamespace(future=Future)
        run = types.SimpleNamespace(remote=lambda *_: reference)
        self.started.append(types.SimpleNamespace(run=run))
        return self.started[-1]

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        self.killed.append(actor)
        raise RuntimeError("the cluster does not answer")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], RayNodes]:
    strategies: Any = types.ModuleType("ray.util.scheduling_strategies")
    strategies.PlacementGroupSchedulingStrategy = lambda *_, **__: None
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)
    asked = read_arguments(
        "m", {"pipeline_parallel_size": 3, "distributed_executor_backend": "ray"}
    )

    def place(cluster: Cluster) -> RayNodes:
        places: Any = types.SimpleNamespace(
            ray=cluster,
            asked=asked,
            first=first_node(asked, "127.0.0.1"),
            here="here",
            lost=list,
            note_placed=lambda group: None,
        )
        return RayNodes(places, None)

    return place


def test_what_cannot_be_ended_keeps_nothing_else(placed: Callable[[Cluster], RayNodes]) -> None:
    """The next engine needs the room of all, which the placement would keep."""
    cluster = Cluster()
    nodes = placed(cluster)
    assert cluster.is_asked.wait(LIMIT)
    nodes.close()
    assert cluster.is_removed.wait(LIMIT)
    assert cluster.killed == cluster.started
    assert len(cluster.killed) == 2


def test_nodes_that_are_closed_while_they_are_placed_start_nothing(
    placed: Callable[[Cluster], RayNodes],
) -> None:
    cluster = Cluster(has_room=False)
    nodes = placed(cluster)
    assert cluster.is_asked.wait(LIMIT)
    nodes.close()
    assert cluster.is_removed.wait(LIMIT)
    assert not cluster.started
    assert nodes.ended() is None
