"""Hostile bodies: each gets a 4xx with our own message, and does not affect other requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.server.openapi import document
from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.transport.dialect import Dialect
from octavo.transport.route import Route
from octavo.workers.pool import PromptPool
from tests.server.anthropic.test_messages import events_of
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, Client, events, serving

JSON = {"content-type": "application/json"}
OPENAI_FIELDS = {"message", "type", "param", "code"}
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


INTERNALS = ("Traceback", "octavo/", ".py", "msgspec", "Error:", "0x", "object at")


def check_own_error(dialect: Dialect, status: int, text: str) -> None:
    """Check an error on a route whose dialect may have a form of its own."""
    required = set(dialect.error_schema["required"])
    if required & {"error", "message"}:
        check_error(status, text)
        return
    assert required <= json.loads(text).keys()
    assert 400 <= status < 500, text
    assert not any(word in text for word in INTERNALS), text


def check_error(status: int, text: str) -> None:
    """Check that a response is an error in the documented form, without internals."""
    body = json.loads(text)
    if body.keys() == {"message"}:  # Cohere's
        body = {"error": body["message"]}
    error = body["error"]
    if isinstance(error, str):  # Ollama's, and TGI's with its fields beside it
        assert set(body) in ({"error"}, {"error", "error_type", "param", "code"})
        error = {"message": error, "type": "", "param": None, "code": None}
    fields = {"message", "type"} if body.get("type") == "error" else OPENAI_FIELDS  # Anthropic's
    assert set(error) == fields
    assert 400 <= status < 500, text
    for word in INTERNALS:
        assert word not in error["message"], error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"prompt": "x"} trailing',
        b"\xff\xfe{\x00}\x00",
        b'\xef\xbb\xbf{"prompt": "x"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\x00"}',
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "seed": 99999999999999999999999, "messages": 5, "tokens": ""}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
        b'{"messages": ' + b"[" * 99 + b"]" * 99 + b"}",
        b'{"prompt": {"$ref": "#"}}',
        b'{"prompt": ' + b"[[1]," * 500_000 + b"[1]]}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_bodies(directory: Path, path: str, body: bytes) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post(path, content=body, headers=JSON)
            check_error(response.status_code, response.text)
            assert client.server.admission.num_open == 0

    asyncio.run(main())


def test_the_error_of_broken_json_has_its_position(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post("/v1/completions", content=b"{bad", headers=JSON)
            message = "the body is not valid JSON: object keys must be strings (byte 1)"
            assert response.json()["error"]["message"] == message

    asyncio.run(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1e999"),
        ("max_tokens", "9" * 5000),
        ("max_tokens", "[" * 500),
        ("seed", "1e300"),
        ("n", "1.5"),
        ("n", '"1"'),
        ("logit_bias", '{"1": 1e999}'),
        ("chat_template_kwargs", '{"x": ' + "[" * 200 + "]" * 200 + "}"),
        ("documents", '[{"x": ' + "[" * 5000 + "]" * 5000 + "}]"),
        ("tools", "[" * 900 + "]" * 900),
        ("response_format", '{"type": "' + "x" * 100_000 + '"}'),
        ("user", '"\\ud800"'),
        ("never_heard_of", "1e"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_fields(directory: Path, field: str, value: str) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            messages = '"messages": [{"role": "user", "content": "x"}]'
            body = f'{{{messages}, "{field}": {value}}}'
            response = await client.post("/v1/chat/completions", content=body, headers=JSON)
            check_error(response.status_code, response.text)
            assert client.server.admission.num_open == 0

    asyncio.run(main())


def test_unknown_fields_are_skipped(directory: Path) -> None:
    """The size and depth of unknown fields have no limit of their own."""

    async def main() -> None:
        async with serving(directory) as client:
            for value in ("[" * 300 + "]" * 300, "[" + "[]," * 100_000 + "1]", "1e999"):
                body = f'{{"prompt": "x", "mystery": {value}, "max_tokens": 1.0}}'
                response = await client.post("/v1/completions", content=body, headers=JSON)
                assert response.status_code == 200, response.text
                assert response.headers["x-octavo-unknown-fields"] == "mystery"

    asyncio.run(main())


def test_a_body_that_is_not_json_gets_a_415(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for headers in (
                {"content-type": "text/plain"},
                {"content-type": "application/x-www-form-urlencoded"},
                {**JSON, "content-encoding": "gzip"},
            ):
                response = await client.post("/tokenize", content=b"{}", headers=headers)
                assert response.status_code == 415
                check_error(415, response.text)

    asyncio.run(main())


def test_control_characters_are_valid_text(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for text in ("\x00", "a\x00b", "\u202e", "😀" * 5, "\r\n\r\n", "data: [DONE]"):
                assert "choices" in await client.complete(prompt=text, max_tokens=2), repr(text)
                answer = await client.chat(text, max_tokens=2, stop=[text])
                assert "choices" in answer, repr(text)

    asyncio.run(main())


@pytest.mark.slow
def test_ten_megabytes_of_text(directory: Path) -> None:
    """A body over the limit is rejected; one within it is tokenised as the tokenizer would."""

    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine, tokenize_seconds=LIMIT) as client:
            response = await client.post("/tokenize", json={"prompt": "x" * 10_000_000})
            assert response.status_code == 413
            response = await client.post("/v1/completions", json={"prompt": "x " * 1_500_000})
            assert response.status_code == 400
            text = "The quick brown fox " * 2000
            said = (await client.post("/tokenize", json={"prompt": text})).json()
            ids = engine.splitter.encode(text)
            assert said["tokens"] == ids

    asyncio.run(main())


BOMBS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x*2 %}{% endfor %}",
    "{{ 'x' * 999999999999 }}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{% set l = [1] %}{% for i in range(999999) %}{{ l | sort | join | length }}{% endfor %}",
    "{{ (range(900000) | list | tojson) | length }}" * 400,
)


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_template_bombs_end_and_delay_no_other_request(
    directory: Path, bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests are served while a hostile template is rendered."""
    options: Any = {"trust_request_chat_template": True, "prompt_workers": 2}
    answer = PromptPool._answer

    def soon(pool: Any, job: Any, owner: str, seconds: float, lane: Any, *more: Any) -> Any:
        limit = 0.3 if lane is pool._heavy else seconds  # a bomb's alone: others may take longer
        return answer(pool, job, owner, limit, lane, *more)

    monkeypatch.setattr(PromptPool, "_answer", soon)

    async def main() -> None:
        async with serving(directory, **options) as client:
            messages = [{"role": "user", "content": "x"}]
            body = {"messages": messages, "chat_template": bomb, "max_tokens": 1}
            exploding = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
            num_served = 0
            while not exploding.done():
                assert "choices" in await client.chat(max_tokens=1)
                num_served += 1
            response = await exploding
            assert num_served > 0
            check_error(response.status_code, response.text)
            assert "choices" in await client.chat(max_tokens=1)
            assert client.server.admission.num_open == 0

    asyncio.run(main())


def test_a_number_that_no_worker_can_be_sent_is_rejected(directory: Path) -> None:
    """JSON has integers of any size; msgpack has 64 bits."""

    async def main() -> None:
        async with serving(directory) as client:
            answer = await client.chat(chat_template_kwargs={"x": 2**70}, max_tokens=1)
            assert answer["error"]["code"] is None
            assert "64 bits" in answer["error"]["message"]

    asyncio.run(main())


# Generators of bodies from the schemas: valid in some fields, invalid in others.

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.integers(-1, 400), max_size=4),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(-1, 5), max_size=3),
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", ""]) | ODD},
    optional={"content": st.text(max_size=20) | ODD, "name": ODD, "tool_calls": ODD},
)
GOOD = {
    "prompt": st.text(max_size=20) | st.lists(st.integers(0, 299), max_size=8),
    "messages": st.lists(MESSAGE, max_size=3),
    "tokens": st.lists(st.integers(0, 299), max_size=8),
    "max_tokens": st.integers(0, 4),
    "model": st.just("tiny"),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
}


def bodies(schema: str) -> st.SearchStrategy[dict[str, Any]]:
    """Generate bodies with some fields of a schema, each with a valid or an odd value."""
    fields = document(ROUTES, DEFAULT_DIALECT)["components"]["schemas"][schema]["properties"]
    few = {"max_tokens": GOOD["max_tokens"]} if "max_tokens" in fields else {}
    drawn = {name: GOOD.get(name, ODD) | ODD for name in fields if name != "max_tokens"}
    if "deadline_ms" in drawn:  # a short deadline is valid, and exceeded on a busy machine
        drawn["deadline_ms"] = ODD.filter(lambda value: not is_short(value))
    subject = [name for name in ("prompt", "messages", "tokens") if name in fields][:1]
    required = {name: GOOD[name] for name in subject}
    optional = {name: drawn[name] for name in drawn if name not in required}
    chosen = st.lists(st.sampled_from(sorted(optional)), max_size=5, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries(
            {**required, **few, **{name: optional[name] for name in names}}
        )
    )


def is_short(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < 600_000


# Paths whose streams have no mark at their end: llama.cpp's and TGI's.
UNMARKED = ("/completion", "/completions", "/infill", "/", "/generate", "/generate_stream")
REQUESTS = [(route, route.request.__name__) for route in ROUTES if route.request is not None]


@pytest.mark.slow
@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("route", "schema"), REQUESTS, ids=lambda each: getattr(each, "path", each)
)
def test_no_body_makes_the_server_fail(directory: Path, route: Route, schema: str) -> None:
    """Every response is a 200 or a 4xx, and no request stays registered."""
    path, dialect = route.path, route.dialect or DEFAULT_DIALECT

    async def send(client: Client, body: dict[str, Any]) -> None:
        response = await client.post(path, json=body)
        if response.status_code != 200:
            check_own_error(dialect, response.status_code, response.text)
        elif path == "/v2/chat":
            assert '"ERROR"' not in response.text
        elif path in UNMARKED:
            assert '"error"' not in response.text
        elif response.headers["content-type"].startswith("text/event-stream"):
            read = events_of if path.startswith("/v1/messages") else events
            assert not any("error" in chunk for chunk in read(response.text))
        assert client.server.admission.num_open == 0
        assert not client.server.active

    loop = asyncio.new_event_loop()
    context = serving(directory)
    client = loop.run_until_complete(context.__aenter__())
    try:

        @settings(max_examples=150, suppress_health_check=list(HealthCheck))
        @given(bodies(schema))
        def attempt(body: dict[str, Any]) -> None:
            loop.run_until_complete(asyncio.wait_for(send(client, body), LIMIT))

        attempt()
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()
