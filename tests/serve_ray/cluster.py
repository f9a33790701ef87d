"""A Ray cluster of two nodes on this machine, with Octavo's application on it, for its tests."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# A machine that is busy starts a process in minutes; Ray's own limits would end it before.
PATIENT = {
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "600",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
MEMORY_BYTES = 80_000_000  # of a node's object store, the least that Ray takes, nearly
NODE_CPUS = 2
SECONDS = 900.0  # against hanging
NAME = "octavo"
PORTS = (
    *("metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port"),
    "metrics_export_port",
)


class Answer(NamedTuple):
    """An answer, as far as it came."""

    status: int
    text: str


class Nodes:
    """A cluster of Ray with two nodes on this machine."""

    def __init__(self) -> None:
        self._environment = pytest.MonkeyPatch()
        for name, value in PATIENT.items():
            self._environment.setenv(name, value)
        import ray
        from ray.cluster_utils import Cluster as RayCluster

        self._ray = ray
        with _known_ports():
            self._nodes = RayCluster(initialize_head=True, connect=True, head_node_args=_node())
            self._second = self._nodes.add_node(**_node())

    @property
    def second_id(self) -> str:
        """The name of the second node, as Ray writes it."""
        return str(self._second.node_id)

    def pids(self, name: str) -> dict[int, str]:
        """Return the processes of the actors of a class or a name, with the node of each."""
        from ray._private.state import actors

        return {
            int(each["Pid"]): each["Address"]["NodeID"]
            for each in actors().values()
            if each["State"] == "ALIVE" and (name in each["Name"] or name == each["ActorClassName"])
        }

    def add(self) -> str:
        """Add a further node, and return its name."""
        with _known_ports():
            return str(self._nodes.add_node(**_node()).node_id)

    @property
    def address(self) -> str:
        """The address by which other programs find the cluster."""
        return str(self._nodes.address)

    def further_ids(self) -> set[str]:
        """Return the names of all nodes but the first, of those that have not been lost."""
        return {str(each.node_id) for each in self._nodes.worker_nodes}

    def lose(self, node: str) -> None:
        """Kill all processes of a node that has this name."""
        found = next(each for each in self._nodes.worker_nodes if each.node_id == node)
        self._nodes.remove_node(found, allow_graceful=False)

    def num_nodes(self) -> int:
        """Return how many nodes Ray knows to live; it learns of a lost one after a while."""
        return sum(bool(each["Alive"]) for each in self._ray.nodes())

    def is_free(self) -> bool:
        """Return whether Ray knows of no processor that is in use; it learns of each end later."""
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        return bool(free.get("CPU") == total.get("CPU"))

    def num_groups(self) -> int:
        """Return how many placement groups there are."""
        states = [each["state"] for each in self._ray.util.placement_group_table().values()]
        return sum(each != "REMOVED" for each in states)

    def lose_second(self) -> None:
        """Kill all processes of the second node, as when its machine ends."""
        self._nodes.remove_node(self._second, allow_graceful=False)

    def close(self) -> None:
        """End all nodes, and the connection to them."""
        self._ray.shutdown()
        self._nodes.shutdown()
        self._environment.undo()


class Cluster(Nodes):
    """Two nodes with Octavo's application, the first of which has the proxy."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        from ray import serve
        from ray.serve._private import api

        self.model = model
        self._serve = serve
        self.port = _free_ports(1)[0]
        api.HTTP_PROXY_TIMEOUT = int(SECONDS)  # 60 s, and no setting
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})

    def run(self, **options: Any) -> None:
        """Start the application, or replace it, and wait until it serves."""
        from octavo.serve_ray import app

        given = {"model": str(self.model), "num_threads": 1, "silence_seconds": 300, **options}
        self._serve.run(app(given), name=NAME, route_prefix="/")

    def num_replicas(self) -> int:
        """Return how many replicas run."""
        deployments = self._serve.status().applications[NAME].deployments
        return int(deployments["engine"].replica_states.get("RUNNING", 0))

    def replicas(self, name: str) -> dict[int, str]:
        """Return the processes of a deployment's replicas, with the node of each."""
        return self.pids(f"{NAME}#{name}#")

    def close(self) -> None:
        """End the application, and all nodes."""
        self._serve.shutdown()
        super().close()

    # what clients do

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> Answer:
        """Return a whole answer."""
        try:
            with self.opened(path, body, key) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())

    def opened(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> Any:
        """Return the response of a request, whose body is still to be read."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = f"http://127.0.0.1:{self.port}{path}"
        return urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=SECONDS)

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream; one that breaks off has an error, or no end."""
        with self.opened("/v1/completions", {**body, "stream": True}) as response:
            for line in response:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    yield {"done": True}
                elif data and not data.startswith(":"):
                    yield json.loads(data)


@contextmanager
def _known_ports() -> Iterator[None]:
    """Write the ports of a node's agents before it starts.

    They are those that the node is given. It waits 15 s for its agents to write them, and ends if
    that takes longer, as on a busy machine.
    """
    from ray._private.node import Node

    start = Node.start_raylet

    def write_and_start(node: Any, *given: Any, **options: Any) -> Any:
        for name in PORTS:
            port = getattr(node._ray_params, name)
            (Path(node._session_dir) / f"{name}_{node._node_id}").write_text(str(port))
        return start(node, *given, **options)

    Node.start_raylet = write_and_start
    try:
        yield
    finally:
        Node.start_raylet = start


def _node() -> dict[str, Any]:
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    return {
        "num_cpus": NODE_CPUS,
        "object_store_memory": MEMORY_BYTES,
        "include_dashboard": False,
        **ports,
    }


def _free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


def wait_for(condition: Callable[[], bool], what: str) -> float:
    """Wait until something holds; return how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS, f"it has not come to pass: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


@contextmanager
def cluster(model: Path) -> Iterator[Cluster]:
    """Run a cluster for as long as the block lasts."""
    made = Cluster(model)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def nodes() -> Iterator[Nodes]:
    """Run two nodes without an application for as long as the block lasts."""
    made = Nodes()
    try:
        yield made
    finally:
        made.close()
