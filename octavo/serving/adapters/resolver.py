"""The operator's own function that finds the adapter of an unknown name when it is first asked for.

It is `find(model_name, adapter_name)`, or an object with vLLM's `resolve_lora`, and returns a path,
an object with a `lora_path`, or None; it may be a coroutine. What it fetches is bounded in time,
in size and in number, and a name that it does not know is not asked for again at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.named_object import find_object
from octavo.options.named_adapters import NamedAdapter, wrong_name
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.serving.adapters.registry import Adapter, AdapterRegistry
from octavo.transport.errors import ApiError, unavailable

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4  # names that are looked for; others wait
MOST_LOOKED_FOR = 64  # names, with those that wait
MOST_UNKNOWN = 10_000  # names that are remembered as unknown
UNKNOWN_SECONDS = 30.0  # for which they are
_METHOD = "resolve_lora"  # vLLM's
_FORM = "module:function"


def load_resolver(name: str) -> Callable[[str, str], Any]:
    """Return the function that a setting names; raise ServerSettingsError if it is none."""
    try:
        found = find_object(name, _FORM)
    except ValueError as error:
        raise ServerSettingsError(f"lora_resolver={name!r} cannot be used: {error}") from error
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:  # the operator's code may fail in any way
            raise ServerSettingsError(
                f"lora_resolver={name!r} cannot be used: its call failed with "
                f"{type(error).__name__}: {error}"
            ) from error
    found = getattr(found, _METHOD, found)
    if not callable(found):
        raise ServerSettingsError(
            f"lora_resolver={name!r} cannot be used: it is no function, and has no {_METHOD}"
        )
    function: Callable[[str, str], Any] = found
    return function


@dataclass(slots=True)
class _Search:
    """A name that is being looked for, as long as a client waits for it."""

    task: asyncio.Task[Adapter | None]
    num_waiting: int = 0


class Resolver:
    """The resolver of one server, and what it has been asked for."""

    def __init__(
        self, config: ServerSettings, registry: AdapterRegistry, clock: Callable[[], float]
    ) -> None:
        assert config.lora_resolver is not None
        self._function = load_resolver(config.lora_resolver)
        self._seconds = config.lora_resolver_seconds
        self._registry = registry
        self._clock = clock
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        # Of its own: one that never returns holds up no copies.
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "octavo resolver")
        self._idle = asyncio.Semaphore(MOST_AT_ONCE)  # threads; a call goes on without its client
        self._searches: dict[str, _Search] = {}
        self._unknown: OrderedDict[str, float] = OrderedDict()  # until when

    async def find(self, model_name: str, name: str) -> Adapter | None:
        """Return the adapter that the resolver finds, or None; raise ApiError if it fails.

        Requests for one name wait for one answer, which is given up when all of them have left.
        """
        if wrong_name(name) or self._clock() < self._unknown.get(name, 0.0):
            return None
        search = self._searches.get(name)
        if search is None:
            if len(self._searches) >= MOST_LOOKED_FOR:
                raise unavailable(
                    f"{MOST_LOOKED_FOR} names of adapters are being looked for: try again later",
                    "resolver_full",
                )
            task = asyncio.get_running_loop().create_task(self._find(model_name, name))
            search = self._searches[name] = _Search(task)
        search.num_waiting += 1
        try:
            return await asyncio.shield(search.task)
        finally:
            search.num_waiting -= 1
            if not search.num_waiting:
                del self._searches[name]
                search.task.cancel()

    async def _find(self, model_name: str, name: str) -> Adapter | None:
        async with self._places:
            path = await self._ask(model_name, name)
            if path is None:
                self._note_unknown(name)
                return None
            try:
                return await self._registry.add(NamedAdapter(name, path), "resolver")
            except ApiError as error:
                log.warning("the adapter %r that the resolver found: %s", name, error.message)
                if error.status < 500:  # else it may pass, as a want of room does
                    self._note_unknown(name)
                raise

    async def _ask(self, model_name: str, name: str) -> str | None:
        """Call the operator's function; return the path that it returns."""
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._call(model_name, name)
        except TimeoutError:
            log.error("the resolver did not find %r within %g s", name, self._seconds)
            raise unavailable(
                f"the adapter {name!r} was not found within {self._seconds:g} s "
                "(lora_resolver_seconds)",
                "resolver_timeout",
            ) from None
        except Exception as error:  # the operator's code may fail in any way
            log.exception("the resolver failed for %r", name)
            raise unavailable(
                f"the adapter {name!r} could not be looked for; the server's log says why",
                "resolver_failed",
            ) from error
        path = getattr(found, "lora_path", found)
        if path is not None and not isinstance(path, str | os.PathLike):
            log.error("the resolver returned %s, no path", type(found).__name__)
            return None
        return None if path is None else str(os.fspath(path))

    async def _call(self, model_name: str, name: str) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await self._function(model_name, name)
        await self._idle.acquire()
        call = partial(self._function, model_name, name)
        work = asyncio.get_running_loop().run_in_executor(self._threads, call)
        work.add_done_callback(lambda _: self._idle.release())
        return await asyncio.shield(work)

    def _note_unknown(self, name: str) -> None:
        self._unknown[name] = self._clock() + UNKNOWN_SECONDS
        self._unknown.move_to_end(name)
        if len(self._unknown) > MOST_UNKNOWN:
            self._unknown.popitem(last=False)

    def close(self) -> None:
        """End what is being looked for."""
        for search in self._searches.values():
            search.task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
