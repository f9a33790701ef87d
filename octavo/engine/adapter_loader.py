"""Adapters are loaded beside the steps, so that one delays only the requests that name it.

A request whose adapter is in memory pins it, and waits for nothing. Another one is held by the core
until its adapter has been read, checked and packed. As many adapters stay in memory as the settings
allow, and only so many bytes of them; the one that was used longest ago makes room for the next,
and one that is pinned never does. While all are pinned, requests wait for room in the order of
their arrival; those that could go on at once may overtake them, but only so many.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from octavo.adapters.read import GGUF_FILE, PEFT_FILE, SETTINGS_FILE, AdapterReader
from octavo.backends.adapter_weights import AdapterWeights
from octavo.core.request import Ready, Request
from octavo.core.stats import ADAPTER
from octavo.engine.commands import NO_LOADER, CommandRefusedError
from octavo.engine.tensor_files import NO_ROOM, Outcome, TensorFiles
from octavo.loader.errors import UnsupportedFormatError
from octavo.loader_process.connection import TOO_LARGE, TOO_MANY, TensorFile
from octavo.runner.adapter_slots import split_id
from octavo.wire.commands import FILE_FAULTS, LoadedFile

log = logging.getLogger(__name__)

KIND = "lora"
MAX_OVERTAKEN = 64  # requests that may go on while another waits for room


class Packed(NamedTuple):
    """An adapter in the backend's form, and the memory that it takes."""

    value: Any
    num_bytes: int


class Bounds(NamedTuple):
    """The most that memory may hold."""

    adapters: int
    num_bytes: int


class AdapterLoader:
    """The adapters in memory; implements `TensorFileKind`, `RequestFiles` and `AdapterSupply`.

    Only `prepare` is called in another thread than the engine's own.
    """

    names = (PEFT_FILE, GGUF_FILE)
    beside = (SETTINGS_FILE,)
    bounds_itself = True

    def __init__(
        self,
        reader: AdapterReader,
        pack: Callable[[AdapterWeights], Any],
        bounds: Bounds,
        directory: str | None,
        max_overtaken: int = MAX_OVERTAKEN,
    ) -> None:
        self._reader = reader
        self._pack = pack
        self._bounds = bounds
        self._max_overtaken = max_overtaken
        self._directory = directory  # None: requests have only what commands have loaded
        self._files: TensorFiles | None = None
        self._packed: dict[str, Packed] = {}  # by digest; those used longest ago come first
        self._given_up: dict[str, None] = {}  # those that leave memory when nothing uses them
        self._pins: dict[str, dict[str, None]] = {}  # digest → requests that use it
        self._digests: dict[str, str] = {}  # of the adapter of each request
        self._waiting: dict[str, dict[str, None]] = {}  # digest → requests that wait for it
        self._queue: deque[str] = deque()  # digests whose loading has not begun, oldest first
        self._loading: dict[str, int] = {}  # digest → bytes that it is known to need, or 0
        self._needed: dict[str, int] = {}  # bytes of what found no room, while requests wait
        # By digest: requests that went on while it was the first of the queue.
        self._overtaken: dict[str, int] = {}
        self._held: dict[str, None] = {}  # requests whose `Ready` has not been taken
        self._ready: list[Ready] = []

    def attach(self, files: TensorFiles) -> None:
        self._files = files

    # the kind

    def prepare(self, label: str, file: TensorFile) -> Packed:
        """Check an adapter, and pack it for the backend."""
        settings = file.beside.get(SETTINGS_FILE, b"")
        weights = self._reader.read(file.checkpoint, settings)
        try:
            value = self._pack(weights)
        except ValueError as error:
            raise UnsupportedFormatError(str(error), path=file.checkpoint.path) from None
        return Packed(value, int(value.num_bytes))

    def load(self, label: str, prepared: Packed) -> None:
        if prepared.num_bytes > self._bounds.num_bytes:
            raise CommandRefusedError(
                TOO_LARGE,
                f"an adapter of {prepared.num_bytes:,} bytes does not fit in memory, of which "
                f"adapters may take {self._bounds.num_bytes:,}: give one of a smaller rank, or "
                "free memory and start anew",
            )
        if not self._make_room(prepared.num_bytes, label):
            if label in self._waiting:
                self._needed[label] = prepared.num_bytes
            raise CommandRefusedError(
                NO_ROOM,
                f"an adapter of {prepared.num_bytes:,} bytes does not fit beside those in use: "
                f"there may be {self._bounds.adapters} with {self._bounds.num_bytes:,} bytes "
                "together (max_cpu_loras)",
            )
        self._needed.pop(label, None)
        self._given_up.pop(label, None)
        self._packed[label] = prepared

    def unload(self, label: str) -> None:
        if self._pins.get(label):
            self._given_up[label] = None
        else:
            del self._packed[label]

    def find(self, adapter: str) -> tuple[Any, float] | None:
        """Return an adapter in the backend's form, and the factor that a request asks for."""
        digest, factor = split_id(adapter)
        packed = self._packed.get(digest)
        return None if packed is None else (packed.value, factor)

    def _make_room(self, num_bytes: int, digest: str) -> bool:
        """Give up adapters that nothing uses until there is room for another; return whether.

        Others that are being loaded have their room already.
        """
        assert self._files is not None
        others = [each for name, each in self._loading.items() if name != digest]
        num = len(self._packed) + 1 + len(others)
        num_bytes += sum(others) + sum(packed.num_bytes for packed in self._packed.values())
        victims = []
        for name, packed in self._packed.items():
            if num <= self._bounds.adapters and num_bytes <= self._bounds.num_bytes:
                break
            if not self._pins.get(name):
                victims.append(name)
                num, num_bytes = num - 1, num_bytes - packed.num_bytes
        if num > self._bounds.adapters or num_bytes > self._bounds.num_bytes:
            return False
        for name in victims:
            self._files.give_up(KIND, name)
        return True

    @property
    def in_memory(self) -> Mapping[str, Packed]:
        """The adapters in memory, by digest."""
        return self._packed

    # requests

    @property
    def first_waiting(self) -> str | None:
        """The digest of the adapter that has waited longest for its loading to begin."""
        return self._queue[0] if self._queue else None

    @property
    def num_held(self) -> int:
        """The number of requests that still wait for their adapters."""
        return len(self._held)

    def hold(self, request: Request) -> Request:
        """Return a request as it is, with its adapter pinned, or held until that is loaded."""
        if request.lora is None:
            return request
        name = request.request_id
        try:
            digest, _ = split_id(request.lora)
        except ValueError as error:
            self._held[name] = None
            self._ready.append(Ready(name, ADAPTER, str(error)))
            return replace(request, holds=(*request.holds, ADAPTER))
        self._digests[name] = digest
        if digest in self._packed and self._may_overtake():
            self._pin(digest, name)
            return request
        self._held[name] = None
        self._waiting.setdefault(digest, {})[name] = None
        if digest not in self._loading and digest not in self._queue:
            self._queue.append(digest)
        self._begin()
        return replace(request, holds=(*request.holds, ADAPTER))

    def _may_overtake(self) -> bool:
        """Count a request that goes on while others wait for room; return whether it may."""
        if not self._queue:
            return True
        first = self._queue[0]
        num = self._overtaken.get(first, 0) + 1
        if num <= self._max_overtaken:
            self._overtaken[first] = num
        return num <= self._max_overtaken

    def _pin(self, digest: str, name: str) -> None:
        self._pins.setdefault(digest, {})[name] = None
        self._packed[digest] = self._packed.pop(digest)  # used last

    def take(self) -> list[Ready]:
        """Return what has become ready, or failed, since the last call."""
        self._begin()
        taken, self._ready = self._ready, []
        taken = [ready for ready in taken if ready.request_id in self._held]
        for ready in taken:
            del self._held[ready.request_id]
        return taken

    def leave(self, request_id: str) -> bool:
        """Forget a request that has ended; return whether it still waited for its adapter."""
        has_waited = request_id in self._held
        if has_waited:
            del self._held[request_id]
        digest = self._digests.pop(request_id, None)
        if digest is None:
            return has_waited
        pins, waiting = self._pins.get(digest, {}), self._waiting.get(digest, {})
        waiting.pop(request_id, None)
        pins.pop(request_id, None)
        if not waiting:
            self._waiting.pop(digest, None)
            self._needed.pop(digest, None)
            self._overtaken.pop(digest, None)
            if digest in self._queue:
                self._queue.remove(digest)
        if not pins:
            self._pins.pop(digest, None)
            if digest in self._given_up:
                del self._given_up[digest], self._packed[digest]
        self._begin()
        return has_waited

    def _begin(self) -> None:
        """Load what the queue waits for, as far as there is room, oldest first."""
        while self._queue:
            digest = self._queue[0]
            if digest in self._packed:
                self._queue.popleft()
                self._let_go(digest)
            elif not self._begin_to_load(digest):
                return

    def _begin_to_load(self, digest: str) -> bool:
        """Begin to load an adapter; return False if there is no room, or the loader is busy."""
        path, needed = f"{self._directory}/{digest}", self._needed.get(digest, 0)
        try:
            if self._files is None or self._directory is None:
                raise CommandRefusedError(NO_LOADER, "this engine has no directory of adapters")
            if not self._make_room(needed, digest):
                return False
            self._files.load(KIND, digest, path, partial(self._end, digest))
        except CommandRefusedError as error:
            if error.code == TOO_MANY:
                return False
            self._queue.popleft()
            self._fail(digest, error)
        else:
            self._queue.popleft()
            self._loading[digest] = needed
        return True

    def _end(self, digest: str, outcome: Outcome) -> None:
        """Take the end of a load: its requests go on, fail, or wait until there is room."""
        self._loading.pop(digest, None)
        if isinstance(outcome, LoadedFile):
            self._let_go(digest)
        elif outcome.code == NO_ROOM and digest in self._needed:
            self._queue.appendleft(digest)  # it is known now how much room it needs
        else:
            self._fail(digest, outcome)

    def _let_go(self, digest: str) -> None:
        self._overtaken.pop(digest, None)
        for name in self._waiting.pop(digest, {}):
            self._pin(digest, name)
            self._ready.append(Ready(name, ADAPTER))

    def _fail(self, digest: str, error: CommandRefusedError) -> None:
        why = f"its adapter (LoRA) cannot be loaded: {error}"
        self._overtaken.pop(digest, None)
        self._needed.pop(digest, None)
        log.warning("adapter %s: %s: %s", digest[:12], error.code, error)
        for name in self._waiting.pop(digest, {}):
            self._ready.append(Ready(name, ADAPTER, why, error.code in FILE_FAULTS))
