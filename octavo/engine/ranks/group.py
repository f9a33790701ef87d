"""The further ranks of an engine: started, watched and ended by the process of the first one."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from msgspec import Raw, structs

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.backends.native.ranks.messages import LeadingBackend
from octavo.distributed.context import ALONE, ParallelContext, RankPlace
from octavo.engine.ranks.followers import Follower, LocalFollower, launch
from octavo.engine.ranks.link import FileState, Link, StartRank, say_end
from octavo.engine.ranks.memory import RankMemory
from octavo.engine.ranks.placement import bind, shares_of_ranks
from octavo.observe.log import level_in_use
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig
from octavo.wire.message_types import pack

log = logging.getLogger(__name__)

PROGRAM = "octavo.engine.ranks.process"
NOTING_SECONDS = 0.3  # until the end of a process is noted


class ProcessGroup:
    """The further processes of an engine, which end with it, as it ends with each of them."""

    def __init__(self, size: int) -> None:
        self._followers: list[Follower] = []
        self._descriptors: list[int] = []  # of connections that native code has
        self._closing = threading.Event()
        self._end: Callable[[str], None] = lambda reason: None
        self._on_end: Callable[[], None] = lambda: None
        self.reason = ""  # why the group has ended
        self._has_reason = threading.Event()
        self.size = size  # with this process
        self.close = weakref.finalize(self, _close, self._followers, self._closing, os.getpid())
        _groups.add(self)

    def _launch(
        self, name: str, count: int, program: str, words: Sequence[str], descriptors: Sequence[int]
    ) -> Follower:
        """Start a process, which inherits these descriptors; it is one of so many like it."""
        process, link = launch(program, words, descriptors)
        self._followers.append(LocalFollower(name, count, link, process))
        return self._followers[-1]

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        """Let the others load their share, as the first process does with its backend."""
        found, size = backend.arithmetic, config.core.block_size
        arguments = replace(
            config.arguments,
            cpu_isa=found.instruction_set,
            accumulation_order=found.accumulation_order,
        )
        states = tuple(FileState.of(file.path) for file in files)
        level = max(level_in_use(), logging.WARNING)  # what is as usual, this process says
        self._start(StartRank(Raw(pack(arguments)), size, states, level))

    def start(
        self, message: StartRank, arguments: EngineArguments, listeners: Sequence[Link]
    ) -> None:
        """Let the others load their share as this process does, which ends with the first of them.

        The arguments are those of this machine; why it ends is sent to the listeners.
        """

        def end(reason: str) -> None:
            say_end(reason, listeners)
            os._exit(4)

        self._end = end
        self._start(structs.replace(message, arguments=Raw(pack(arguments))))

    def _start(self, message: StartRank) -> None:
        for follower in self._followers:
            with suppress(OSError):  # it has ended, as `wait` will notice
                follower.start(message)

    def wait(self) -> int:
        """Wait until all others have their weights; return the bytes of these on this machine.

        Raise FurtherProcessError if one cannot load them.
        """
        num_bytes = 0
        group = weakref.ref(self)
        for follower in self._as_they_answer():
            follower.wait_for_start()
            num_bytes += follower.local_bytes
            # At once, since it gives signs of life from now on, which must be read.
            threading.Thread(
                target=_watch,
                args=(follower, self._closing, group),
                name=f"octavo {follower.name}",
                daemon=True,
            ).start()
        return num_bytes

    def _as_they_answer(self) -> Iterator[Follower]:
        """Yield each process once its answer, or its end, has come."""
        with selectors.DefaultSelector() as waiting:
            for follower in self._followers:
                waiting.register(follower.link.connection, selectors.EVENT_READ, follower)
            while waiting.get_map():
                for key, _ in waiting.select():
                    waiting.unregister(key.fileobj)
                    yield key.data

    @property
    def context(self) -> ParallelContext:
        """The share of the model's matrices that is cut out for this process."""
        return ALONE

    def with_room(
        self, config: EngineConfig, backend: Backend, free_bytes: int
    ) -> tuple[EngineConfig, int]:
        """Return the settings and the free memory by which the KV cache gets its size."""
        return config, free_bytes

    def call_at_end(self, on_end: Callable[[], None]) -> None:
        """Call this, in any thread, when one has ended; at once if one has already."""
        self._on_end = on_end
        if self.reason:
            on_end()

    def leave_connections(self) -> None:
        """Close the connections in a process that does not own the others."""
        for follower in self._followers:
            follower.link.connection.close()
        if not self._descriptors or not self.close.alive:
            return
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._descriptors:  # which their owners still close
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def give_up(self, reason: str) -> None:
        """Let a step that waits for the others fail, since this process ends too."""
        self._closing.set()
        self._end(reason)

    def note_end(self, reason: str) -> None:
        """End the group because one of its processes has ended."""
        if self.reason:
            return
        self.reason = reason
        log.error("%s, and the engine ends with it", reason)
        self._has_reason.set()
        self._end(reason)
        self._on_end()

    def reason_soon(self) -> str:
        """Return why the group has ended, as is known within NOTING_SECONDS; empty if it is not.

        A step that one of its processes has left fails at once, and perhaps before that is noted.
        """
        self._has_reason.wait(NOTING_SECONDS)
        return self.reason

    @contextmanager
    def noting_ends(self) -> Iterator[None]:
        """Let an error wait for this process's end, if one of the others has ended.

        That is why it fails, and what ends this process says so.
        """
        try:
            yield
        except RuntimeError:
            if self.reason_soon():
                threading.Event().wait()
            raise


_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _leave_connections() -> None:
    """Close, in a process that was just forked, the connections that are its parent's.

    Their end is the end of the parent, which the others would not see while another has them.
    """
    for group in _groups:
        group.leave_connections()


os.register_at_fork(after_in_child=_leave_connections)


class RankGroup(ProcessGroup):
    """The further ranks of an engine, or of one of its nodes, and the memory that all map."""

    def __init__(self, num_ranks: int, *, sums: bool, first: int = 0, total: int = 0) -> None:
        """Start them; of a node, `first` is the number of this process among all, `total`."""
        super().__init__(num_ranks)
        self._sums = sums
        self._memory = RankMemory(num_ranks)
        own, *others = shares_of_ranks(num_ranks)
        self._threads = own.threads
        try:
            for rank, share in enumerate(others, 1):
                memory = [self._memory.descriptor]
                words = [*self._memory.words(rank), *share.words]
                self._launch(f"rank {first + rank}", total or num_ranks, PROGRAM, words, memory)
        except BaseException:
            self.close()
            self._memory.close()
            raise
        bind(own, f"rank {first}")  # after the others have started, which would inherit it

    @property
    def place(self) -> RankPlace:
        """The place of this process."""
        return structs.replace(self._memory.place(self, self._threads), sums=self._sums)

    @property
    def context(self) -> ParallelContext:
        return ParallelContext(0, self.size) if self._sums else ALONE

    def leave_memory(self) -> None:
        """Close the memory, once it is mapped here; the others have it."""
        self._memory.close()

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        assert isinstance(backend, LeadingBackend), "no other backend has ranks"
        assert backend.ranks is not None
        self.leave_memory()
        self._end = backend.ranks.end
        super().load(config, files, backend)


def _watch(follower: Follower, closing: threading.Event, group: weakref.ref[ProcessGroup]) -> None:
    """Wait until a process ends, which ends the group unless that is being closed."""
    said = follower.wait_for_end()
    if closing.is_set():
        return
    reason = follower.describe_end(said)
    found = group()
    if found is not None and not closing.is_set():
        found.note_end(reason)


def _close(followers: list[Follower], closing: threading.Event, owner: int) -> None:
    """End the processes: each does that by itself when its connection ends.

    A process that was forked from the owner has the connections too, and ends nothing.
    """
    if os.getpid() != owner:
        return
    closing.set()
    for follower in followers:
        with suppress(OSError):
            follower.link.connection.shutdown(socket.SHUT_RDWR)
    for follower in followers:
        follower.end()
        follower.link.connection.close()
