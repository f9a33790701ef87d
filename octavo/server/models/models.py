"""The models of a server: loaded when a request names them, asleep when others need their memory.

    unloaded ──▶ loading ──▶ loaded ──▶ sleeping ──▶ loading ──▶ …
                                └─ its engines are dead ──▶ unloaded

One is loaded at a time, in the order in which they were asked for. If there is no room, those used
longest ago leave: they get no new request, and sleep once their last one has ended. A model that
answers is never put to sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from octavo.api.outputs import EngineDeadError
from octavo.nearest import nearest
from octavo.observe.log import flags_in_use, with_flags
from octavo.server.models.memory import Held, Need, Room, leaving
from octavo.server.models.model import Model, State, anew
from octavo.server.models.opening import Context, Opener
from octavo.serving.adapters.selection import NOT_FOUND
from octavo.serving.server import Server
from octavo.transport.errors import ApiError, invalid, unavailable

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1  # between two looks at what is answered in the background
WATCH_SECONDS = 1.0  # between two looks at models that were not used for long
RETRY_SECONDS = 10  # for which a model that could not be loaded is not tried again
MOST_KEPT = 16  # models that sleep: each keeps its prompt worker and the table of its tokens
_MOST_SHOWN = 8  # names in an error


class NobodyWaitsError(Exception):
    """The end of an attempt to load a model: all who asked for it have left."""


class Models:
    """The set of models, which belongs to one event loop."""

    def __init__(
        self,
        models: Sequence[Model],
        opener: Opener,
        room: Room,
        wait_seconds: float,
        clock: Callable[[], float],
        *,
        autoloads: bool = True,
    ) -> None:
        self.autoloads = autoloads  # a request has its model loaded, unless it says otherwise
        self._models = {each.name: each for each in models}
        self._opener = opener
        self._room = room
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._turn = asyncio.Lock()  # to change which models are loaded
        self._news = asyncio.Event()  # a request has ended, or a waiting one has left
        self._over = asyncio.Event()  # a model may have to be unloaded
        self._asked: dict[str, asyncio.Task[None]] = {}  # to load models without a request
        self._watch: asyncio.Task[None] | None = None
        self._is_stopping = False

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def get(self, name: str) -> Model | None:
        """Return the model of a name; None for an unknown one."""
        return self._models.get(name)

    def unknown(self, name: str) -> ApiError:
        """Return the error for a name that no model has."""
        near = nearest(name, self._models, most=2)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        message = f"the model {name[:200]!r} does not exist; {self.listed()}{hint}"
        return ApiError(404, message, param="model", code=NOT_FOUND)

    def listed(self) -> str:
        """Return the names of the first models, for an error."""
        names = list(self._models)
        there = ", ".join(map(repr, names[:_MOST_SHOWN]))
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        return f"this server has {there}{more}; GET /v1/models lists them"

    def contexts(self) -> list[Context]:
        """Return what has been opened, loaded or asleep."""
        return [each.context for each in self if each.context is not None]

    def start(self) -> None:
        """Begin to watch for models that are not used, and whose time is over."""
        self._watch = asyncio.get_running_loop().create_task(self._watch_idle())

    @property
    def most(self) -> int:
        """The most models that are loaded at once."""
        return self._room.most

    def load(self, model: Model) -> None:
        """Begin to load a model as a request for it would; raise ApiError if it is loaded already.

        Whether that succeeds is seen in its state.
        """
        has_left = model.ends_when_idle
        model.ends_when_idle = False
        if model.name in self._asked or model.status is not State.UNLOADED:
            if has_left:
                return
            raise invalid(f"the model {model.name!r} is loaded already", "model")
        model.failure, model.failed_at = None, -math.inf
        task = asyncio.get_running_loop().create_task(self._touch(model))
        self._asked[model.name] = task
        task.add_done_callback(lambda done: self._asked.pop(model.name))

    async def _touch(self, model: Model) -> None:
        """Wait until a model is loaded; why it cannot be is in the log and in its state."""
        try:
            async with self.used(model):
                pass
        except ApiError as error:
            if model.failure is None and not self._is_stopping:
                log.warning("the model %r was not loaded: %s", model.name, error)
                model.failure = error

    def unload(self, model: Model) -> None:
        """Close a model once nothing uses it; raise ApiError if it is not loaded.

        Requests that it answers are not ended, nor are those that wait while it is loaded.
        """
        is_asked = model.name in self._asked or model.task is not None
        if not is_asked and model.status is State.UNLOADED:
            raise invalid(f"the model {model.name!r} is not loaded", "model")
        model.ends_when_idle = True
        self._over.set()

    @asynccontextmanager
    async def used(self, model: Model) -> AsyncIterator[Server]:
        """Load a model if it must be, and keep it loaded within the block.

        Raise ApiError if it cannot be loaded, or not soon enough.
        """
        if model.is_ready:
            model.num_uses += 1
        else:
            await self._wait_for(model)
        try:
            assert model.context is not None, "a model that is in use has a server"
            yield model.context.server
        finally:
            self._release(model)

    def _release(self, model: Model) -> None:
        model.num_uses -= 1
        model.last_used = self._clock()
        self._news.set()
        if model.ends_when_idle:
            self._over.set()

    async def _wait_for(self, model: Model) -> None:
        """Wait until a model is loaded, and use it from then on."""
        if self._is_stopping:
            raise _stopping()
        is_lately = self._clock() < model.failed_at + RETRY_SECONDS
        if model.failure is not None and is_lately:
            raise anew(model.failure)
        future = asyncio.get_running_loop().create_future()
        model.waiting.append(future)
        if model.task is None:
            end = self._clock() + self._wait_seconds
            model.task = asyncio.get_running_loop().create_task(self._load(model, end))
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release(model)  # it was given the server, and has left at the same time
            self._news.set()
            raise

    async def _load(self, model: Model, end: float) -> None:
        """Make a model ready when it is its turn, and then the requests that wait for it."""
        try:
            async with self._turn:
                if not model.is_ready:
                    await self._make_ready(model, end)
                model.last_used = self._clock()
                model.admit()
        except NobodyWaitsError:
            pass
        except ApiError as error:
            model.refuse(error)
        except asyncio.CancelledError:  # the server is stopping
            model.refuse(_stopping())
            raise
        except Exception as error:
            said = with_flags(_said(error), flags_in_use())
            log.error("the model %r could not be loaded: %s", model.name, said)
            log.debug("its error", exc_info=True)
            model.failure, model.failed_at = _failed(model), self._clock()
            model.refuse(_failed(model))
        finally:
            model.task = None
            if model.context is None:
                model.ends_when_idle = False

    async def _make_ready(self, model: Model, end: float) -> None:
        """Load a model, or wake it, once there is room; raise an error if that fails."""
        _check_wanted(model)
        if model.context is not None and model.context.is_dead:
            while not model.is_idle:  # its requests are about to fail
                await self._wait_for_news(model, end)
            await self._close(model)
        if model.need is None:
            model.need = await self._opener.need(model.source)
            _check_wanted(model)
        await self._make_room(model, model.need, end)
        began, model.state = self._clock(), State.LOADING
        try:
            if model.context is None:
                model.context = await self._opener.open(model.name, model.source, model.need)
            else:
                await model.context.wake()
        except BaseException as error:
            if model.context is not None and isinstance(error, EngineDeadError):
                await self._close(model)
            model.state = State.UNLOADED if model.context is None else State.SLEEPING
            raise
        model.state = State.LOADED
        model.has_made_room, model.failure = False, None
        model.num_loads += 1
        log.info("the model %r is loaded, after %.2f s", model.name, self._clock() - began)

    async def _make_room(self, model: Model, need: Need, end: float) -> None:
        """Put models to sleep until another has room; raise ApiError if that takes too long."""
        marked: set[Model] = set()
        try:
            while chosen := self._leaving(need):
                for each in marked - {*chosen}:
                    self._keep(each)
                marked = {*chosen}
                for each in chosen:
                    each.is_leaving = True
                idle = [each for each in chosen if each.is_idle]
                for each in idle:
                    await self._sleep(each)
                    each.has_made_room = each.state is State.SLEEPING
                if not idle:
                    await self._wait_for_news(model, end)
        finally:
            for each in marked:
                self._keep(each)

    def _leaving(self, need: Need) -> list[Model]:
        """Return the models that have to leave, so that another has room."""
        loaded = [each for each in self if each.state is State.LOADED]
        held = [
            Held(each.need.num_bytes if each.need else 0, each.last_used, each.is_busy)
            for each in loaded
        ]
        return [loaded[at] for at in leaving(self._room, need, held)]

    def _keep(self, model: Model) -> None:
        """Let a model that was to leave answer requests again, if it is still loaded."""
        model.is_leaving = False
        if model.is_ready:
            model.admit()

    async def _wait_for_news(self, model: Model, end: float) -> None:
        """Wait until a request may have ended; raise an error at the end of the time."""
        _check_wanted(model)
        if self._clock() >= end:
            raise unavailable(
                f"the model {model.name!r} has no room beside the models that are answering: "
                f"none of them has ended its requests within {self._wait_seconds:g} s",
                "models_busy",
                max(1, math.ceil(self._wait_seconds)),
            )
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._news.wait()

    async def _sleep(self, model: Model) -> None:
        """End the engines of an idle model; close one whose engines do not end as they should."""
        assert model.context is not None
        model.state = State.SLEEPING
        log.info("the model %r is put to sleep", model.name)
        try:
            await model.context.sleep()
        except Exception as error:
            log.warning("the model %r could not be put to sleep: %s", model.name, _said(error))
            await self._close(model)
        asleep = [each for each in self if each.state is State.SLEEPING and each.is_idle]
        asleep.sort(key=lambda each: each.last_used)
        for each in asleep[: max(0, len(asleep) - MOST_KEPT)]:
            await self._close(each)

    async def _close(self, model: Model) -> None:
        """End all that belongs to a model, which is loaded anew when it is asked for."""
        context, model.context, model.state = model.context, None, State.UNLOADED
        model.has_made_room = model.ends_when_idle = False
        if context is not None:
            try:
                await context.close()
            except Exception:
                log.exception("the model %r could not be closed in order", model.name)

    async def _watch_idle(self) -> None:
        """Put models to sleep that were not used for as long as they are kept; unload others."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._over.wait()
            self._over.clear()
            if any(self._is_over(each) for each in self):
                async with self._turn:
                    for each in self:
                        if self._is_over(each):
                            await (self._close if each.ends_when_idle else self._sleep)(each)

    def _is_over(self, model: Model) -> bool:
        """Return whether a model has been idle for as long as it is kept, or is to be unloaded."""
        if model.ends_when_idle and model.context is not None and not model.is_busy:
            return True
        if model.state is not State.LOADED or model.idle_seconds is None or model.is_busy:
            return False
        return self._clock() >= model.last_used + model.idle_seconds

    def stop_loading(self) -> list[asyncio.Task[None]]:
        """End the loading of models, and refuse the requests that wait for it; return the tasks."""
        self._is_stopping = True
        tasks = [each.task for each in self if each.task is not None]
        for task in tasks:
            if not task.cancelling():  # a second time would end its wait for a thread
                task.cancel()
        for each in self:  # a task that has not begun yet refuses no request
            each.refuse(_stopping())
        return tasks

    async def close(self) -> None:
        """End the loading of models, and all models."""
        tasks = self.stop_loading()
        if self._watch is not None:
            self._watch.cancel()
            tasks.append(self._watch)
        tasks += self._asked.values()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self:
            await self._close(each)
        self._opener.close()


def _check_wanted(model: Model) -> None:
    """Raise an error if all requests that waited for a model have left."""
    if all(each.done() for each in model.waiting):
        raise NobodyWaitsError


def _stopping() -> ApiError:
    return unavailable("the server is shutting down", "server_shutdown")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failed(model: Model) -> ApiError:
    """Return the error for clients, without what only operators may see."""
    message = f"the model {model.name!r} cannot be loaded; the server's log has the reason"
    return unavailable(message, "model_not_loaded", RETRY_SECONDS)
