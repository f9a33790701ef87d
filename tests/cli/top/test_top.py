"""`octavo top`: pages, lines and JSON of a real stream, and errors that say what to do."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, OK, USAGE
from octavo.cli.top import command, stream
from octavo.cli.top.ask import LostError
from octavo.cli.top.screen import line, page
from octavo.route.address import read_address
from octavo.serving.live.schema import LiveFrame
from tests.cli.chat.fake_server import serving as other_server
from tests.server.durable.make import KEY
from tests.server.engine import make_directory
from tests.server.make import listening

ENGINE: dict[str, Any] = {
    "is_ready": True,
    "deaths": 1,
    "restarts": 1,
    "running": 2,
    "waiting": 3,
    "held": 0,
    "slots": 8,
    "blocks": 100,
    "free_blocks": 39,
    "block_tokens": 16,
    "steps": 10,
    "tokens": 900,
    "prefill_tokens": 500,
    "cached_tokens": 40,
    "preemptions": 2,
    "drafts": 100,
    "accepted_drafts": 71,
    "step_ms": 11.84,
    "longest_step_ms": 20.0,
    "seen_ms": 1.0,
    "blocked_by": "slots",
    "map": {"cell_blocks": 25, "used": [100, 40, 0, 0], "kept": [0, 0, 10, 0]},
}
TIMES = {"count": 3, "mean_ms": 84.2, "p50_ms": 80.0, "p95_ms": 210.0}
MODEL: dict[str, Any] = {
    "name": "tiny\x1b]0;x\x07",
    "state": "ready",
    "why": "",
    "queue_requests": 3,
    "queue_tokens": 1204,
    "admitted": 5,
    "capacity": 10,
    "expected_wait_seconds": 0.4,
    "prompt_tokens": 900.0,
    "generated_tokens": 700,
    "first_token": TIMES,
    "between_tokens": TIMES,
    "whole": {**TIMES, "count": 0},
    "engines": [ENGINE],
}
REQUEST: dict[str, Any] = {
    "model": "tiny",
    "id": "mine",
    "state": "decode",
    "engine": 0,
    "age_ms": 2100.0,
    "is_stream": True,
    "prompt_tokens": 48,
    "cached_tokens": 24,
    "computed_tokens": 50,
    "known_tokens": 72,
    "most_tokens": 96,
    "drafts": 0,
    "accepted_drafts": 0,
    "reason": "",
    "cells": [],
}
FRAME: dict[str, Any] = {
    "version": "0.2",
    "uptime_seconds": 7385.5,
    "listeners": 1,
    "is_shared": False,
    "models": [MODEL],
    "requests": [REQUEST],
    "left_out": 0,
    "ended": [],
}


def frame(**changes: Any) -> LiveFrame:
    """Return a frame of one model with one request."""
    return msgspec.convert({**FRAME, **changes}, LiveFrame)


EARLIER = frame(
    uptime_seconds=7385.0,
    models=[{**MODEL, "generated_tokens": 500, "engines": [{**ENGINE, "prefill_tokens": 400}]}],
)


ENGINE_LINE = (
    "  engine 0: 2 of 8 running, 3 waiting for slots   step 11.8 ms   KV 61 % of 100 blocks   "
)


def test_a_page_shows_models_engines_and_requests() -> None:
    assert page(frame(), EARLIER, 100, 40) == [
        "octavo 0.2   up 2 h 03 min",
        "",
        "tiny?]0;x?   queue 3 (1,204 tokens)   admitted 5 of 10",
        "  out 400 tok/s   in 200 tok/s   TTFT 84 ms (p95 210)   ITL 84.2 ms (p95 210.0)   whole -",
        f"{ENGINE_LINE}drafts acce",
        "  [█▓░ ]",
        "",
        "STATE   REQUEST  PROMPT  CACHED  OUT    AGE",
        "decode  mine         48      24   24  2.1 s  ======######>>>>>>......",
    ]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 3), (80, 5), (300, 100)])
def test_a_page_fits_its_terminal(width: int, height: int) -> None:
    lines = page(frame(requests=[REQUEST] * 50, left_out=3), None, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_requests_without_room_are_counted() -> None:
    lines = page(frame(requests=[REQUEST] * 50, left_out=3), None, 100, 20)
    assert lines[-1] == "and 42 more"


def test_a_model_that_is_away_says_so() -> None:
    models = [{**MODEL, "state": "restarting", "engines": [{**ENGINE, "is_ready": False}]}]
    lines = page(frame(models=models, requests=[], is_shared=True), None, 100, 40)
    assert lines[0].endswith("other keys' requests are not shown")
    assert lines[2].startswith("tiny?]0;x? is being restarted   ")
    assert lines[4] == "  engine 0: not ready   deaths 1   restarts 1"
    assert lines[-1] == "no request is running"


def test_a_frame_is_one_line_for_a_pipe() -> None:
    assert line(frame(), EARLIER) == (
        "tiny?]0;x? ready running=2 waiting=6 kv=61% out=400tok/s in=200tok/s ttft=84ms itl=84.2ms"
    )
    assert line(frame(models=[]), None) == "no model is loaded yet"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a tokenizer and its configuration."""
    return make_directory(tmp_path_factory.mktemp("text"))


def test_one_page_of_a_real_server(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(directory, api_keys=(KEY,)) as life:
        url = f"http://127.0.0.1:{life.port}"
        assert main(["top", url]) == FAILED
        assert "put it into OCTAVO_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("OCTAVO_API_KEY", "a wrong key")
        assert main(["top", f"{url}/v1", "--once"]) == FAILED
        assert "does not know the key" in capsys.readouterr().err
        monkeypatch.setenv("OCTAVO_API_KEY", KEY)
        assert main(["top", f"{url}/v1", "--once"]) == OK
        text = capsys.readouterr().out
        assert "\ntiny   queue 0 (0 tokens)   admitted 0 of " in text
        assert text.endswith("\nno request is running\n")
        assert main(["top", url, "--once", "--json"]) == OK
        (told,) = capsys.readouterr().out.splitlines()
        assert json.loads(told)["models"][0]["name"] == "tiny"


def test_a_pipe_gets_lines_until_the_stream_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [[(EARLIER, b"{}"), (frame(), b"{}")], [(frame(), b"{}")], []]
    monkeypatch.setattr("octavo.cli.top.stream.frames", lambda *_: iter(given.pop(0)))
    assert main(["top"]) == FAILED
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3, "a stream that was long enough is followed by another"
    assert "is it shutting down?" in told.err


class Terminal(io.StringIO):
    """A terminal that keeps what it was sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_gets_the_characters_that_it_has(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = frame(models=[{**MODEL, "name": "größe"}])
    monkeypatch.setattr(stream, "frames", lambda *_: [(shown, b""), (shown, b"")])
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding, write_through=True))
    assert main(["top", "--once"]) == OK
    text = out.getvalue().decode(encoding)
    assert ("gr??e" if encoding == "ascii" else "größe") in text
    assert ("[█▓░ ]" if encoding == "utf-8" else "[#+. ]") in text


def test_a_terminal_waits_for_a_server_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(["frame", "lost", "leave"])

    def scripted(*_: object) -> Any:
        now = next(calls)
        if now == "lost":
            raise LostError("it has gone")
        if now == "leave":
            raise KeyboardInterrupt
        yield frame(), b"{}"

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(command, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr("octavo.cli.top.stream.frames", scripted)
    assert command._screen(read_address("localhost"), "") == OK
    text = terminal.getvalue()
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert "it has gone (trying again; Ctrl-C leaves)" in text


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["127.0.0.1:1"], FAILED, "start one with `octavo serve MODEL`"),
        (["ftp://x"], USAGE, "neither http nor https"),
    ],
)
def test_a_url_without_a_server_is_an_error(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert main(["top", *words, "--once"]) == code
    assert message in capsys.readouterr().err


def test_another_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with other_server({}) as server:
        assert main(["top", server.url]) == FAILED
    assert "has no live stream" in capsys.readouterr().err
