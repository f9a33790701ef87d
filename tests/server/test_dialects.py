"""A second dialect, with lines for frames and its own errors, is served beside the first."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from octavo.api.outputs import RequestOutput
from octavo.api.reading import Reading
from octavo.api.requests import TOO_LONG
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta
from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.operation import GenerationRequest, PreparedRequest, TokenCounts
from octavo.serving.server import Server
from octavo.serving.translation import TranslationContext
from octavo.transport.dialect import Dialect
from octavo.transport.errors import ApiError, invalid
from octavo.transport.exchange import encode
from octavo.transport.route import Route
from octavo.workers.jobs import PromptJob
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, Client, events, once_written, patient

PATH = "/lines/say"


class Say(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of the second dialect."""

    about: Annotated[str, msgspec.Meta(max_length=100)]
    length: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 8
    bit_by_bit: bool = False
    thinks: bool = False


class FirstWords:
    """A parser to which the text before the first space is reasoning."""

    def __init__(self) -> None:
        self.is_reasoning = True

    def feed(self, text: str, is_last: bool) -> Sequence[Delta]:
        deltas: list[Delta] = []
        if self.is_reasoning:
            before, space, text = text.partition(" ")
            self.is_reasoning = not space
            if before:
                deltas.append(ReasoningDelta(before))
        if text:
            deltas.append(TextDelta(text))
        return deltas


class LineWriter:
    """Answers as lines, one for each delta."""

    def __init__(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        self._name = exchange.request_id

    def opening(self, counts: TokenCounts) -> Iterable[bytes]:
        return (line({"begin": self._name, "read": counts.prompt}),)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        return [line(part(delta)) for one in output.outputs for delta in one.deltas]

    def closing(self, counts: TokenCounts, explanation: dict[str, Any] | None) -> Iterable[bytes]:
        return (line({"end": True, "wrote": counts.generated}),)

    def failure(self, error: ApiError) -> bytes:
        return line(failed(error))

    def whole(
        self,
        outputs: list[RequestOutput],
        counts: TokenCounts,
        explanation: dict[str, Any] | None,
    ) -> Iterable[bytes]:
        (output,) = outputs
        return (encode({"parts": [part(delta) for delta in output.outputs[0].deltas]}),)


def line(value: Any) -> bytes:
    """Return a frame of this dialect."""
    return encode(value) + b"\n"


def part(delta: Delta) -> dict[str, Any]:
    """Return the form of a delta in this dialect."""
    match delta:
        case TextDelta(text):
            return {"say": text}
        case ReasoningDelta(text):
            return {"think": text}
        case FinishDelta(reason):
            return {"because": reason}
    raise AssertionError(delta)


def failed(error: ApiError) -> dict[str, Any]:
    """Return the form of an error in this dialect."""
    return {"failed": error.status, "why": error.message, "where": error.param}


def translate(context: TranslationContext, request: Say) -> GenerationRequest:
    """Return the neutral form of a request."""
    names = {"max_tokens": "length", "prompt": "about"}

    def named(error: ApiError, index: int) -> ApiError:
        return invalid(error.message, names.get(error.param or ""), error.code)

    asked = GenerationRequest(
        prompts=[PromptJob(text=request.about)],
        sampling={"temperature": 0.0},
        writer=LineWriter,
        named=named,
        max_tokens=request.length,
        is_stream=request.bit_by_bit,
    )
    if request.thinks:
        asked.reading = lambda prompt_end: Reading(FirstWords)
    return asked


LINES = Dialect(
    error_body=lambda error: encode(failed(error)),
    error_name="Failed",
    error_schema={"type": "object", "required": ["failed", "why"]},
    stream_kind="application/x-ndjson",
    stream_schema=lambda payload: payload,
)
SAY = Route("POST", PATH, generating(Say, translate), "Say something.", Say, dialect=LINES)


def client_of(engine: FakeEngine, **options: Any) -> Client:
    """Return a client of a server with both dialects."""
    return Client(Server(engine, patient(**options)), [*ROUTES, SAY])


def run(directory: Path, test: Any, **options: Any) -> None:
    """Run a test with a client."""

    async def main() -> None:
        engine = FakeEngine(directory)
        async with client_of(engine, **options) as client:
            try:
                await test(client, engine)
            finally:
                await client.server.prompt_pool.close()
                engine.close()

    asyncio.run(main())


def lines_of(text: str) -> list[Any]:
    """Return the values of all lines."""
    assert text.endswith("\n")
    return [json.loads(each) for each in text.splitlines()]


def test_both_dialects_say_the_same(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        body = {"about": "The quick", "length": 9}
        whole = await client.post(PATH, json=body)
        assert (whole.status_code, whole.headers["content-type"]) == (200, "application/json")
        *said, end = whole.json()["parts"]
        assert end == {"because": "length"}
        stream = await client.post(PATH, json={**body, "bit_by_bit": True})
        assert stream.headers["content-type"] == "application/x-ndjson"
        begin, *parts, because, last = lines_of(stream.text)
        assert begin == {"begin": stream.headers["x-request-id"], "read": begin["read"]}
        assert (because, last) == ({"because": "length"}, {"end": True, "wrote": 9})
        text = "".join(each["say"] for each in parts)
        assert [{"say": text}] == said
        of_openai = {"prompt": "The quick", "max_tokens": 9, "temperature": 0}
        answer = await client.post("/v1/completions", json={**of_openai, "stream": True})
        chunks = events(answer.text)
        assert "".join(each["choices"][0]["text"] for each in chunks) == text
        assert (await client.complete(**of_openai))["choices"][0]["text"] == text

    run(directory, test)


def test_a_parser_stands_between_the_text_and_the_deltas(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        for about in ("The quick", "brown fox", "jumps", "a", "b", "c", "over the"):
            body = {"about": about, "length": 60}
            (plain, _) = (await client.post(PATH, json=body)).json()["parts"]
            thought, _, said = plain["say"].partition(" ")
            whole = (await client.post(PATH, json={**body, "thinks": True})).json()["parts"]
            kinds = [next(iter(each)) for each in whole]
            assert kinds == ["think"] * bool(thought) + ["say"] * bool(said) + ["because"]
            stream = await client.post(PATH, json={**body, "thinks": True, "bit_by_bit": True})
            parts = lines_of(stream.text)
            assert "".join(each.get("think", "") for each in parts) == thought
            assert "".join(each.get("say", "") for each in parts) == said
            assert len(parts) > 10

    run(directory, test)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"about": "x", "length": 0}, "length"),
        ({"about": "x" * 101}, "about"),
        ({}, "about"),
        ({"about": ""}, "about"),  # refused by the check of all bounds, as "prompt"
    ],
)
def test_an_error_of_the_request_has_the_form_of_its_dialect(
    directory: Path, body: Any, where: str
) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        answer = await client.post(PATH, json=body)
        assert answer.status_code == 400
        assert set(answer.json()) == {"failed", "why", "where"}
        assert answer.json()["where"] == where

    run(directory, test)


def test_a_refusal_of_the_engine_names_the_field_of_its_dialect(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, num_blocks=10)  # and facts that promise more
        async with client_of(engine) as client:
            try:
                refused = await client.post(PATH, json={"about": "x", "length": 200})
                assert (refused.status_code, refused.json()["where"]) == (400, "length")
                assert "KV blocks" in refused.json()["why"]
                body = {"prompt": [[5], [5] * 100], "max_tokens": 20}
                error = (await client.post("/v1/completions", json=body)).json()["error"]
                assert (error["param"], error["code"]) == ("max_tokens", TOO_LONG)
                assert error["message"].startswith("prompt[1]: 120 tokens")
            finally:
                await client.server.prompt_pool.close()
                engine.close()

    asyncio.run(main())


def test_errors_before_the_handler_have_the_form_of_the_route(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        for path, field in ((PATH, "failed"), ("/v1/completions", "error"), ("/nowhere", "error")):
            denied = await client.post(path, json={})
            assert denied.status_code == 401
            assert next(iter(denied.json())) == field

    run(directory, test, api_keys=("a-long-key",))


def test_an_error_in_a_stream_is_a_frame_of_its_dialect(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        headers = {"x-request-id": "bad-1"}

        is_written = once_written(client)

        def fail_later() -> None:
            if is_written():
                engine.runner.poisoned.add("bad-")

        engine.runner.before_step = fail_later
        body = {"about": "The quick", "length": 200, "bit_by_bit": True}
        answer = await client.post(PATH, json=body, headers=headers)
        assert answer.status_code == 200
        begin, *parts, last = lines_of(answer.text)
        assert begin["begin"] == "bad-1"
        assert all("say" in each for each in parts)
        assert last == {"failed": 500, "why": "the engine failed on this request", "where": None}

    run(directory, test)


def test_a_deadline_in_a_stream_is_a_frame_of_its_dialect(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        is_written = once_written(client)
        is_late = threading.Event()
        engine.runner.before_step = lambda: is_written() and is_late.wait(LIMIT)
        answer = asyncio.ensure_future(
            client.post(PATH, json={"about": "x", "length": 200, "bit_by_bit": True})
        )
        while not client.server.active:
            await asyncio.sleep(0.001)
        (active,) = client.server.active.values()
        while active.record.first_byte_at is None:
            await asyncio.sleep(0.001)
        active.stop(ApiError(504, "too late"))
        is_late.set()
        last = lines_of((await answer).text)[-1]
        assert last == {"failed": 504, "why": "too late", "where": None}

    run(directory, test)


def test_a_dialect_without_pings_is_silent(directory: Path) -> None:
    async def test(client: Client, engine: FakeEngine) -> None:
        answer = asyncio.ensure_future(
            client.post(PATH, json={"about": "x", "bit_by_bit": True, "length": 5})
        )
        await engine.pause()
        await asyncio.sleep(0.2)
        await engine.resume()
        assert all(lines_of((await answer).text))

    run(directory, test, ping_seconds=0.01, status_seconds=0.01)


def test_the_document_has_the_errors_of_both_dialects() -> None:
    whole = document([*ROUTES, SAY], DEFAULT_DIALECT)
    assert {"Error", "Failed"} <= whole["components"]["schemas"].keys()

    def error_of(path: str) -> str:
        response = whole["paths"][path]["post"]["responses"]["400"]
        name: str = response["content"]["application/json"]["schema"]["$ref"]
        return name.rpartition("/")[2]

    assert (error_of(PATH), error_of("/v1/completions")) == ("Failed", "Error")
