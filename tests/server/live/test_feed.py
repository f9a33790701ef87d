"""Frames of the live stream: what they show, to whom, and what they cost without a listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.inline import InlineClient
from octavo.observe.exposition import Histogram
from octavo.serving.live import feed as feed_module
from octavo.serving.live.feed import Listener, LiveFeed
from octavo.serving.live.times import RecentTimes, quantile
from octavo.serving.live.watch import EngineEye
from octavo.transport.errors import ApiError
from octavo.wire.commands import Look
from tests.server.durable.make import KEY, OTHER_KEY, Gate, in_loop
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, Client, serving

SECRET = "xylophone"


@pytest.fixture(autouse=True)
def _many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "FRAME_SECONDS", 0.01)


@contextlib.asynccontextmanager
async def attached(
    directory: Path, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serve with an engine that runs from the beginning, as that of a server does."""
    async with serving(directory, engine, **options) as client:
        client.server.llm.attach()
        yield client


@contextlib.contextmanager
def listening(feed: LiveFeed, owner: str = "") -> Iterator[Listener]:
    """Listen within the block."""
    listener = feed.join(owner)
    try:
        yield listener
    finally:
        feed.leave(listener)


async def frame_of(listener: Listener) -> Any:
    """Return the next frame; check that it is one event."""
    async with asyncio.timeout(LIMIT):
        frame = await listener.next()
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    return json.loads(frame.removeprefix(b"data: "))


async def seen(
    listener: Listener, condition: Callable[[Any], Any], each: Callable[[], Any] = lambda: None
) -> Any:
    """Return the first frame with a condition; call `each` before every one."""
    async with asyncio.timeout(LIMIT):
        while True:
            each()
            frame = await frame_of(listener)
            if condition(frame):
                return frame


@contextlib.asynccontextmanager
async def held_request(
    client: Client, gate: Gate, name: str = "mine", key: str | None = None, **fields: Any
) -> AsyncIterator[None]:
    """Send a request whose steps wait at a gate; let it end behind the block."""
    headers = {"x-request-id": name}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = {"prompt": SECRET, "max_tokens": 200, "ignore_eos": True, **fields}
    task = asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))
    try:
        yield
    finally:
        gate.open()
        assert (await task).status_code == 200


def _has_begun(frame: Any) -> bool:
    engine = frame["models"][0]["engines"][0]
    return engine["map"] is not None and engine["free_blocks"] > 0


@in_loop
async def test_an_idle_server_shows_its_engine(directory: Path) -> None:
    async with attached(directory) as client:
        with listening(client.server.live) as listener:
            frame = await seen(listener, _has_begun)
    model = frame["models"][0]
    assert (model["name"], model["state"], model["why"]) == ("tiny", "ready", "")
    engine = model["engines"][0]
    assert (engine["blocks"], engine["free_blocks"], engine["slots"]) == (511, 511, 8)
    assert engine["map"] == {"cell_blocks": 1, "used": [0] * 511, "kept": [0] * 511}
    assert (frame["requests"], frame["ended"], frame["listeners"]) == ([], [], 1)
    assert frame["is_shared"] is False


@in_loop
async def test_a_running_request_is_shown_until_it_has_ended(directory: Path) -> None:
    gate = Gate(0)
    engine = FakeEngine(directory, runner=gate.runner)
    async with attached(directory, engine) as client:
        with listening(client.server.live) as listener:
            async with held_request(client, gate):
                frame = await seen(
                    listener,
                    lambda frame: [each["state"] for each in frame["requests"]] == ["decode"],
                    lambda: gate.open(1),
                )
                (request,) = frame["requests"]
                model = frame["models"][0]
                explained = (await client.get("/v1/requests/mine/explain")).json()
                assert explained["outcome"] == "running"
            after = await seen(listener, lambda frame: frame["ended"])
    assert (request["id"], request["model"], request["engine"]) == ("mine", "tiny", 0)
    assert request["prompt_tokens"] <= request["computed_tokens"] < request["known_tokens"]
    assert request["most_tokens"] == request["prompt_tokens"] + 200
    used = [place for place, share in enumerate(model["engines"][0]["map"]["used"]) if share]
    assert request["cells"] == used
    assert model["engines"][0]["running"] == 1
    (ended,) = after["ended"]
    assert (ended["id"], ended["outcome"], ended["generated_tokens"]) == ("mine", "finished", 200)
    assert after["requests"] == []
    assert after["models"][0]["first_token"]["count"] == 1


@in_loop
async def test_requests_that_wait_are_shown_with_the_reason(directory: Path) -> None:
    gate = Gate(0)
    engine = FakeEngine(directory, runner=gate.runner, max_num_seqs=1)
    async with attached(directory, engine, max_running_sequences=2) as client:
        with listening(client.server.live) as listener:
            async with (
                held_request(client, gate, "first"),
                held_request(client, gate, "second"),
                held_request(client, gate, "third"),
            ):
                frame = await seen(
                    listener,
                    lambda frame: frame["models"][0]["engines"][0]["blocked_by"] == "slots",
                    lambda: gate.open(1),
                )
    states = sorted(each["state"] for each in frame["requests"])
    assert states == ["admission", "decode", "waiting"]
    model = frame["models"][0]
    assert (model["queue_requests"], model["admitted"], model["capacity"]) == (1, 2, 2)


@in_loop
async def test_no_frame_has_a_text(directory: Path) -> None:
    gate = Gate(0)
    async with attached(directory, FakeEngine(directory, runner=gate.runner)) as client:
        with listening(client.server.live) as listener:
            async with held_request(client, gate):
                frame = await seen(listener, lambda frame: frame["requests"], lambda: gate.open(1))
    assert SECRET not in json.dumps(frame)


@in_loop
async def test_a_key_sees_its_own_requests_alone(directory: Path) -> None:
    gate = Gate(0)
    engine = FakeEngine(directory, runner=gate.runner)
    async with attached(directory, engine, api_keys=(KEY, OTHER_KEY)) as client:
        names = sorted(client.server.access._names)
        with (
            listening(client.server.live, names[0]) as one,
            listening(client.server.live, names[1]) as other,
        ):
            async with held_request(client, gate, "mine", KEY):
                gate.open(1)
                frames = [
                    await seen(each, lambda frame: frame["models"][0]["engines"][0]["running"])
                    for each in (one, other)
                ]
            (owner, _), (stranger, _) = sorted(
                zip((one, other), frames, strict=True),
                key=lambda pair: len(pair[1]["requests"]),
                reverse=True,
            )
            ended = await seen(owner, lambda frame: frame["ended"])
            unseen = await frame_of(stranger)  # made at the same time, or later
    shown = [[each["id"] for each in frame["requests"]] for frame in frames]
    assert sorted(shown) == [[], ["mine"]]
    assert [each["id"] for each in ended["ended"]] == ["mine"]
    assert unseen["ended"] == []
    for frame in frames:
        assert frame["is_shared"]
        assert [engine["map"] for engine in frame["models"][0]["engines"]] == [None]
        assert all(not each["cells"] for each in frame["requests"])


@in_loop
async def test_nothing_is_made_without_a_listener(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    command = InlineClient.command

    def counted(self: InlineClient, given: Any, *more: Any) -> Any:
        asked.append(given)
        return command(self, given, *more)

    monkeypatch.setattr(InlineClient, "command", counted)
    async with attached(directory) as client:
        await client.complete(max_tokens=2)
        feed = client.server.live
        assert asked == []
        assert feed._task is None
        with listening(feed) as listener:
            await frame_of(listener)
            assert asked[0] == Look()
            task = feed._task
        assert task is not None
        await asyncio.wait([task])
        count = len(asked)
        await client.complete(max_tokens=2)
        assert len(asked) == count
        assert (feed._task, feed._watches, feed.listeners) == (None, {}, [])


@in_loop
async def test_an_engine_in_a_long_step_delays_no_frame(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LOOK_SECONDS", 0.01)
    gate = Gate(0)
    async with attached(directory, FakeEngine(directory, runner=gate.runner)) as client:
        with listening(client.server.live) as listener:
            async with held_request(client, gate):
                frame = await seen(listener, lambda _: gate.num_arrived)
                for _ in range(3):
                    frame = await frame_of(listener)
                assert [each["state"] for each in frame["requests"]] == ["submitted"]


@in_loop
async def test_an_engine_that_is_away_is_shown_as_such(directory: Path) -> None:
    engine = FakeEngine(directory)
    async with attached(directory, engine) as client:
        with listening(client.server.live) as listener:
            engine.is_ready = False
            frame = await seen(listener, lambda frame: frame["models"][0]["state"] != "ready")
            assert frame["models"][0]["state"] == "restarting"
            engine.is_ready = True
            client.server.is_draining = True
            frame = await seen(listener, lambda frame: frame["models"][0]["state"] == "draining")
            client.server.is_draining, client.server.is_paused = False, True
            await seen(listener, lambda frame: frame["models"][0]["state"] == "paused")


@in_loop
async def test_a_failure_ends_the_streams(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: EngineEye, now: float) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(EngineEye, "take", fails)
    async with attached(directory) as client:
        with listening(client.server.live) as listener:
            async with asyncio.timeout(LIMIT):
                assert await listener.next() == b""
            assert str(listener.end) == "planted"
        monkeypatch.undo()
        with listening(client.server.live) as listener:
            await frame_of(listener)


@in_loop
async def test_a_failure_does_not_outlast_who_saw_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attached(directory) as client:
        feed = client.server.live
        with listening(feed) as first:
            with monkeypatch.context() as patched:
                patched.setattr(LiveFeed, "_send", _fail)
                async with asyncio.timeout(LIMIT):
                    assert await first.next() == b""
            with listening(feed) as second:  # while the first one has not left yet
                await frame_of(second)


def _fail(*_: object) -> None:
    raise ZeroDivisionError("on purpose")


def test_a_slow_listener_gets_the_newest_frame() -> None:
    async def main() -> None:
        listener = Listener("")
        listener.offer(b"old")
        listener.offer(b"new")
        assert await listener.next() == b"new"
        listener.offer(b"newer")
        listener.stop(ApiError(503, "ends"))
        assert await listener.next() == b""

    asyncio.run(main())


@in_loop
async def test_listeners_are_bounded(directory: Path) -> None:
    async with attached(directory, max_live_listeners=2) as client:
        feed = client.server.live
        with listening(feed), listening(feed):
            with pytest.raises(ApiError) as caught:
                feed.join("")
            assert (caught.value.status, caught.value.code) == (429, "too_many_listeners")
        with listening(feed) as listener:
            await frame_of(listener)


@in_loop
async def test_one_key_of_several_cannot_take_all_places(directory: Path) -> None:
    async with attached(directory, max_live_listeners=4, api_keys=(KEY, OTHER_KEY)) as client:
        feed = client.server.live
        with listening(feed, "one"), listening(feed, "one"):
            with pytest.raises(ApiError) as caught:
                feed.join("one")
            assert caught.value.code == "too_many_listeners"
            with listening(feed, "other") as other:
                await frame_of(other)


@in_loop
async def test_the_stream_can_be_switched_off(directory: Path) -> None:
    async with attached(directory, max_live_listeners=0) as client:
        response = await client.get("/v1/live")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "live_disabled")


def test_times_are_those_of_the_last_frames_alone() -> None:
    histogram = Histogram("", "", (0.01, 0.1, 1.0))
    histogram.observe(0.5, times=100)
    times = RecentTimes(histogram)
    assert times.take().count == 0
    histogram.observe(0.05, times=3)
    found = times.take()
    assert (found.count, found.mean_ms) == (3, 50.0)
    assert 10 < found.p50_ms < found.p95_ms <= 100


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((4, 0, 0), 0.5, 0.5),
        ((0, 4, 0), 1.0, 3.0),
        ((0, 4, 0), 0.5, 2.0),
        ((1, 0, 9), 0.95, 3.0),  # beyond all bounds
    ],
)
def test_quantiles_are_read_off_the_counts(
    counts: tuple[int, ...], share: float, value: float
) -> None:
    assert quantile((1.0, 3.0), counts, share) == value
