"""llama-server's router: models that clients load and unload, and what its lists say of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from octavo.server.models.model import State
from octavo.transport.errors import ApiError
from tests.server.make import until
from tests.server.models.make import Site
from tests.server.models.test_front import run
from tests.server.models.test_models import Use, in_loop, used


async def status_of(client: httpx.AsyncClient, name: str) -> str:
    """Return the state of a model as the list has it."""
    cards = (await client.get("/models")).json()["data"]
    (found,) = [each["status"]["value"] for each in cards if each["id"] == name]
    assert isinstance(found, str)
    return found


def test_a_model_is_loaded_and_unloaded(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.start()
        site.opener.gate.clear()
        response = await client.post("/models/load", json={"model": "a"})
        assert (response.status_code, response.json()) == (200, {"success": True})
        await until(lambda: site["a"].state is State.LOADING)
        assert await status_of(client, "a") == "loading"
        again = await client.post("/models/load", json={"model": "a"})
        assert (again.status_code, again.json()["error"]["param"]) == (400, "model")
        site.opener.gate.set()
        await until(lambda: site["a"].state is State.LOADED)
        assert (await client.post("/models/load", json={"model": "a"})).status_code == 400
        context = site.context("a")
        response = await client.post("/models/unload", json={"model": "a"})
        assert (response.status_code, response.json()) == (200, {"success": True})
        await until(lambda: site["a"].state is State.UNLOADED)
        assert context.is_closed
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 400
        assert site.opener.opened == ["a"]

    run(directory, work)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"model": ""}, 400),
        ({"model": ["a"]}, 400),
        ({"model": "../a"}, 404),
    ],
)
def test_what_is_no_model_is_refused(directory: Path, body: object, status: int) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        for path in ("/models/load", "/models/unload"):
            response = await client.post(path, json=body)
            assert response.status_code == status, response.text
            assert response.json()["error"]["code"] == status  # llama.cpp's form
        assert site.opener.opened == []

    run(directory, work)


def test_a_model_that_answers_is_unloaded_afterwards(directory: Path) -> None:
    """Requests that come before then are answered too; loading it again takes the wish back."""

    async def work(site: Site) -> None:
        site.models.start()
        first = Use(site, "a")
        await first.has_begun.wait()
        site.models.unload(site["a"])
        second = Use(site, "a")
        await second.has_begun.wait()
        await first.finish()
        assert site["a"].state is State.LOADED
        site.models.load(site["a"])  # which is no error now
        await second.finish()
        await used(site, "b")
        assert site["a"].state is State.LOADED
        site.models.unload(site["a"])
        await until(lambda: site["a"].state is State.UNLOADED)
        assert not site["a"].ends_when_idle

    in_loop(directory, work)


def test_a_model_that_is_being_loaded_can_be_unloaded(directory: Path) -> None:
    async def work(site: Site) -> None:
        site.models.start()
        site.opener.gate.clear()
        site.models.load(site["a"])
        await until(lambda: site.opener.opened == ["a"])
        site.models.unload(site["a"])
        site.opener.gate.set()
        await until(lambda: site["a"].state is State.UNLOADED and site["a"].num_loads == 1)

    in_loop(directory, work)


def test_a_model_that_waits_for_its_turn_is_loading(directory: Path) -> None:
    """Requests for it wait too, also where a request alone would not load it."""

    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.start()
        site.models.autoloads = False
        site.opener.gate.clear()
        for name in ("b", "a"):
            response = await client.post("/models/load", json={"model": name})
            assert response.json() == {"success": True}
        await until(lambda: site["a"].task is not None and site["b"].state is State.LOADING)
        assert site["a"].state is State.UNLOADED
        assert await status_of(client, "a") == "loading"
        body = {"model": "a", "prompt": "Hi", "max_tokens": 1}
        asked = asyncio.ensure_future(client.post("/v1/completions", json=body))
        site.opener.gate.set()
        assert (await asked).status_code == 200

    run(directory, work)


def test_a_load_without_room_is_shown_and_tried_again(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.start()
        refusal = ApiError(503, "no room", code="models_busy")
        site.opener.failures["a"] = refusal
        site.models.load(site["a"])
        await until(lambda: not site.models._asked)
        failure = site["a"].failure
        assert failure is not None
        assert failure.code == "models_busy"
        cards = (await client.get("/models")).json()["data"]
        assert [each["status"].get("failed") for each in cards if each["id"] == "a"] == [True]
        del site.opener.failures["a"]
        site.models.load(site["a"])  # at once, and not after ten seconds
        await until(lambda: site["a"].state is State.LOADED)
        assert site["a"].failure is None

    run(directory, work)


def test_a_failure_is_shown_and_leaves_no_wish(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.start()
        site.opener.failures["a"] = OSError("no such file")
        await client.post("/models/load", json={"model": "a"})
        await until(lambda: site["a"].failure is not None)
        await until(lambda: site["a"].task is None)
        cards = (await client.get("/models")).json()["data"]
        assert cards[0]["status"] == {"value": "unloaded", "failed": True}
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 400
        site.opener.failures.clear()
        site.clock.now += 60
        await client.post("/models/load", json={"model": "a"})
        await until(lambda: site["a"].state is State.LOADED)
        cards = (await client.get("/models")).json()["data"]
        assert cards[0]["status"] == {"value": "loaded"}

    run(directory, work)


def test_a_model_that_has_made_room_is_unloaded_for_clients(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sleeps by itself is asleep, as at llama-server; both can be loaded again."""
    monkeypatch.setattr("octavo.server.models.models.WATCH_SECONDS", 0.001)

    async def work(site: Site, client: httpx.AsyncClient) -> None:
        await used(site, "abc")
        assert site.states() == "sleeping loaded loaded"
        assert await status_of(client, "a") == "unloaded"
        assert (await client.post("/models/unload", json={"model": "a"})).status_code == 400
        assert (await client.post("/models/load", json={"model": "a"})).status_code == 200
        await until(lambda: site["a"].state is State.LOADED)
        assert await status_of(client, "b") == "unloaded"
        site["c"].idle_seconds = 0.0
        site.models.start()
        await until(lambda: site["c"].state is State.SLEEPING)
        assert await status_of(client, "c") == "sleeping"
        assert (await client.post("/models/load", json={"model": "c"})).status_code == 400
        assert (await client.post("/models/unload", json={"model": "c"})).status_code == 200
        await until(lambda: site["c"].context is None)

    run(directory, work)


def test_without_autoload_a_request_loads_nothing(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        site.models.autoloads = False
        body = {"model": "a", "prompt": "Hi", "max_tokens": 1}
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "model_not_loaded"
        assert (await client.get("/props?model=a")).status_code == 400
        assert site.opener.opened == []
        for wrong in ("maybe", "2"):
            response = await client.post(f"/v1/completions?autoload={wrong}", json=body)
            assert response.json()["error"]["param"] == "autoload"
        response = await client.post("/v1/completions?autoload=true", json=body)
        assert response.status_code == 200, response.text
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        site.models.autoloads = True
        other = {**body, "model": "b"}
        assert (await client.post("/v1/completions?autoload=0", json=other)).status_code == 400
        assert (await client.post("/v1/completions?autoload=", json=other)).status_code == 200

    run(directory, work)


def test_props_are_of_the_server_or_of_the_model_that_is_named(directory: Path) -> None:
    async def work(site: Site, client: httpx.AsyncClient) -> None:
        found = (await client.get("/props")).json()
        assert (found["role"], found["max_instances"]) == ("router", 4)
        assert found["models_autoload"] is True
        assert site.opener.opened == []
        found = (await client.get("/props?model=b")).json()
        assert found["model_alias"] == "b"
        assert site.opener.opened == ["b"]

    run(directory, work)


def test_the_end_of_the_server_ends_what_was_to_be_loaded(directory: Path) -> None:
    async def work(site: Site) -> None:
        site.opener.gate.clear()
        site.models.load(site["a"])
        site.models.load(site["b"])
        await until(lambda: site.opener.opened == ["a"])
        site.site.drain()
        await until(lambda: site["a"].task is None and site["b"].task is None)
        await asyncio.sleep(0)
        site.models.load(site["c"])  # whose error is dropped
        await asyncio.sleep(0)
        assert site.opener.opened == ["a"]
        with pytest.raises(ApiError):
            await Use(site, "a").task

    in_loop(directory, work)
