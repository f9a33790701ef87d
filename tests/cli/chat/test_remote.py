"""A server that is asked over HTTP: its answers, its errors, and what is no server."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.chat.endpoint import MAX_EVENT_BYTES, EndpointError, Events
from octavo.cli.chat.remote import RemoteServer
from octavo.cli.commands import FAILED, OK, USAGE
from octavo.core.sampling_params import RequestError
from tests.cli.chat.fake_server import BREAK, FakeServer, delta, serving, texts

# Sets a terminal's title, and what it is sent on a key.
HOSTILE, HARMLESS = "tiny \x1b]0;title\x07 a\r\nb\x9b5n", "tiny ?]0;title? a b?5n"


def run(server: FakeServer, *words: str) -> int:
    return main(["run", "tiny", *words, "--url", server.url])


@pytest.mark.usefixtures("pipe")
def test_a_prompt_is_answered_by_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "first-key,second-key")
    with serving([delta(reasoning="hm"), *texts("Hel", "lo **x**")]) as server:
        assert run(server, "hi", "you", "--top-k", "4", "--system", "Be", "--stats") == OK
    told = capsys.readouterr()
    assert told.out == "Hello **x**\n"
    assert told.err.startswith("27 prompt tokens (16 cached), ")
    (body,), (key,) = server.bodies, server.keys
    assert key == "Bearer first-key"
    assert (body["model"], body["top_k"], body["stream"]) == ("tiny", 4, True)
    assert body["messages"][0] == {"role": "system", "content": "Be"}
    assert body["messages"][1] == {"role": "user", "content": "hi you"}


def test_what_is_piped_in_follows_the_prompt(pipe: Any) -> None:
    with serving(texts("a")) as server:
        pipe(b"some text\n")
        assert run(server, "summarise") == OK
    assert server.bodies[0]["messages"][0]["content"] == "summarise\n\nsome text"
    assert server.keys == [None]


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize(
    ("script", "options", "code", "message"),
    [
        ({"error": {"message": "too long"}}, {"status": 400}, USAGE, "too long"),
        ({"detail": "nothing"}, {"status": 404}, USAGE, "nothing"),
        ({"error": {"message": "no key"}}, {"status": 401}, FAILED, "status 401: no key"),
        ({}, {"status": 500}, FAILED, "status 500, and no message"),
        ([{"error": {"message": "died"}}], {}, USAGE, "died"),
        ([delta(content="so"), BREAK], {}, FAILED, "broken off before its end"),
        ({"error": {"message": HOSTILE}}, {"status": 400}, USAGE, HARMLESS),
        ({"error": {"message": HOSTILE}}, {"status": 500}, FAILED, HARMLESS),
        ([{"error": {"message": HOSTILE}}], {}, USAGE, HARMLESS),
        (texts(), {"models": [HOSTILE]}, USAGE, HARMLESS),
        (texts(), {"models": ["tiny2", "other"]}, USAGE, "no model 'tiny'; did you mean tiny2?"),
    ],
)
def test_a_failure_is_one_line(
    script: Any,
    options: dict[str, Any],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(script, **options) as server:
        assert run(server, "x") == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert line.isprintable()


@pytest.mark.usefixtures("pipe")
def test_a_server_without_a_list_of_models_is_asked() -> None:
    with serving(texts("a"), models=()) as server:
        assert run(server, "x") == OK


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--url", "localhost:8000"], USAGE, "write it as http://HOST:PORT"),
        (["--url", "http://[::1"], USAGE, "the address of no server"),
        (["--url", "http://me:secret@host"], USAGE, "put the key into OCTAVO_API_KEY"),
        (["--url", "http://host/v1?x=1"], USAGE, "has a part behind the path"),
        (["--url", "http://host", "--num-threads", "1"], USAGE, "--num-threads is for an engine"),
        (["--url", "http://host", "--raw"], USAGE, "--raw is for an engine"),
        (["--url", "http://a..b"], FAILED, "cannot be asked: "),
        (["--url", "http://127.0.0.1:{free}"], FAILED, "cannot be asked: connection refused"),
    ],
)
def test_what_is_no_server(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        assert main(["run", "tiny", "x", *(word.format(free=port) for word in words)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "secret" not in line


def test_events_however_they_are_split() -> None:
    data = b': ping\n\ndata: {"choices": []}\r\n\r\nevent: x\ndata: {"a": "\xc3\xa4"}\n\n'
    data += b"data: [DONE]\n\n"
    for size in range(1, 9):
        found: list[Any] = []
        events = Events(found.append)
        for start in range(0, len(data), size):
            events.feed(data[start : start + size])
        events.finish()
        assert found == [{"choices": []}, {"a": "ä"}]


def test_streams_are_bounded_and_checked() -> None:
    def never(chunk: Any) -> None:
        raise AssertionError(chunk)

    for data in (b"data: 3\n", b"data: {\n", b"data: " + b"[" * 100_000 + b"\n"):
        with pytest.raises(EndpointError, match="no JSON object"):
            Events(never).feed(data)
    with pytest.raises(EndpointError, match="a line of the answer"):
        Events(never).feed(b"x" * (MAX_EVENT_BYTES + 1))
    with pytest.raises(RequestError, match="too much"):
        Events(never).feed(b'data: {"error": "too much"}\n')


def test_an_error_that_is_null_is_none() -> None:
    found: list[Any] = []
    Events(found.append).feed(b'data: {"choices": [], "error": null}\n')
    assert found == [{"choices": [], "error": None}]
    with pytest.raises(RequestError, match="without a message"):
        Events(found.append).feed(b'data: {"error": {"code": 1}}\n')


def test_what_is_no_http_controls_no_terminal() -> None:
    error = RemoteServer("http://host")._lost(http.client.BadStatusLine(HOSTILE))
    assert HARMLESS in str(error)
    assert str(error).isprintable()


def test_a_path_of_the_url_is_kept() -> None:
    assert RemoteServer("http://host/api/v1/")._root == "/api/v1"
    assert RemoteServer("https://host")._root == "/v1"
