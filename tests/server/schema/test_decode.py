"""The two decoders of request bodies: the fast one for valid requests, the slow one for others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialects.common.dialect import error_body
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.responses.schema import ResponsesRequest
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.server.routes import ROUTES
from octavo.serving.schema import decode as module
from octavo.serving.schema.decode import (
    MAX_FAST_BYTES,
    MAX_FIELDS,
    MAX_LISTS,
    MAX_NESTING,
    decode,
    decode_by_field,
)
from octavo.serving.schema.reader import Reader
from octavo.transport.errors import ApiError

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0.5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"7": 1.5},
}


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_called_empty(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is empty"):
        decode(body, CompletionRequest)


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        (CompletionRequest, "messages", "/v1/chat/completions"),
        (ChatRequest, "prompt", "/v1/completions"),
    ],
)
def test_a_field_of_another_route_is_named_with_it(kind: type[Any], name: str, path: str) -> None:
    with pytest.raises(ApiError, match=f"is missing; {name} belongs to {path}"):
        decode(json.dumps({name: []}).encode(), kind)
    with pytest.raises(ApiError, match=r"is missing$"):
        decode(b'{"seed": 1}', kind)


def test_a_wrong_name_in_an_object_is_called_a_key() -> None:
    body = {"input": "a", "metadata": {"k" * 65: "v"}}
    expected = r"^metadata: expected string of length <= 64, got 65, as a key$"
    with pytest.raises(ApiError, match=expected):
        decode(json.dumps(body).encode(), ResponsesRequest)


def test_a_valid_request_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(body: bytes, kind: type[Any]) -> Any:
        raise AssertionError("the slow decoder is for requests that the fast one refuses")

    monkeypatch.setattr(module, "decode_by_field", refuse)
    request, unknown = decode(json.dumps(CHAT).encode(), ChatRequest)
    assert request.messages[0].content == "Hello"
    assert unknown == ()
    brackets = [{"role": "user", "content": "a[[i]][j] " * 999}]
    decode(json.dumps({"messages": brackets}).encode(), ChatRequest)


def test_every_request_forbids_unknown_fields() -> None:
    for route in (*ROUTES, *ADMIN_ROUTES):
        if route.request is not None:
            assert route.request.__struct_config__.forbid_unknown_fields, route.path


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 1, 2.5, "hot", None]),
        "max_tokens": st.sampled_from([5, 5.0, 5.5, -1, 2**40, None]),
        "stop": st.sampled_from(["x", ["x", "y"], [], [""], 3]),
        "n": st.sampled_from([1, 0, 1e400]),
        "truncation_side": st.sampled_from(["left", "up"]),
        "stream_options": st.sampled_from([{}, {"include_usage": None}, {"other": 1}, []]),
        "messages": st.sampled_from(
            [
                [],
                [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
                [{"role": "user", "contnet": "x"}],
                [{"content": "x"}],
            ]
        ),
        "documents": st.sampled_from([[{}], [{"a": [1]}], [1]]),
        "tools": st.sampled_from([[], [{}], None]),
        "user": st.just("u"),
        "unknown": st.just([1]),
    },
)


@given(CHANGES)
def test_both_decoders_agree(changes: dict[str, Any]) -> None:
    body = json.dumps({**CHAT, **changes}).replace("Infinity", "1e400").encode()
    assert outcome(decode, body) == outcome(decode_by_field, body)


def outcome(read: Any, body: bytes) -> Any:
    try:
        return read(body, ChatRequest)
    except ApiError as error:
        return error.status, error_body(error)


def test_a_large_body_is_decoded_field_by_field_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: type[Any]) -> Any:
        raise AssertionError("a hostile body would be built before it is refused")

    monkeypatch.setattr(module, "_decoder", refuse)
    body = json.dumps({**CHAT, "user": "u" * MAX_FAST_BYTES}).encode()
    request, unknown = decode(body, ChatRequest)
    assert request.messages[0].content == "Hello"
    assert unknown == ()


@pytest.mark.parametrize("read", [decode, decode_by_field])
def test_brackets_in_strings_are_not_lists(read: Any) -> None:
    texts = ["[[", '"[', '\\"[', "\\", "[\\", ""] * 1000
    request, _ = read(json.dumps({"prompt": texts}).encode(), CompletionRequest)
    assert request.prompt == texts
    for num_lists in (MAX_LISTS, MAX_LISTS + 1):
        body = json.dumps({"prompt": [*texts, *[[1]] * num_lists]}).encode()
        if num_lists == MAX_LISTS:
            read(body, CompletionRequest)
        else:
            with pytest.raises(ApiError) as raised:
                read(body, CompletionRequest)
            assert f"more than {MAX_LISTS} lists" in str(error_body(raised.value))


def test_millions_of_fields_are_refused_before_they_are_built() -> None:
    names = b",".join(b'"%d":0' % index for index in range(MAX_FIELDS + 1))
    body = b'{"prompt": "a", ' + names + b',"z":0' * (1 << 18)
    with pytest.raises(ApiError) as raised:
        decode(body, CompletionRequest)
    assert str(MAX_FIELDS) in raised.value.message, "the end of the body was not read"
    repeated = b'{"prompt": "a", "z":0' + b',"z":0' * (1 << 18) + b"}"
    assert [each.path for each in decode(repeated, CompletionRequest)[1]] == ["z"]


def test_lists_after_a_string_are_refused_before_they_are_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("the lists were built")

    monkeypatch.setattr(Reader, "read", refuse)
    body = b'{"prompt": ["a"' + b",[1]" * MAX_FAST_BYTES + b"]}"
    with pytest.raises(ApiError) as raised:
        decode(body, CompletionRequest)
    assert raised.value.param == "prompt"


@pytest.mark.parametrize("space", ["", " ", "\n", '"a",', "1,"])
def test_the_number_of_lists_is_limited_in_valid_requests_too(space: str) -> None:
    most = ",".join(["[1]"] * MAX_LISTS)
    request, _ = decode(b'{"prompt": [%b%b]}' % (space.encode(), most.encode()), CompletionRequest)
    assert sum(isinstance(each, list) for each in request.prompt) == MAX_LISTS
    more = b'{"prompt": [%b%b,[1]]}' % (space.encode(), most.encode())
    with pytest.raises(ApiError) as raised:
        decode(more, CompletionRequest)
    assert raised.value.param == "prompt"


@pytest.mark.parametrize("field", ["documents", "chat_template_kwargs"])
def test_the_depth_of_open_fields_is_limited_in_valid_requests_too(field: str) -> None:
    value: Any = {}
    for _ in range(MAX_NESTING):
        value = {"x": value}
    given = {**CHAT, field: [value] if field == "documents" else value}
    with pytest.raises(ApiError) as raised:
        decode(json.dumps(given).encode(), ChatRequest)
    assert raised.value.param == field
