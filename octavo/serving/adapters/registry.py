"""The adapters that requests may name, and what is done to add, to replace and to hold one.

A name has a path and, once it was copied, a content. A request holds the content that its adapter
has when it begins: it is copied then, if it was not, and stays until the request has ended, also
if the name gets another content meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

from octavo.adapter_copies.copies import AdapterCopies
from octavo.adapter_copies.errors import PASSING, AdapterFileError
from octavo.adapter_copies.identity import adapter_id, digest_in
from octavo.api.async_llm import AsyncLLM
from octavo.api.control import CommandFailedError
from octavo.api.outputs import EngineDeadError
from octavo.options.named_adapters import NamedAdapter, wrong_name
from octavo.transport.errors import ApiError, invalid, unavailable
from octavo.wire.commands import FAILED, FILE_FAULTS, TIMED_OUT

T = TypeVar("T")
# Who has named an adapter: only what the watched directory or the resolver has named is removed
# with its files, or for want of room.
Origin = Literal["operator", "directory", "resolver", "client"]
NUM_THREADS = 2  # that copy files, which may be on a slow disk
ALREADY, BEING_LOADED, NO_ADAPTERS = "already_loaded", "being_loaded", "adapters_off"
NOT_FOUND, TOO_MANY_NAMES = "adapter_not_found", "too_many_adapters"
CHANGED, UNAVAILABLE = "adapter_changed", "adapter_unavailable"


@dataclass(slots=True, eq=False)
class Adapter:
    """One adapter that requests may name."""

    name: str
    path: Path
    origin: Origin
    number: int  # by which llama.cpp's clients know it
    base_model_name: str | None = None
    scale: float = 1.0
    digest: str = ""  # of its content; empty until it was copied


class AdapterRegistry:
    """The adapters of one server, by name; used in its event loop."""

    def __init__(self, llm: AsyncLLM, model_names: tuple[str, ...], most_names: int) -> None:
        self._llm = llm
        self._model_names = model_names
        self._most_names = most_names
        self._adapters: dict[str, Adapter] = {}  # those of the resolver in the order of their use
        self._changing: set[str] = set()  # names that are being added or replaced
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._num_added = 0
        self._threads = ThreadPoolExecutor(NUM_THREADS, "octavo adapters")
        # What requests have that name the model itself, with its scale, as in llama.cpp.
        self.applied: tuple[Adapter, float] | None = None

    def __len__(self) -> int:
        return len(self._adapters)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(list(self._adapters.values()))

    @property
    def is_on(self) -> bool:
        """True if the engine can have adapters."""
        return self._llm.copies is not None

    def get(self, name: str) -> Adapter | None:
        """Return the adapter of a name, or None."""
        found = self._adapters.get(name)
        if found is not None and found.origin == "resolver":
            self._adapters[name] = self._adapters.pop(name)
        return found

    def numbered(self, number: int) -> Adapter | None:
        """Return the adapter of a number, or None."""
        return next((each for each in self._adapters.values() if each.number == number), None)

    # changes

    async def add(self, named: NamedAdapter, origin: Origin, *, in_place: bool = False) -> Adapter:
        """Copy an adapter, let the engine check it, and give it its name; raise ApiError.

        Nothing has changed if that fails. `in_place` replaces the content of a name; requests that
        have begun go on with the content before.
        """
        copies = self._copies()
        self._check_name(named.name, in_place=in_place)
        self._changing.add(named.name)
        try:
            digest = await self._copied(copies, Path(named.path))
            try:
                try:
                    await self._check(copies, digest, Path(named.path))
                finally:
                    copies.unpin(digest)
            except ApiError:
                if all(each.digest != digest for each in self):
                    await self.in_thread(partial(copies.discard, digest))
                raise
            return await self._settle(named, origin, digest)
        finally:
            self._changing.discard(named.name)

    async def remove(self, name: str) -> Adapter:
        """Take a name away; requests that have begun with it are not disturbed."""
        adapter = self._adapters.pop(name, None)
        if adapter is None:
            raise ApiError(404, f"there is no adapter {name[:200]!r}", code=NOT_FOUND)
        if self.applied is not None and self.applied[0] is adapter:
            self.applied = None
        await self._give_up(adapter.digest)
        return adapter

    def _copies(self) -> AdapterCopies:
        if self._llm.copies is None:
            raise invalid(
                "this server has no adapters: start it with --enable-lora, or name some by "
                "--lora-modules or --lora-directory",
                code=NO_ADAPTERS,
            )
        return self._llm.copies

    def _check_name(self, name: str, *, in_place: bool) -> None:
        """Refuse a name that is taken, or one too many."""
        if why := wrong_name(name):
            raise invalid(why, "lora_name")
        if name in self._model_names:
            raise invalid(f"{name!r} is the name of the model itself", "lora_name", ALREADY)
        if name in self._changing:
            raise ApiError(
                409, f"the adapter {name!r} is being loaded: wait for that", code=BEING_LOADED
            )
        if name in self._adapters:
            if not in_place:
                raise invalid(
                    f"the adapter {name!r} has already been loaded; to replace it, set "
                    "load_inplace to true",
                    "lora_name",
                    ALREADY,
                )
        elif len(self._adapters) + len(self._changing) >= self._most_names:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the adapter of the resolver that was used longest ago; refuse if there is none."""
        for name, each in self._adapters.items():
            if each.origin == "resolver":
                del self._adapters[name]
                return
        raise unavailable(
            f"{self._most_names} adapters have names already (max_lora_names): unload some first",
            TOO_MANY_NAMES,
        )

    async def _check(self, copies: AdapterCopies, digest: str, source: Path) -> None:
        """Let the engine check an adapter; raise ApiError for one that it cannot use."""
        try:
            is_checked = await self._llm.load_adapter(digest, copies.place(digest))
        except CommandFailedError as error:
            message = copies.as_given(str(error), source)
            if error.code in FILE_FAULTS:
                raise invalid(message, "lora_path", error.code) from None
            if error.code in (TIMED_OUT, FAILED):
                status = 504 if error.code == TIMED_OUT else 500
                raise ApiError(status, message, code=error.code) from None
            raise unavailable(message, error.code) from None
        except EngineDeadError as error:
            raise unavailable(f"there is no engine: {error}", "engine_not_ready") from None
        if not is_checked:
            raise unavailable("no engine is ready to check the adapter", "engine_not_ready")

    async def _settle(self, named: NamedAdapter, origin: Origin, digest: str) -> Adapter:
        """Give a name its content; give up the content that it had."""
        adapter = self._adapters.get(named.name)
        if adapter is None:
            adapter = Adapter(named.name, Path(named.path), origin, self._num_added)
            self._num_added += 1
            self._adapters[named.name] = adapter
        adapter.path, adapter.origin = Path(named.path), origin
        adapter.base_model_name, adapter.scale = named.base_model_name, named.scale
        if named.is_default:
            self.applied = adapter, named.scale
        before, adapter.digest = adapter.digest, digest
        if before != digest:
            await self._give_up(before)
        return adapter

    async def _give_up(self, digest: str) -> None:
        """Let the engine forget a content that no name has any more.

        Its copy stays as long as there is room, for requests that are continued.
        """
        if digest and all(each.digest != digest for each in self._adapters.values()):
            with suppress(EngineDeadError):
                await self._llm.unload_adapter(digest)

    # requests

    @asynccontextmanager
    async def held(self, adapter: Adapter | None, scale: float) -> AsyncIterator[str | None]:
        """Keep an adapter's content while a request has it; give the engine's id of it."""
        if adapter is None:
            yield None
            return
        copies = self._copies()
        digest = await self._pinned(copies, adapter)
        try:
            yield adapter_id(digest, scale)
        finally:
            copies.unpin(digest)

    @asynccontextmanager
    async def held_again(self, lora: str | None) -> AsyncIterator[None]:
        """Keep the content with which a request began, perhaps in an earlier server."""
        digest = digest_in(lora or "")
        if not digest:
            yield
            return
        copies = self._copies()
        if not copies.pin(digest):
            adapter = next((each for each in self if each.digest == digest), None)
            found = "" if adapter is None else await self._pinned(copies, adapter)
            if found != digest:
                if found:
                    copies.unpin(found)
                raise ApiError(
                    409,
                    "the files of the adapter with which this request began are not kept any "
                    "more, so that its answer cannot go on; send it again with a new X-Request-Id",
                    code=CHANGED,
                )
        try:
            yield
        finally:
            copies.unpin(digest)

    async def _pinned(self, copies: AdapterCopies, adapter: Adapter) -> str:
        """Return the digest of an adapter's content, whose copy is pinned once."""
        if copies.pin(adapter.digest):
            return adapter.digest
        lock = self._locks.setdefault(adapter.name, asyncio.Lock())
        async with lock:  # several requests need one copy
            if copies.pin(adapter.digest):
                return adapter.digest
            before = adapter.digest
            try:
                digest = await self._copied(copies, adapter.path)
            except ApiError as error:
                message = f"the adapter {adapter.name!r} cannot be loaded: {error.message}"
                raise unavailable(message, UNAVAILABLE) from None
            if adapter.digest == before:
                adapter.digest = digest
            return digest

    async def _copied(self, copies: AdapterCopies, path: Path) -> str:
        """Copy an adapter in a thread; return its digest, which is pinned once."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, copies.make, path)
        try:
            return await asyncio.shield(work)
        except AdapterFileError as error:
            if error.code in PASSING:
                raise unavailable(str(error), error.code) from None
            raise invalid(str(error), "lora_path", error.code) from None
        except asyncio.CancelledError:
            work.add_done_callback(lambda done: _let_go(copies, done))
            raise

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return what a function returns that may wait for files."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Begin no more work; the copies end with the engine's user."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _let_go(copies: AdapterCopies, done: asyncio.Future[str]) -> None:
    """Unpin a copy that was made for a request which has ended meanwhile."""
    if not done.cancelled() and done.exception() is None:
        copies.unpin(done.result())
