"""What of the application of Ray Serve needs no Ray: options, the rule, an answer on its way."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo import serve_ray
from octavo.cli.parsing import UsageError
from octavo.core.config import ConfigError
from octavo.options.transport import ServerSettingsError
from octavo.route.asked import Asked
from octavo.serve_ray.ledger import Ledger
from octavo.serve_ray.passed import Head, Passed
from octavo.serve_ray.replica import HIGH_BYTES, AnswerBrokenError, answered
from octavo.serve_ray.scaling import wanted
from octavo.serve_ray.settings import read

MODEL = {"model": "a-model"}
LIMIT_SECONDS = 300.0


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'octavo\[ray\]'"):
        serve_ray.app(MODEL)


def test_options_are_those_of_serve_as_texts_or_as_values() -> None:
    given = {**MODEL, "max_num_seqs": "4", "max-model-len": 64, "enable_prefix_caching": "false"}
    found = read({**given, "min_replicas": "2", "max_replicas": 5, "drain_seconds": 7})
    engine = found.serve.engine
    assert (engine.model, engine.max_num_seqs, engine.max_model_len) == ("a-model", 4, 64)
    assert not engine.enable_prefix_caching
    assert found.serve.server.drain_seconds == 7
    assert (found.ray.min_replicas, found.ray.most_replicas) == (2, 5)
    assert read({**MODEL, "min_replicas": "3"}).ray.most_replicas == 3


def test_replicas_of_one_machine_have_a_share_each() -> None:
    several = {**MODEL, "replicas_per_node": "2", "replica_cpus": "3"}
    with pytest.raises(UsageError, match="kv_cache_memory_bytes"):
        read(several)
    found = read({**several, "kv_cache_memory_bytes": "64MiB"}).serve.options
    assert found["num_threads"] == 3
    found = read({**several, "num_gpu_blocks_override": 64, "num_threads": 1}).serve.options
    assert found["num_threads"] == 1


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"max_num_seq": "4"}, UsageError, "--max-num-seqs"),
        ({"max_num_seqs": "x"}, UsageError, "--max-num-seqs"),
        ({"port": "80"}, UsageError, "port"),
        ({"uds": "/a"}, UsageError, "uds"),
        ({"journal": "/a"}, UsageError, "journal"),
        ({"batch_dir": "/a"}, UsageError, "batch_dir"),
        ({"engine": "inline"}, UsageError, "engine"),
        ({"models_dir": "/a"}, UsageError, "one model"),
        ({"pipeline_parallel_size": "2", "nnodes": "2"}, UsageError, "one machine"),
        (
            {"pipeline_parallel_size": "2", "distributed_executor_backend": "ray"},
            UsageError,
            "one machine",
        ),
        ({"enable_prefix_caching": "perhaps"}, UsageError, "enable_prefix_caching"),
        ({"min_replicas": "0"}, ServerSettingsError, "min_replicas"),
        ({"min_replicas": "3", "max_replicas": "2"}, ServerSettingsError, "max_replicas"),
        ({"target_kv_use": "1.5"}, ServerSettingsError, "target_kv_use"),
        ({"data_parallel_size": "0"}, ConfigError, "data_parallel_size"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    given: dict[str, str], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        read({**MODEL, **given})


def test_clients_that_cannot_be_seen_need_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """HAProxy connects from the machine of the front, wherever its client is."""
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(UsageError, match="api_key_file"):
        read(MODEL)
    assert read({**MODEL, "api_key": "a-key-of-the-tests"}).serve.server.api_keys
    assert read({**MODEL, "insecure_no_auth": True}).serve.server.insecure_no_auth


def asked(*keys: int, session: bytes = b"") -> Asked:
    return Asked("", session, array("q", keys), 32 * len(keys))


def ledger() -> Ledger:
    made = Ledger()
    made.configure(known_tokens=32 * 100, most_running=64)
    return made


NONE_OPEN = {"a": 0, "b": 0}


def test_a_prefix_returns_to_its_replica_and_another_goes_elsewhere() -> None:
    found = ledger()
    first = found.begin(asked(1, 2, 3))
    place = found.choose(first, NONE_OPEN)
    found.note_routed(first, place)
    other = found.begin(asked(7, 8, 9))
    assert found.choose(other, NONE_OPEN) != place  # where nothing waits
    found.note_answer(first)
    found.end(first)
    found.end(other)
    again = found.begin(asked(1, 2, 3, 4))
    assert found.choose(again, NONE_OPEN) == place
    found.end(again)
    assert found.num_open == 0


def test_a_replica_that_others_fill_is_left_out() -> None:
    found = ledger()
    number = found.begin(asked(1, 2, 3))
    found.note_routed(number, "a")
    found.end(number)
    number = found.begin(asked(1, 2, 3))
    assert found.choose(number, NONE_OPEN) == "a"
    assert found.choose(number, {"a": 20, "b": 0}) == "b"


def test_a_replica_that_has_gone_is_forgotten() -> None:
    found = ledger()
    numbers = [found.begin(asked(1, 2, 3)) for _ in range(3)]
    for number in numbers:
        found.note_routed(number, "a")
    found.keep({"b"})
    assert found.choose(numbers[0], {"a": 0, "b": 0}) in ("a", "b")
    found.note_routed(numbers[0], "b")  # it was tried again there
    for number in numbers:
        found.note_answer(number)
        found.end(number)
    number = found.begin(asked(1, 2, 3))
    assert found.choose(number, NONE_OPEN) == "b"


def test_a_session_stays_where_it_is_whatever_is_cached() -> None:
    found = ledger()
    places = set()
    for key in range(20):
        number = found.begin(asked(key, session=b"one"))
        places.add(found.choose(number, NONE_OPEN))
        found.end(number)
    assert len(places) == 1


def test_questions_without_a_body_and_requests_that_left_are_no_trouble() -> None:
    found = ledger()
    assert found.choose(0, NONE_OPEN) in NONE_OPEN
    found.note_routed(5, "a")
    found.end(5)
    number = found.begin(asked(1))
    found.note_routed(number, "a")
    found.end(number)
    assert found.choose(found.begin(asked(9)), NONE_OPEN) == "b"  # "a" was given a prefix more


@pytest.mark.parametrize(
    ("replicas", "requests", "use", "expected"),
    [
        *((1, 0, 0.0, 1), (1, 64, 0.1, 1), (1, 65, 0.1, 2), (2, 300, 0.1, 5), (4, 10, 0.1, 1)),
        *((2, 10, 0.8, 2), (2, 10, 0.9, 3), (4, 10, 1.0, 5)),
    ],
)
def test_replicas_that_are_wanted(
    replicas: int, requests: float, use: float, expected: int
) -> None:
    """Open requests ask for replicas, and so does a KV cache that is nearly full."""
    assert wanted(replicas, requests, 64, use, 0.8) == expected


PASSED = Passed(1, "POST", "/v1/completions", "a=1", [(b"host", b"localhost")], b"{}")


async def taken(answer: AsyncIterator[Head | bytes]) -> list[Head | bytes]:
    return [each async for each in answer]


def test_an_answer_has_its_head_and_then_its_parts() -> None:
    seen: list[Any] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["method"], scope["path"], scope["query_string"], await receive()))
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    found = asyncio.run(taken(answered(serve, PASSED)))
    assert found[0] == Head(201, [(b"a", b"b")])
    assert b"".join(each for each in found[1:] if isinstance(each, bytes)) == b"onetwo"
    body = {"type": "http.request", "body": b"{}", "more_body": False}
    assert seen == [("POST", "/v1/completions", b"a=1", body)]


def test_an_answer_that_is_cut_is_an_error() -> None:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async def run() -> list[Head | bytes]:
        answer = answered(serve, PASSED)
        found = [await anext(answer), await anext(answer)]
        with pytest.raises(AnswerBrokenError):
            await anext(answer)
        return found

    assert asyncio.run(run()) == [Head(200, []), b"half"]


def test_a_front_that_leaves_ends_the_request() -> None:
    ended: list[str] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        ended.append((await receive())["type"])

    async def run() -> None:
        answer = answered(serve, PASSED)
        assert await anext(answer) == Head(200, [])
        await answer.aclose()

    asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS))
    assert ended == ["http.disconnect"]


def test_a_server_waits_while_nothing_is_taken() -> None:
    sent: list[int] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(8):
            await send(
                {"type": "http.response.body", "body": bytes(HIGH_BYTES), "more_body": number < 7}
            )
            sent.append(number)

    async def run() -> int:
        answer = answered(serve, PASSED)
        await anext(answer)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(sent) <= 1
        return sum([len(each) async for each in answer])

    assert asyncio.run(asyncio.wait_for(run(), LIMIT_SECONDS)) == 8 * HIGH_BYTES
