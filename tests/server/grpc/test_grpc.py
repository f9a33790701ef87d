"""The gRPC interface against a real port: the same answers, errors, keys and journal as HTTP."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.core.plan import NO_TOKEN, HiddenPayload
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from tests.server.engine import ChainRunner, FakeEngine, Slot, make_directory
from tests.server.make import LIMIT, listening

grpc = pytest.importorskip("grpc")
pytest.importorskip("octavo.dialects.grpc.octavo_pb2", reason="built by `make setup`")

KEY, OTHER = "the key of a test", "another key of it"
SERVICE = "/octavo.v1.Inference/"


class Stub:
    """A client of the interface, with one key."""

    def __init__(self, life: Any, key: str | None = KEY) -> None:
        from octavo.dialects.grpc import messages

        self.messages = messages.messages()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{life.grpc.port}")
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        self._kinds = self.messages.DESCRIPTOR.services_by_name["Inference"].methods_by_name

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.close()

    def call(self, name: str, metadata: tuple[tuple[str, str], ...] = (), **fields: Any) -> Any:
        """Call a method; return its response, or an iterator over its chunks."""
        kind = self._kinds[name]
        request = getattr(self.messages, kind.input_type.name)(**fields)
        reply = getattr(self.messages, kind.output_type.name).FromString
        make = self.channel.unary_stream if kind.server_streaming else self.channel.unary_unary
        method = make(SERVICE + name, type(request).SerializeToString, reply)
        return method(request, metadata=self._metadata + metadata, timeout=LIMIT)

    def ids(self, *ids: int) -> Any:
        return self.messages.TokenIds(ids=ids)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


@pytest.fixture
def life(directory: Path) -> Iterator[Any]:
    with listening(directory, grpc_port=0, api_keys=(KEY, OTHER)) as found:
        yield found


SAMPLING: dict[str, Any] = {"max_tokens": 7, "temperature": 0.8, "seed": 3, "logprobs": 2, "n": 2}


def test_answers_are_those_of_http(life: Any) -> None:
    body = {"prompt": "The quick", "return_token_ids": True, "logit_bias": {"9": 1.5}, **SAMPLING}
    url = f"http://127.0.0.1:{life.port}/v1/completions"
    headers = {"authorization": f"Bearer {KEY}"}
    there = httpx.post(url, json=body, headers=headers, timeout=LIMIT).json()
    with Stub(life) as stub:
        sampling = stub.messages.SamplingParams(
            **SAMPLING, logit_bias={9: 1.5}, typical_p=0.9, samplers=["temperature", "typ_p"]
        )
        whole = stub.call("Generate", prompt="The quick", sampling_params=sampling)
        chunks = list(stub.call("GenerateStream", prompt="The quick", sampling_params=sampling))
        prompt = there["choices"][0]["prompt_token_ids"]
        ids = stub.call("Generate", token_ids=stub.ids(*prompt), sampling_params=sampling)
        info = stub.call("GetModelInfo")
        assert (info.name, info.vocabulary, info.max_model_len) == ("tiny", 300, 256)
        state = stub.call("GetServerInfo")
        assert (state.is_ready, state.num_requests) == (True, 0)
    for choice, known in zip(whole.choices, there["choices"], strict=True):
        assert (choice.text, choice.finish_reason) == (known["text"], "length")
        assert list(choice.token_ids) == known["token_ids"]
        logprobs = [position.chosen.logprob for position in choice.logprobs]
        assert logprobs == pytest.approx(known["logprobs"]["token_logprobs"])
        assert all(len(position.likeliest) == 2 for position in choice.logprobs)
        parts = [p for chunk in chunks for p in chunk.choices if p.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [token for part in parts for token in part.token_ids] == known["token_ids"]
        assert parts[-1].finish_reason == "length"
    assert ids.choices == whole.choices
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 14


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, which no event announces here."""
    pause = threading.Event()
    for _ in range(int(LIMIT / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never held")


def failure(call: Callable[[], Any]) -> tuple[str, dict[str, str]]:
    """Return the code of the error that a call ends with, and its metadata."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call())
    return raised.value.code().name, dict(raised.value.trailing_metadata() or ())


def test_errors_have_a_code_and_name_their_field(life: Any) -> None:
    def asked(**fields: Any) -> Any:
        return lambda: [stub.call("Generate", **fields)]

    with Stub(life) as stub, Stub(life, None) as stranger:
        params = stub.messages.SamplingParams
        table = [
            ({}, "prompt"),
            ({"prompt": ""}, "prompt"),
            ({"token_ids": stub.ids()}, "token_ids"),
            ({"token_ids": stub.ids(4000)}, "token_ids"),
            ({"token_ids": stub.ids(2**32 - 1)}, "token_ids"),
            ({"token_ids": stub.ids(*[1] * 2000)}, "token_ids"),
            ({"prompt": "x", "sampling_params": params(temperature=9)}, "temperature"),
            ({"prompt": "x", "sampling_params": params(dry_base=0.5)}, "dry_base"),
            ({"prompt": "x", "sampling_params": params(samplers=["x"])}, "samplers"),
            ({"prompt": "x", "sampling_params": params(max_tokens=900)}, "max_tokens"),
            ({"prompt": "x", "sampling_params": params(logit_bias={4000: 1.0})}, "logit_bias"),
            ({"prompt": "x", "sampling_params": params(stop=["a"] * 99)}, "stop"),
        ]
        for fields, param in table:
            code, metadata = failure(asked(**fields))
            assert code == "INVALID_ARGUMENT", fields
            assert metadata["octavo-param"].removeprefix("sampling_params.") == param
        code, metadata = failure(asked(prompt="x", model="other"))
        assert (code, metadata["octavo-code"]) == ("NOT_FOUND", "model_not_found")
        assert failure(lambda: [stranger.call("GetModelInfo")])[0] == "UNAUTHENTICATED"
        assert failure(lambda: stranger.call("GenerateStream", prompt="x"))[0] == "UNAUTHENTICATED"
        garbage = stub.channel.unary_unary(SERVICE + "Generate")
        bearer = (("authorization", f"Bearer {KEY}"),)
        for data in (b"\xff" * 50, b"\x0a\x05ab", b"\x0a\x01\xff"):
            call = partial(garbage, data, metadata=bearer)
            assert failure(lambda call=call: [call()])[0] == (  # type: ignore[misc]
                "INVALID_ARGUMENT"
            )
        life.server.is_draining = True
        assert failure(asked(prompt="x"))[0] == "UNAVAILABLE"
        life.server.is_draining = False


def test_calls_end_when_their_client_leaves_or_asks_for_it(directory: Path) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))
    scheduler = engine.core.scheduler
    with (
        listening(directory, engine, grpc_port=0, api_keys=(KEY, OTHER)) as life,
        Stub(life) as stub,
        Stub(life, OTHER) as other,
    ):
        sampling = stub.messages.SamplingParams(max_tokens=200)
        named = (("x-request-id", "long"),)
        stream = stub.call("GenerateStream", named, prompt="x", sampling_params=sampling)
        left = stub.call("GenerateStream", prompt="y", sampling_params=sampling)
        active = life.server.active
        wait_until(lambda: sum(e.record.entered_at is not None for e in [*active.values()]) == 2)
        assert list(other.call("Abort", request_ids=["long"]).not_found) == ["long"]
        ended = stub.call("Abort", request_ids=["long", "none"])
        assert (ended.aborted, list(ended.not_found)) == (1, ["none"])
        left.cancel()
        gate.set()
        reasons = [part.finish_reason for chunk in stream for part in chunk.choices]
        assert reasons[-1] == "abort"
        wait_until(lambda: not (active or scheduler.sequences))
        wait_until(lambda: life.server.admission.num_open == 0)


def test_a_stream_continues_behind_its_position(directory: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "grpc_port": 0,
        "api_keys": (KEY, OTHER),
        "journal": tmp_path / "journal",
    }
    with listening(directory, **options) as life, Stub(life) as stub:
        fields = {"prompt": "x", "sampling_params": stub.messages.SamplingParams(max_tokens=30)}
        named = (("x-request-id", "mine"),)
        chunks = list(stub.call("GenerateStream", named, **fields))
        assert all(chunk.position for chunk in chunks[:-1])
        again = list(stub.call("GenerateStream", named, **fields))
        middle = next(chunk.position for chunk in chunks if int(chunk.position or 0) >= 1)
        rest = list(stub.call("GenerateStream", (*named, ("last-event-id", middle)), **fields))

        def tokens(found: list[Any]) -> list[int]:
            return [token for chunk in found for c in chunk.choices for token in c.token_ids]

        assert tokens(again) == tokens(chunks)
        assert tokens(rest) == tokens(chunks)[int(middle) :]
        with httpx.Client(base_url=f"http://127.0.0.1:{life.port}", timeout=LIMIT) as http:
            http.headers["authorization"] = f"Bearer {KEY}"
            assert http.get("/v1/streams/mine").status_code == 400


class VectorRunner(ChainRunner):
    """A runner whose vector of a prompt is its token ids."""

    def _next(self, slot: Slot) -> int:
        return NO_TOKEN

    def _payload(self, slot: Slot, start: int, count: int, token: int) -> Any:
        return HiddenPayload(array("f", slot.new.tokens))


def test_a_prompt_is_returned_as_a_vector(directory: Path) -> None:
    engine = FakeEngine(directory, runner=VectorRunner())
    with listening(directory, engine, grpc_port=0) as life, Stub(life, None) as stub:
        plain = stub.call("Embed", token_ids=stub.ids(3, 4), normalize=False)
        assert (list(plain.embedding), plain.prompt_tokens) == ([3.0, 4.0], 2)
        vector = stub.call("Embed", token_ids=stub.ids(3, 4), pooling="mean")
        assert list(vector.embedding) == pytest.approx([0.6, 0.8])
        assert len(stub.call("Embed", prompt="The quick").embedding) > 2
        code, metadata = failure(lambda: [stub.call("Embed", prompt="x", pooling="most")])
        assert (code, metadata["octavo-param"]) == ("INVALID_ARGUMENT", "pooling")


def test_health_and_reflection_follow_the_standard_protocols(life: Any) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with Stub(life, None) as stub:
        health = health_pb2_grpc.HealthStub(stub.channel)
        for service in ("", "octavo.v1.Inference"):
            request = health_pb2.HealthCheckRequest(service=service)
            states = health.Watch(request, timeout=LIMIT)  # waits until it is known
            assert any(state.status == 1 for state in states), service
            states.cancel()
        reflection = reflection_pb2_grpc.ServerReflectionStub(stub.channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        bearer = (("authorization", f"Bearer {KEY}"),)
        listed = next(reflection.ServerReflectionInfo(iter([asked]), metadata=bearer))
        names = [each.name for each in listed.list_services_response.service]
        assert "octavo.v1.Inference" in names
        code, _ = failure(lambda: reflection.ServerReflectionInfo(iter([asked])))
        assert code == "UNAUTHENTICATED"


def test_a_port_that_others_reach_needs_a_key_beside_a_unix_socket_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"host": "0.0.0.0", "uds": tmp_path / "socket"}
    assert ServerSettings(**options).is_local
    with pytest.raises(ServerSettingsError):
        ServerSettings(grpc_port=0, **options)


def test_an_error_of_http_is_json_still(life: Any) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{life.port}", timeout=LIMIT) as http:
        answer = http.post("/octavo.v1.Inference/Generate", content=json.dumps({}))
        assert answer.status_code == 401
