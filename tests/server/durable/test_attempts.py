"""One attempt answers a request at a time: later connections continue what earlier ones began."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.client.durable.answer import MOST_TOKENS
from octavo.core.request import TokenEvent
from octavo.serving.durable import generation
from octavo.serving.durable.generation import DurableGeneration
from octavo.transport.errors import unavailable
from tests.server.durable.make import (
    OTHER_KEY,
    Gate,
    Received,
    durable,
    in_loop,
    received,
    service_of,
)
from tests.server.make import Client, serving, until

STREAM = {"prompt": "The quick", "max_tokens": 24, "stream": True, "return_token_ids": True}
WHOLE = {**STREAM, "stream": False}
NAMED = {"x-request-id": "one"}


@pytest.fixture(scope="module")
def whole(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Received:
    """Return the stream of a server that nothing disturbs."""
    journal = tmp_path_factory.mktemp("undisturbed") / "journal"
    return received(asyncio.run(undisturbed(directory, journal)).text)


async def begin(client: Client, num_tokens: int, **headers: str) -> asyncio.Task[Any]:
    """Begin a stream, and wait until so many tokens of it are recorded."""
    service = service_of(client)
    post = asyncio.ensure_future(
        client.post("/v1/completions", json=STREAM, headers=headers or None)
    )
    await until(lambda: any(len(each.answers[0].tokens) >= num_tokens for each in service.requests))
    return post


async def undisturbed(directory: Path, journal: Path, body: dict[str, Any] = STREAM) -> Any:
    async with durable(directory, journal) as client:
        return await client.post("/v1/completions", json=body)


@in_loop
async def test_a_client_that_left_gets_the_rest(
    directory: Path, tmp_path: Path, whole: Received
) -> None:
    """A disconnect ends the computation: nothing runs until the client comes back."""
    gate = Gate(8)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        service = service_of(client)
        leaving = await begin(client, 5)
        leaving.cancel()
        (request,) = service.requests
        await until(lambda: request.rested_at is not None)
        gate.open()
        await until(lambda: not client.server.active)
        num_tokens = len(request.answers[0].tokens)
        assert 5 <= num_tokens < 24
        response = await client.get(f"/v1/streams/{request.request_id}?from=3")
        rest = received(response.text)
        assert rest.is_ended
        assert rest.tokens() == whole.tokens()[3:]
        assert request.rested_at is not None


@in_loop
async def test_an_attempt_that_ends_in_its_replay_is_free_without_a_collection(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, replaying = Gate(6), asyncio.Event()
    made: list[weakref.ref[DurableGeneration]] = []

    async def never_ends(*_: Any) -> None:
        replaying.set()
        await asyncio.Event().wait()

    begin_attempt = DurableGeneration.__init__

    def noting(self: DurableGeneration, *arguments: Any, **named: Any) -> None:
        begin_attempt(self, *arguments, **named)
        made.append(weakref.ref(self))

    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        (await begin(client, 3, **NAMED)).cancel()
        (request,) = service_of(client).requests
        gate.open()
        await until(lambda: request.rested_at is not None and not client.server.active)
        monkeypatch.setattr(generation, "resubmit", never_ends)
        monkeypatch.setattr(DurableGeneration, "__init__", noting)
        gc.collect()
        gc.disable()
        try:
            leaving = asyncio.ensure_future(client.get("/v1/streams/one"))
            await replaying.wait()
            leaving.cancel()
            await until(lambda: not client.server.active)
            (attempt,) = made
            await until(lambda: attempt() is None)
        finally:
            gc.enable()


@in_loop
async def test_a_newer_connection_takes_the_stream_over(
    directory: Path, tmp_path: Path, whole: Received
) -> None:
    gate = Gate(6)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        first = await begin(client, 3, **NAMED)
        others = [asyncio.ensure_future(client.get("/v1/streams/one?from=2")) for _ in range(4)]
        assert '"code":"stream_taken_over"' in (await first).text
        gate.open()
        rests = [await each for each in others]
        ended = [rest for rest in rests if received(rest.text).tokens() == whole.tokens()[2:]]
        assert ended, "the last of them gets the rest"
        for rest in rests:
            if rest not in ended:
                assert "stream_taken_over" in rest.text


@in_loop
async def test_a_wrong_position_ends_no_stream(directory: Path, tmp_path: Path) -> None:
    gate = Gate(6)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        service = service_of(client)
        begun = await begin(client, 3, **NAMED)
        assert (await client.get("/v1/streams/one?from=26")).status_code == 400
        response = await client.get("/v1/streams/one?form=3")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "form"
        gate.open()
        assert len(received((await begun).text).tokens()) == 24
        (request,) = service.requests
        assert request.rested_at is not None


@in_loop
async def test_a_request_rests_if_the_newer_client_leaves_before_the_older_has_ended(
    directory: Path, tmp_path: Path
) -> None:
    """Otherwise it would be kept for ever, and nothing would continue it."""
    gate = Gate(6)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        service = service_of(client)
        begun = await begin(client, 3, **NAMED)
        (request,) = service.requests
        (attempt,) = service._attempts.values()
        stop, attempt.stop = attempt.stop, lambda why: None  # it takes its time
        newer = [asyncio.ensure_future(service._take_over(request)) for _ in range(2)]
        await until(lambda: attempt.num_waiting == 2)
        newer[0].cancel()
        await until(lambda: attempt.num_waiting == 1)
        end = attempt.over.set

        def end_and_leave() -> None:
            end()
            newer[1].cancel()  # before it runs again

        attempt.over.set = end_and_leave  # type: ignore[method-assign]
        stop(unavailable("a test ends it", "test"))
        await asyncio.gather(*newer, begun, return_exceptions=True)
        gate.open()
        assert not service._attempts
        assert request.rested_at is not None


@in_loop
async def test_the_next_server_continues_without_a_client(
    directory: Path, tmp_path: Path, whole: Received
) -> None:
    journal, gate = tmp_path / "journal", Gate(7)
    async with durable(directory, journal, gate.runner) as client:
        service = service_of(client)
        lost = await begin(client, 4, **NAMED)
        await service.requests.writer.written()
        killed = journal.read_bytes()
        gate.open()
        lost.cancel()
    journal.write_bytes(killed)
    async with durable(directory, journal) as client:
        service = service_of(client)
        (request,) = service.requests
        await until(lambda: request.rested_at is not None)
        assert list(request.answers[0].tokens) == whole.tokens()
        assert client.server.admission.num_open == 0
        rest = received((await client.get("/v1/streams/cmpl-one?from=4")).text)
        assert rest.tokens() == whole.tokens()[4:]


@in_loop
async def test_a_prediction_longer_than_a_new_context_loses_no_answer(
    directory: Path, tmp_path: Path
) -> None:
    journal, gate, path = tmp_path / "journal", Gate(7), "/v1/chat/completions"
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 24,
        "stream": True,
        "return_token_ids": True,
        "prediction": {"type": "content", "content": "0123456789" * 15},
    }
    async with durable(directory, journal, gate.runner) as client:
        service = service_of(client)
        lost = asyncio.ensure_future(client.post(path, json=body, headers=NAMED))
        await until(lambda: any(len(each.answers[0].tokens) > 3 for each in service.requests))
        await service.requests.writer.written()
        killed = journal.read_bytes()
        gate.open()
        whole = received((await lost).text)
    journal.write_bytes(killed)
    shorter = {"max_model_len": 64}
    async with durable(directory, journal, engine_options=shorter) as client:
        (request,) = service_of(client).requests
        await until(lambda: request.rested_at is not None)
        assert list(request.answers[0].tokens) == whole.tokens()
        assert len(whole.tokens()) == 24


@in_loop
async def test_a_request_of_a_client_that_had_left_waits_for_it(
    directory: Path, tmp_path: Path
) -> None:
    journal, gate = tmp_path / "journal", Gate(7)
    async with durable(directory, journal, gate.runner) as client:
        service = service_of(client)
        leaving = await begin(client, 4)
        leaving.cancel()
        (request,) = service.requests
        await until(lambda: request.rested_at is not None)
        gate.open()
    async with durable(directory, journal) as client:
        service = service_of(client)
        (request,) = service.requests
        assert request.rested_at is not None
        assert request.answers[0].finish_reason is None


@in_loop
async def test_a_repeated_request_id_gets_the_same_answer(directory: Path, tmp_path: Path) -> None:
    """A request without a seed has an answer of its own, which is not drawn again."""
    for body in ({**STREAM, "temperature": 1.0}, {**WHOLE, "temperature": 1.0}):
        async with durable(directory, tmp_path / "journal") as client:
            headers = {"x-request-id": "again"}
            first = await client.post("/v1/completions", json=body, headers=headers)
            second = await client.post("/v1/completions", json=body, headers=headers)
            fresh = await client.post("/v1/completions", json=body)
            assert said(first.text) == said(second.text) != said(fresh.text)
            others = {"authorization": f"Bearer {OTHER_KEY}", **headers}
            third = await client.post("/v1/completions", json=body, headers=others)
            assert said(third.text) != said(first.text), "the id is another key's"
            response = await client.post(
                "/v1/completions", json={**body, "max_tokens": 3}, headers=headers
            )
            assert response.status_code == 409
            assert response.json()["error"]["code"] == "request_id_in_use"
        (tmp_path / "journal").unlink()


@in_loop
async def test_a_repeat_before_the_request_is_recorded_takes_it_over(
    directory: Path, tmp_path: Path
) -> None:
    """A repeat waits until the first is recorded; another body is refused at once."""
    body = {**STREAM, "seed": 7}
    whole = received((await undisturbed(directory, tmp_path / "other", body)).text)
    gate, headers = Gate(0), {"x-request-id": "one"}
    options: dict[str, Any] = {"max_running_sequences": 1}
    async with durable(directory, tmp_path / "journal", gate.runner, **options) as client:
        admission, service = client.server.admission, service_of(client)
        busy = asyncio.ensure_future(client.post("/v1/completions", json=WHOLE))
        await until(lambda: admission.num_admitted == 1)
        posts = []
        for number in range(3):
            post = client.post("/v1/completions", json=body, headers=headers)
            posts.append(asyncio.ensure_future(post))
            await until(lambda: admission.num_open == number + 2)  # noqa: B023
        response = await client.post("/v1/completions", json=WHOLE, headers=headers)
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "request_id_in_use"
        gate.open()
        answers = [(await post).text for post in posts]
        ended = [text for text in answers if "stream_taken_over" not in text]
        assert len(ended) == 1
        assert received(ended[0]).tokens() == whole.tokens()
        assert (await busy).status_code == 200
        assert len(list(service.requests)) == 2
        assert not service._beginnings


@in_loop
async def test_a_repeat_begins_anew_if_the_first_is_never_recorded(
    directory: Path, tmp_path: Path
) -> None:
    gate, headers = Gate(0), {"x-request-id": "one"}
    options: dict[str, Any] = {"max_running_sequences": 1}
    async with durable(directory, tmp_path / "journal", gate.runner, **options) as client:
        admission = client.server.admission
        busy = asyncio.ensure_future(client.post("/v1/completions", json=WHOLE))
        await until(lambda: admission.num_admitted == 1)
        first, second = (
            asyncio.ensure_future(client.post("/v1/completions", json=WHOLE, headers=headers))
            for _ in range(2)
        )
        await until(lambda: admission.num_open == 3)
        first.cancel()
        gate.open()
        assert (await second).status_code == 200
        assert (await busy).status_code == 200


@in_loop
async def test_a_large_body_is_another_if_any_of_it_differs(
    directory: Path, tmp_path: Path
) -> None:
    """A worker reads it, and of its prompt only the tokens come back: here those of its end."""
    headers = {"x-request-id": "large"}
    for stream in (True, False):
        body = {**STREAM, "stream": stream, "truncate_prompt_tokens": 20, "temperature": 1.0}
        texts = ("a" + "word " * 60_000, "b" + "word " * 60_000)
        bodies = [{**body, "prompt": text} for text in texts]
        async with durable(directory, tmp_path / f"journal-{stream}") as client:
            first, second = [
                await client.post("/v1/completions", json=bodies[0], headers=headers)
                for _ in range(2)
            ]
            assert first.status_code == 200, first.text
            assert said(first.text) == said(second.text)
            other = await client.post("/v1/completions", json=bodies[1], headers=headers)
            assert other.status_code == 409
            (request,) = service_of(client).requests
            assert len(request.head) < 2000, "the text is not kept"


def said(text: str) -> Any:
    """Return the text of an answer, streamed or whole."""
    if text.startswith("{"):
        return text[text.index('"choices"') : text.index('"usage"')]
    return received(text).text()


@in_loop
async def test_a_request_without_a_stream_survives_too(directory: Path, tmp_path: Path) -> None:
    whole = (await undisturbed(directory, tmp_path / "other", WHOLE)).json()["choices"]
    journal, gate = tmp_path / "journal", Gate(7)
    headers = {"x-request-id": "one"}
    async with durable(directory, journal, gate.runner) as client:
        service = service_of(client)
        post = client.post("/v1/completions", json=WHOLE, headers=headers)
        lost = asyncio.ensure_future(post)
        await until(lambda: any(len(each.answers[0].tokens) >= 4 for each in service.requests))
        await service.requests.writer.written()
        killed = journal.read_bytes()
        gate.open()
        lost.cancel()
    journal.write_bytes(killed)
    async with durable(directory, journal) as client:
        repeated = await client.post("/v1/completions", json=WHOLE, headers=headers)
        assert repeated.json()["choices"] == whole
        assert len(service_of(client).requests) == 1


@in_loop
async def test_a_drained_server_leaves_the_rest_to_the_next(
    directory: Path, tmp_path: Path, whole: Received
) -> None:
    gate = Gate(7)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        service = service_of(client)
        headers = {"x-request-id": "one"}
        post = client.post("/v1/completions", json=STREAM, headers=headers)
        begun = asyncio.ensure_future(post)
        await until(lambda: any(len(each.answers[0].tokens) >= 4 for each in service.requests))
        client.server.is_draining = True
        for each in list(client.server.active.values()):
            each.stop(unavailable("the server is shutting down", "server_shutdown"))
        answer = await begun
        gate.open()
        (request,) = service.requests
        assert request.rested_at is None
    async with durable(directory, tmp_path / "journal") as client:
        (request,) = service_of(client).requests
        await until(lambda: request.rested_at is not None)
        known = received(answer.text)
        assert not known.is_ended
        rest = received((await client.get(f"/v1/streams/one?from={known.last_id}")).text)
        assert known.tokens() + rest.tokens() == whole.tokens()


@in_loop
async def test_a_long_answer_is_repeated_with_breaks_for_others(
    directory: Path, tmp_path: Path
) -> None:
    """The event loop is never held for more than a bounded part of the answer."""
    gate = Gate(0)
    gate.open()
    engine = {"max_model_len": 4096, "num_blocks": 2048}
    body = {**STREAM, "max_tokens": 3000}
    async with durable(directory, tmp_path / "journal", gate.runner, engine) as client:
        await client.post("/v1/completions", json=body, headers={"x-request-id": "long"})
        sizes: list[int] = []
        deliver = client.server.llm._deliver

        def counted(events: Sequence[TokenEvent]) -> None:
            sizes.append(sum(len(event.tokens) for event in events))
            deliver(events)

        client.server.llm._deliver = counted  # type: ignore[method-assign]
        rest = received((await client.get("/v1/streams/long?from=100")).text)
        assert rest.is_ended
        assert len(rest.tokens()) == 2900
        assert sum(sizes) == 3000
        assert max(sizes) <= MOST_TOKENS


@in_loop
async def test_an_event_source_continues_by_its_header(directory: Path, tmp_path: Path) -> None:
    async with durable(directory, tmp_path / "journal") as client:
        first = await client.post("/v1/completions", json=STREAM, headers={"x-request-id": "one"})
        tokens = received(first.text).tokens()
        for method, path in (("GET", "/v1/streams/one?from=1"), ("POST", "/v1/completions")):
            body = STREAM if method == "POST" else None
            headers = {"last-event-id": "20", "x-request-id": "one"}
            response = await client.request(method, path, json=body, headers=headers)
            assert received(response.text).tokens() == tokens[20:]


@in_loop
async def test_the_end_alone_follows_the_last_token(directory: Path, tmp_path: Path) -> None:
    """A client that counts tokens itself may know all of them, but not why they end."""
    async with durable(directory, tmp_path / "journal") as client:
        await client.post("/v1/completions", json=STREAM, headers={"x-request-id": "one"})
        rest = received((await client.get("/v1/streams/one?from=24")).text)
        assert rest.tokens() == []
        assert [choice["finish_reason"] for (choice,) in rest.choices] == ["length"]
        assert received((await client.get("/v1/streams/one?from=25")).text).events == []


@in_loop
async def test_positions_that_do_not_exist_are_refused(directory: Path, tmp_path: Path) -> None:
    async with durable(directory, tmp_path / "journal") as client:
        for body, name in ((STREAM, "one"), ({**STREAM, "n": 2, "temperature": 1.0}, "two")):
            await client.post("/v1/completions", json=body, headers={"x-request-id": name})
        await client.post("/v1/completions", json=WHOLE, headers={"x-request-id": "whole"})
        for name, position in (
            ("one", "26"),
            ("one", "1,1"),
            ("one", "-1"),
            ("one", "1e3"),
            ("one", "٣"),
            ("one", "9" * 5000),
            ("one", ","),
            ("two", "3"),
            ("two", "1,2,3"),
            ("whole", "2"),
        ):
            response = await client.get(f"/v1/streams/{name}", params={"from": position})
            assert response.status_code == 400, (name, position)
            assert response.json()["error"]["param"] == "from"
        assert (await client.get("/v1/streams/one?from=25")).status_code == 200
        assert (await client.get("/v1/streams/two?from=0")).status_code == 200
        whole = (await client.get("/v1/streams/whole")).json()
        assert whole["id"] == "cmpl-whole"
        assert whole["usage"]["completion_tokens"] == 24


@in_loop
async def test_streams_without_a_journal_have_no_ids(directory: Path, tmp_path: Path) -> None:
    response = await undisturbed(directory, tmp_path / "journal")
    assert "id: 25\n" in response.text
    async with serving(directory) as client:
        text = (await client.post("/v1/completions", json=STREAM)).text
        assert not any(line.startswith("id:") for line in text.split("\n"))
        missing = await client.get("/v1/streams/one")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "journal_disabled"
