"""Which server gets a request: its model, its prefix, its session, and the health of servers."""

from __future__ import annotations

import asyncio
import json
from array import array

import pytest

from octavo.options.route import RouteSettings
from octavo.route import upstream as upstream_module
from octavo.route.asked import Asked
from octavo.route.router import Router
from tests.route.make import (
    CHAT,
    EVENTS,
    FakeServer,
    Request,
    Site,
    chunk,
    response,
    run,
)

EMPTY = array("q")


def long_text(name: str) -> str:
    return f"{name} " * 400


def ports(site: Site) -> list[int]:
    """Return for each server how many requests it has received."""
    return [len(each.requests) for each in site.servers]


def test_a_model_is_asked_for_where_it_is() -> None:
    async def work(site: Site) -> None:
        for name, place in (("a", 0), ("b", 1), ("c", 1)):
            answer = await site.post(json={"model": name, "messages": []})
            assert answer.json() == {"port": site.servers[place].port}
        answer = await site.post(json={"model": "d", "messages": []})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert sum(ports(site)) == 3
        cards = (await site.client.get("/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["a", "shared", "b", "c"]
        assert cards[1]["owned_by"] == site.servers[0].url
        assert (await site.client.get("/v1/models/b")).json() == cards[2]
        assert (await site.client.get("/v1/models/d")).status_code == 404

    run(work, FakeServer(models=("a", "shared")), FakeServer(models=("shared", "b", "c")))


def test_a_server_that_names_no_models_may_have_any() -> None:
    async def work(site: Site) -> None:
        assert (await site.post()).json() == {"port": site.servers[0].port}

    run(work, FakeServer(names_models=False), FakeServer(models=("other",)))


def test_a_conversation_returns_to_the_server_that_had_it() -> None:
    async def work(site: Site) -> None:
        turns = {name: [{"role": "user", "content": long_text(name)}] for name in "abcd"}
        for _ in range(3):
            for messages in turns.values():
                await site.post(json={"model": "m", "messages": messages})
                answer = {"role": "assistant", "content": long_text("answer")}
                messages += [answer, {"role": "user", "content": "more"}]
        found = [{each.body[40:60] for each in server.requests} for server in site.servers]
        assert ports(site) == [6, 6]
        assert not found[0] & found[1]

    run(work, FakeServer(), FakeServer())


def test_equal_prompts_of_different_keys_or_models_share_nothing() -> None:
    """Servers keep the prefixes of different keys and of different models apart."""

    async def work(site: Site) -> None:
        reader = site.router.bodies
        body = json.dumps({"model": "m", "prompt": long_text("x")}).encode()
        other = body.replace(b'"m"', b'"n"')
        salted = json.dumps({"model": "m", "prompt": long_text("x"), "cache_salt": "s"}).encode()
        first = await reader.read(body, {}, "one")
        assert first.keys
        for text, tenant in ((body, "two"), (other, "one"), (salted, "one")):
            assert not {*first.keys} & {*(await reader.read(text, {}, tenant)).keys}

    run(work, FakeServer())


def test_a_session_stays_with_its_server() -> None:
    async def work(site: Site) -> None:
        async def place_of(number: int) -> int:
            headers = {"X-Session-ID": f"session {number}"}
            port: int = (await site.post(headers=headers)).json()["port"]
            return port

        first = [await place_of(number) for number in range(24)]
        assert len({*first}) == 2
        assert [await place_of(number) for number in range(24)] == first

    run(work, FakeServer(), FakeServer())


def test_sessions_have_names_of_their_own() -> None:
    """A header goes before the fields of a body; null is no name."""

    async def work(site: Site) -> None:
        async def session(headers: dict[str, str] | None = None, **body: object) -> bytes:
            data = json.dumps(body).encode()
            return (await site.router.bodies.read(data, headers or {}, "")).session

        names = [
            await session({"x-session-id": "a"}, user="b", prompt_cache_key="c"),
            await session(user="b", prompt_cache_key="c"),
            await session(user="b"),
            await session(user="c"),
            await session(user="c", prompt_cache_key=None),
            await session(user=None),
        ]
        assert names[3] == names[4]
        assert names[5] == b""
        assert len({*names}) == 5

    run(work, FakeServer())


def test_few_sessions_move_when_a_server_leaves() -> None:
    """Sessions of other servers stay, and the choice is the same in every router."""
    urls = tuple(f"http://127.0.0.1:{9001 + number}" for number in range(4))
    first, second = (Router(RouteSettings(servers=order)) for order in (urls, urls[::-1]))
    for router in (first, second):
        for each in router.upstreams:
            each.note_well()
    asked = [Asked("", f"{number}".encode(), EMPTY, 1) for number in range(200)]

    def places(router: Router) -> list[str]:
        return [router.chosen(each, router.usable(each)).name for each in asked]

    before = places(first)
    assert before == places(second)
    assert all(before.count(url) > 20 for url in urls)
    first.upstreams[2].is_out = True
    moved = [one for one, other in zip(before, places(first), strict=True) if one != other]
    assert moved == [url for url in before if url == urls[2]]


def test_a_session_leaves_a_server_that_has_far_more_than_others() -> None:
    router = Router(RouteSettings(servers=("one:1", "two:2")))
    for each in router.upstreams:
        each.note_well()
    asked = Asked("", b"session", EMPTY, 1)
    first = router.chosen(asked, router.upstreams)
    first.num_requests = 50
    assert router.chosen(asked, router.upstreams) is not first


def test_a_session_name_is_bounded() -> None:
    async def work(site: Site) -> None:
        answer = await site.post(json={"user": "x" * 2000, "messages": []})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "user")

    run(work, FakeServer())


def test_requests_in_flight_count_as_load() -> None:
    gate = asyncio.Event()

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(response(200, b"{}"))

    servers = [FakeServer(script=script), FakeServer(script=script)]

    async def work(site: Site) -> None:
        asking = []
        for number in range(6):
            asking.append(asyncio.ensure_future(site.post()))
            await site.servers[0].until(lambda: True)
            while sum(ports(site)) <= number:
                await asyncio.sleep(0.001)
        assert sorted(ports(site)) == [3, 3]
        gate.set()
        await asyncio.gather(*asking)
        assert [each.num_requests for each in site.router.upstreams] == [0, 0]

    run(work, *servers)


def test_a_server_without_health_gets_nothing_until_it_is_well() -> None:
    first, second = FakeServer(health=503), FakeServer()

    async def work(site: Site) -> None:
        for _ in range(3):
            await site.post()
        assert ports(site) == [0, 3]
        first.health, second.health = 200, 500
        await site.look()
        await site.post()
        assert ports(site) == [1, 3]
        first.health = 503
        await site.look()
        assert (await site.client.get("/health")).status_code == 503
        assert (await site.client.get("/health/live")).status_code == 200
        answer = await site.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server")
        assert answer.headers["retry-after"] == "1"

    run(work, first, second, wait_seconds=0.0)


def test_a_request_waits_for_a_server() -> None:
    server = FakeServer(health=503)

    async def work(site: Site) -> None:
        asking = asyncio.ensure_future(site.post())
        while not site.router.active():
            await asyncio.sleep(0.001)
        server.health = 200
        await site.look()
        assert (await asking).json() == {"port": server.port}

    run(work, server, wait_seconds=200.0)


def test_a_server_that_starts_again_has_no_prefixes() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        (upstream,) = site.router.upstreams
        await site.post(json={"model": "m", "prompt": long_text("x")})
        assert len(upstream.known) > 0
        server.health = 503
        await site.look()
        assert len(upstream.known) == 0

    run(work, server)


def test_failures_pause_a_server_for_longer_each_time() -> None:
    now = 100.0
    router = Router(RouteSettings(servers=("one:1",)), lambda: now)
    (upstream,) = router.upstreams
    upstream.note_well()
    pauses = []
    for _ in range(12):
        for _ in range(5):  # at once
            upstream.note_failure()
        pauses.append(upstream.paused_until - now)
        assert upstream.is_paused
        assert upstream.state() == "paused"
        now = upstream.paused_until
        assert not upstream.is_paused
    first, most = upstream_module.FIRST_PAUSE_SECONDS, upstream_module.MOST_PAUSE_SECONDS
    assert pauses[:3] == pytest.approx([first, 2 * first, 4 * first])
    assert pauses[-1] == pytest.approx(most)
    upstream.note_answer()
    upstream.note_failure()
    assert upstream.paused_until - now == pytest.approx(first)


def test_prompts_without_an_answer_count_as_waiting() -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await gate.wait()
        writer.write(EVENTS + chunk(b"data: 1\n\n"))
        await asyncio.Event().wait()

    async def work(site: Site) -> None:
        (upstream,) = site.router.upstreams
        body = {"model": "m", "prompt": long_text("x"), "stream": True}
        sending = site.client.stream("POST", CHAT, json=body)
        asking = asyncio.ensure_future(sending.__aenter__())
        await begun.wait()
        assert upstream.num_waiting_tokens == pytest.approx(200, abs=20)
        gate.set()
        answer = await asking
        await anext(answer.aiter_raw())
        assert (upstream.num_waiting_tokens, upstream.num_requests) == (0, 1)
        await sending.__aexit__(None, None, None)

    run(work, FakeServer(script=script))


def test_servers_are_asked_again_and_again() -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        (upstream,) = site.router.upstreams
        server.health = 503
        while upstream.is_ready:
            await asyncio.sleep(0.001)
        server.health, server.models = 404, ("n",)  # it answers, and has no such route
        while not upstream.is_ready:
            await asyncio.sleep(0.001)
        assert site.router.model_names() == ["n"]

    run(work, server, health_seconds=0.01)


def test_a_list_of_models_is_read_again() -> None:
    """A list is read again after a time, and kept where a server names none any more."""
    server = FakeServer()

    async def work(site: Site) -> None:
        server.models = ("n", "o")
        await site.look()
        assert site.router.model_names() == ["n", "o"]
        server.names_models = False
        await site.look()
        assert site.router.model_names() == ["n", "o"]
        site.router.upstreams[0].is_out = True
        assert site.router.model_names() == []

    run(work, server, models_seconds=1e-9)


def test_a_server_that_is_late_keeps_its_prefixes() -> None:
    router = Router(RouteSettings(servers=("one:1",)))
    (upstream,) = router.upstreams
    upstream.note_well()
    upstream.known.note([1, 2, 3])
    upstream.note_trouble("no answer within 5 s", keeps_cache=True)
    assert (upstream.is_ready, len(upstream.known)) == (False, 3)
    upstream.note_trouble("no connection", keeps_cache=False)
    assert len(upstream.known) == 0
