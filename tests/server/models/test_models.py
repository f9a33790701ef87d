"""Models are loaded when they are asked for, and make room for others without losing a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from octavo.api.outputs import EngineDeadError
from octavo.server.models.memory import Room
from octavo.server.models.model import Model, State
from octavo.server.models.models import MOST_KEPT, RETRY_SECONDS, Models
from octavo.transport.errors import ApiError
from tests.server.make import until
from tests.server.models.make import Site


def in_loop(
    directory: Path, work: Callable[[Site], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run a test in an event loop, and end all models."""

    async def main() -> None:
        site = Site(directory, **options)
        try:
            await work(site)
        finally:
            site.opener.gate.set()
            await site.models.close()

    asyncio.run(main())


class Use:
    """A request that uses a model until it is ended."""

    def __init__(self, site: Site, name: str) -> None:
        self.end = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.task = asyncio.ensure_future(self._use(site, name))

    async def _use(self, site: Site, name: str) -> None:
        async with site.models.used(site[name]) as server:
            assert server.model_name == name
            assert not site.context(name).is_asleep
            self.has_begun.set()
            await self.end.wait()
            assert not site.context(name).is_asleep

    async def finish(self) -> None:
        """End the request, which must have been answered."""
        self.end.set()
        await self.task


async def waits_for_room(site: Site) -> tuple[Use, Use, Use]:
    """Use two models, and ask for a third, for which one of them is to leave."""
    first, other = Use(site, "a"), Use(site, "b")
    await first.has_begun.wait()
    await other.has_begun.wait()
    third = Use(site, "c")
    await until(lambda: site["a"].is_leaving or site["b"].is_leaving)
    return first, other, third


async def used(site: Site, names: str) -> None:
    """Use models one after the other."""
    for name in names:
        site.clock.now += 1
        await Use(site, name).finish()


def test_a_model_is_loaded_once_for_all_who_ask(directory: Path) -> None:
    async def work(site: Site) -> None:
        assert site.states() == "unloaded unloaded unloaded"
        site.opener.gate.clear()
        uses = [Use(site, "a") for _ in range(5)]
        await until(lambda: site.opener.opened == ["a"])
        assert site.states() == "loading unloaded unloaded"
        site.opener.gate.set()
        for use in uses:
            await use.finish()
        assert site.opener.opened == ["a"]
        assert site["a"].num_uses == 0

    in_loop(directory, work)


def test_the_one_used_longest_ago_sleeps_and_wakes(directory: Path) -> None:
    async def work(site: Site) -> None:
        await used(site, "abac")
        assert site.states() == "loaded sleeping loaded"
        assert site.context("b").is_asleep
        await used(site, "b")
        assert site.states() == "sleeping loaded loaded"
        assert site.opener.opened == ["a", "b", "c"]
        assert [each.num_loads for each in site.list] == [1, 2, 1]

    in_loop(directory, work)


def test_a_model_that_answers_is_waited_for(directory: Path) -> None:
    """The request for a third model gets it when one of the others has ended its requests.

    Until then the leaving one gets no new request, and afterwards it has its turn again.
    """

    async def work(site: Site) -> None:
        first, other, third = await waits_for_room(site)
        leaving, staying = ("a", "b") if site["a"].is_leaving else ("b", "a")
        late = Use(site, leaving)
        beside = Use(site, staying)
        await beside.has_begun.wait()
        assert not any(each.has_begun.is_set() for each in (third, late))
        await (first if leaving == "a" else other).finish()
        await third.has_begun.wait()
        assert site[leaving].state is State.SLEEPING
        await third.finish()
        await late.has_begun.wait()
        await late.finish()
        await beside.finish()
        await (other if leaving == "a" else first).finish()

    in_loop(directory, work)


def test_a_request_waits_no_longer_than_it_may(directory: Path) -> None:
    """A 503 says after which time to try again, and the others go on as before."""

    async def work(site: Site) -> None:
        first, other, third = await waits_for_room(site)
        late = Use(site, "a" if site["a"].is_leaving else "b")
        site.clock.now += 1000
        with pytest.raises(ApiError) as caught:
            await third.task
        assert (caught.value.status, caught.value.code) == (503, "models_busy")
        assert (b"retry-after", b"300") in caught.value.headers
        for use in (late, first, other):
            await use.finish()
        assert site.states() == "loaded loaded unloaded"
        await used(site, "c")

    in_loop(directory, work)


def test_whoever_leaves_takes_no_room(directory: Path) -> None:
    """No model makes room for one whose requests have all left."""

    async def work(site: Site) -> None:
        first, other, third = await waits_for_room(site)
        third.task.cancel()
        await until(lambda: site["c"].task is None)
        assert not any(each.is_leaving for each in site.list)
        assert "c" not in site.opener.opened
        await first.finish()
        await other.finish()

    in_loop(directory, work)


def test_whoever_leaves_before_their_turn_loads_nothing(directory: Path) -> None:
    async def work(site: Site) -> None:
        site.opener.gate.clear()
        first = Use(site, "a")
        await until(lambda: site.opener.opened == ["a"])
        leaving = Use(site, "b")
        await until(lambda: bool(site["b"].waiting))
        leaving.task.cancel()
        site.opener.gate.set()
        await first.finish()
        await until(lambda: site["b"].task is None)
        assert site.opener.opened == ["a"]
        await used(site, "b")

    in_loop(directory, work)


def test_many_requests_for_many_models_all_end(directory: Path) -> None:
    async def work(site: Site) -> None:
        uses = [Use(site, "abcacbbca"[index % 9]) for index in range(45)]
        for use in uses:
            use.end.set()
        await asyncio.gather(*(use.task for use in uses))
        assert all(not (each.num_uses or each.waiting or each.is_leaving) for each in site.list)

    in_loop(directory, work)


def test_a_model_that_cannot_be_loaded_is_not_tried_at_once(directory: Path) -> None:
    """The reason stays in the log; the next attempt comes after a while, and others go on."""

    async def work(site: Site) -> None:
        site.opener.failures["b"] = EngineDeadError("SECRET path")
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await Use(site, "b").task
            assert (caught.value.status, caught.value.code) == (503, "model_not_loaded")
            assert "SECRET" not in caught.value.message
        assert site.opener.opened == ["b"]
        await used(site, "a")
        del site.opener.failures["b"]
        site.clock.now += RETRY_SECONDS
        await used(site, "b")
        assert site.states() == "loaded loaded unloaded"

    in_loop(directory, work)


def test_a_model_without_engines_is_loaded_anew(directory: Path) -> None:
    async def work(site: Site) -> None:
        await used(site, "a")
        dead = site.context("a")
        dead.is_dead = True
        await used(site, "a")
        assert dead.is_closed
        assert site.context("a") is not dead

    in_loop(directory, work)


def test_engines_that_do_not_end_are_closed(directory: Path) -> None:
    async def work(site: Site) -> None:
        await used(site, "ab")
        stuck = site.context("a")
        stuck.fails_to_sleep = True
        await used(site, "c")
        assert stuck.is_closed
        assert site.states() == "unloaded loaded loaded"

    in_loop(directory, work)


def test_few_that_sleep_are_kept(directory: Path) -> None:
    async def work(site: Site) -> None:
        models = [Model(f"m{index}", "m") for index in range(MOST_KEPT + 4)]
        many = Models(models, site.opener, Room(20, 1), 60.0, site.clock)
        for each in models:
            site.clock.now += 1
            async with many.used(each):
                pass
        kept = [each.name for each in models if each.context is not None]
        assert kept == [f"m{index}" for index in range(3, MOST_KEPT + 4)]
        await many.close()

    in_loop(directory, work)


def test_an_idle_model_sleeps_after_its_time(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.models.models.WATCH_SECONDS", 0.001)

    async def work(site: Site) -> None:
        site.models.start()
        site["a"].idle_seconds = 5.0
        await used(site, "ab")
        site.clock.now += 3.0
        site["b"].idle_seconds = 0.0
        await until(lambda: site.states() == "loaded sleeping unloaded")
        site.clock.now += 1.0
        await until(lambda: site.states() == "sleeping sleeping unloaded")
        await used(site, "a")

    in_loop(directory, work)


def test_the_end_of_the_server_refuses_those_who_wait(directory: Path) -> None:
    async def work(site: Site) -> None:
        site.opener.gate.clear()
        waiting = Use(site, "a")
        await until(lambda: site.opener.opened == ["a"])
        newest = Use(site, "c")
        await until(lambda: bool(site["c"].waiting))
        site.site.drain()
        for use in (waiting, newest, Use(site, "b")):
            with pytest.raises(ApiError) as caught:
                await use.task
            assert caught.value.code == "server_shutdown"

    in_loop(directory, work)


def test_a_load_is_cancelled_once_however_often_the_server_is_ended(directory: Path) -> None:
    """A second time would end its wait for a thread that has the engine's socket."""

    async def work(site: Site) -> None:
        site.opener.gate.clear()
        waiting = Use(site, "a")
        await until(lambda: site.opener.opened == ["a"])
        task = site["a"].task
        assert task is not None
        site.site.drain()
        site.models.stop_loading()
        assert task.cancelling() == 1
        with pytest.raises(ApiError):
            await waiting.task

    in_loop(directory, work)
