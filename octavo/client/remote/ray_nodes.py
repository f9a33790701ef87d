"""The nodes of an engine as actors of Ray, which places each on a machine of its cluster."""

from __future__ import annotations

import logging
import math
import platform
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from octavo.client.remote.nodes import NodesLauncher, first_node, further_node
from octavo.client.remote.ray_cluster import connected, first_line
from octavo.observe.log import level_in_use, set_up_log
from octavo.options.engine import EngineArguments
from octavo.wire.message_types import pack, unpack

log = logging.getLogger(__name__)

REMIND_SECONDS = 30.0  # between two lines of the log about a placement that has no room
AVOID_SECONDS = 10.0  # in which machines that cannot be reached get no node, if others have room
REACH_SECONDS = 1.0
_LOOK_SECONDS = 1
_MACHINE = "ray.io/node-id"  # Ray's label of each machine


class _Node:
    """A node in a worker of Ray."""

    def run(self, arguments: bytes, log_level: int) -> str:
        """Run the stages of the node; return why they have ended, once they have.

        The arguments have the secret. Those of a method go from process to process; those of a
        constructor would be kept by Ray, with the actor.
        """
        from octavo.engine.nodes.headless import run_for_one_engine

        set_up_log(log_level)
        own = unpack(arguments, EngineArguments)
        return f"node {own.node_rank} ({platform.node()}): {run_for_one_engine(own)}"


def unreachable(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of those machines, as Ray describes them, to which nothing connects.

    Ray itself takes a quarter of a minute to learn that a machine is lost, and places nodes there.
    """

    def is_reached(machine: Mapping[str, Any]) -> bool:
        address = machine["NodeManagerAddress"], machine["NodeManagerPort"]
        try:
            socket.create_connection(address, REACH_SECONDS).close()
        except OSError:
            return False
        return True

    if not machines:
        return []
    with ThreadPoolExecutor(len(machines)) as pool:
        reached = [*pool.map(is_reached, machines)]
    return [str(m["NodeID"]) for m, each in zip(machines, reached, strict=True) if not each]


class NoPlaceError(Exception):
    """An error for a cluster without room for all nodes."""


class RayPlaces:
    """A cluster of Ray, on which the nodes of one engine after the other are placed."""

    def __init__(self, arguments: EngineArguments) -> None:
        self.ray = ray = connected("the nodes of an engine on a Ray cluster")
        self.asked = arguments
        self.first = first_node(arguments, str(ray.util.get_node_ip_address()))
        self.here = str(ray.get_runtime_context().get_node_id())
        self._is_first = True
        self._last: Sequence[str] = ()  # the machines of the newest placement

    def note_placed(self, group: Any) -> None:
        """Remember the machines of a placement."""
        found = self.ray.util.placement_group_table(group)["bundles_to_node_id"]
        self._last = tuple({*map(str, found.values())} - {self.here})

    def lost(self) -> list[str]:
        """Return those of the last machines that cannot be reached."""
        known = [each for each in self.ray.nodes() if each["Alive"]]
        return unreachable([each for each in known if each["NodeID"] in self._last])

    def place(self) -> RayNodes:
        """Begin to place the nodes of another engine."""
        seconds = self.asked.ray_placement_seconds if self._is_first else None
        self._is_first = False
        return RayNodes(self, seconds)


class RayNodes:
    """Implements `octavo.client.remote.nodes.PlacedNodes` by a placement group and its actors.

    A thread asks Ray, which may take its time to answer.
    """

    def __init__(self, places: RayPlaces, seconds: float | None) -> None:
        self._places = places
        self._seconds = seconds  # for there to be room; None: as long as the engine waits
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._on_end: Callable[[], None] | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="octavo nodes on Ray", daemon=True).start()

    def watch(self, on_end: Callable[[], None]) -> None:
        with self._lock:
            self._on_end = on_end
            if self._reason is None:
                return
        on_end()

    def ended(self) -> str | None:
        return self._reason

    def close(self) -> None:
        self._closing.set()

    def _end(self, reason: str) -> None:
        """Note why the nodes are of no use any more; later reasons follow from the first."""
        with self._lock:
            if self._reason is not None or self._closing.is_set():
                return
            self._reason, on_end = reason, self._on_end
        if on_end is not None:
            on_end()

    def _run(self) -> None:
        ray, asked = self._places.ray, self._places.asked
        group = None
        actors: list[Any] = []
        try:
            group = self._placed()
            if group is not None:
                actors.extend(self._start(group, rank) for rank in range(1, asked.nnodes))
        except NoPlaceError as error:
            self._end(str(error))
        except Exception as error:  # of Ray's, which has many
            self._end(f"Ray could not place the nodes: {type(error).__name__}: {error}")
        self._closing.wait()
        for actor in actors:
            _free(partial(ray.kill, actor, no_restart=True))
        if group is not None:
            _free(partial(ray.util.remove_placement_group, group))

    def _placed(self) -> Any:
        """Return a placement group with room for all nodes; None if none is wanted any more."""
        began = time.monotonic()
        lost = self._places.lost()
        while True:
            group = self._make_group(lost)
            try:
                if self._has_room(group, began, AVOID_SECONDS if lost else math.inf):
                    self._places.note_placed(group)
                    return group
            except BaseException:
                self._places.ray.util.remove_placement_group(group)
                raise
            self._places.ray.util.remove_placement_group(group)
            if self._closing.is_set():
                return None
            lost = []  # they may be there again, and nothing else has room

    def _make_group(self, avoided: Sequence[str]) -> Any:
        asked = self._places.asked
        others = {_MACHINE: f"!in({', '.join(avoided)})"} if avoided else {}
        return self._places.ray.util.placement_group(
            [{"CPU": float(asked.engine_cpus)}] * asked.nnodes,
            strategy=asked.ray_placement.upper(),
            bundle_label_selector=[{_MACHINE: self._places.here}, *[others] * (asked.nnodes - 1)],
        )

    def _has_room(self, group: Any, began: float, seconds: float) -> bool:
        """Return whether a group gets its places in so many seconds, while it is wanted."""
        until = time.monotonic() + seconds
        remind_at = began + REMIND_SECONDS
        while not group.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if self._closing.is_set() or now >= until:
                return False
            if self._seconds is not None and now >= began + self._seconds:
                raise NoPlaceError(f"{self._lack()} (waited for {self._seconds:g} s)")
            if now >= remind_at:
                remind_at = now + REMIND_SECONDS
                log.warning("still waiting: %s", self._lack())
        return True

    def _lack(self) -> str:
        """Describe what Ray needs, and what it has."""
        ray, asked = self._places.ray, self._places.asked
        alive = sum(bool(each["Alive"]) for each in ray.nodes())
        free, total = (
            found.get("CPU", 0.0) for found in (ray.available_resources(), ray.cluster_resources())
        )
        machines = "1 machine" if alive == 1 else f"{alive} machines"
        where = "on machines of their own" if asked.ray_placement != "pack" else "somewhere"
        return (
            f"the Ray cluster has no room for {asked.nnodes} nodes {where}, the first one here, "
            f"each with engine_cpus={asked.engine_cpus} processors that are free: it has "
            f"{machines}, with {free:g} of {total:g} processors free, as `ray status` shows; add "
            "machines, or lower pipeline_parallel_size, nnodes or engine_cpus"
        )

    def _start(self, group: Any, rank: int) -> Any:
        """Start the actor of a node in its place."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray, asked = self._places.ray, self._places.asked
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        kind = ray.remote(_Node).options(
            num_cpus=asked.engine_cpus, max_restarts=0, scheduling_strategy=place
        )
        actor = kind.remote()
        arguments = pack(further_node(self._places.first, rank))
        future: Future[str] = actor.run.remote(arguments, level_in_use()).future()
        future.add_done_callback(lambda done: self._end(_how_ended(rank, done)))
        return actor


def _free(call: Callable[[], object]) -> None:
    """Free a part of a placement; the others are freed whatever becomes of it."""
    try:
        call()
    except Exception as error:  # Ray frees it itself when this process ends
        log.warning("Ray did not end the nodes of an engine: %s", error)


def _how_ended(rank: int, done: Future[str]) -> str:
    error = done.exception()
    if error is None:
        return done.result()
    log.info("the actor of node %d has ended: %s", rank, first_line(error))
    return f"the actor of node {rank} has ended ({type(error).__name__})"


def ray_nodes_launcher(arguments: EngineArguments) -> tuple[NodesLauncher, EngineArguments]:
    """Return a launcher of engines whose further nodes Ray places, and the engine's arguments."""
    places = RayPlaces(arguments)
    return NodesLauncher(places.place), places.first
