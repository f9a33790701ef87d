"""`octavo serve A B`: real engines of two models, the death of one, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.commands import COMMANDS, FAILED, OK, USAGE
from octavo.cli.execute import make_parser
from octavo.cli.parsing import UsageError
from octavo.client.client import ENGINE_PROGRAM
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments
from octavo.server.models.directory import models_in
from octavo.server.models.memory import Room
from octavo.server.models.need import computed
from tests.api.tiny import make_model
from tests.cli.test_serve import ask, read_until, server

pytest.importorskip("octavo.backends.native._native")

LIMIT_SECONDS = 300.0


def engines(parent: int) -> set[int]:
    """Return the engines' processes of a server."""
    found: set[int] = set()
    for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has just ended
            if ENGINE_PROGRAM.encode() in Path(f"/proc/{each}/cmdline").read_bytes():
                found.add(int(each))
    return found


def stream(url: str, body: dict[str, object], after_first: list[int]) -> str:
    """Return the text of a stream; kill processes when its first part has come."""
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    text = ""
    with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as response:
        for line in response:
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                while after_first:
                    os.kill(after_first.pop(), signal.SIGKILL)
    return text


def ask_again(url: str, body: dict[str, object]) -> dict[str, object]:
    """Return the response to a request, which is sent again while the engine is being restarted."""
    while True:
        try:
            return ask(url, body)
        except urllib.error.HTTPError as refused:
            if json.load(refused)["error"]["code"] != "engine_not_ready":
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_three_models_of_which_two_have_room(tmp_path: Path) -> None:
    """One is killed, and its next request is answered; the stream of the other is as it was."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        make_model(tmp_path / name)
    words = ["--port", "0", "--models-max", "2", "--num-threads", "1", "--backend", "native"]
    words += ["--silence-seconds", "300"]
    more = (str(tmp_path / "b"), "--models-dir", str(tmp_path), "--served-model-name", "A", "B")
    with server(str(tmp_path / "a"), *more, *words) as process:
        text = read_until(process, "room for")
        found = re.search(r"http://127.0.0.1:\d+", text)
        assert found is not None
        url = f"{found[0]}/v1/completions"
        body: dict[str, object] = {"prompt": "Hi", "max_tokens": 90, "temperature": 0}
        body["ignore_eos"] = True
        assert not engines(process.pid)
        whole = stream(url, {**body, "model": "A"}, [])
        first = engines(process.pid)
        assert ask(url, {**body, "model": "B"})["model"] == "B"
        second = engines(process.pid) - first
        assert (len(first), len(second)) == (1, 1)
        assert stream(url, {**body, "model": "A"}, [*second]) == whole
        told = ask_again(url, {**body, "model": "B"})
        assert told["choices"][0]["text"] == whole  # type: ignore[index]
        assert ask(url, {**body, "model": "c"})["model"] == "c"
        assert not first & engines(process.pid)  # used longest ago
        told = ask(url, {**body, "model": "A"})
        assert told["choices"][0]["text"] == whole  # type: ignore[index]
        assert len(engines(process.pid)) == 2
        with urllib.request.urlopen(f"{found[0]}/v1/models", timeout=LIMIT_SECONDS) as response:
            cards = {each["id"]: each["status"]["value"] for each in json.load(response)["data"]}
        assert cards == {
            "A": "loaded",
            "B": "unloaded",
            "c": "loaded",
            "a": "unloaded",
            "b": "unloaded",
        }
        assert ask(f"{found[0]}/models/unload", {"model": "A"}) == {"success": True}
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(engines(process.pid)) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(engines(process.pid)) == 1
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == OK
        assert "Traceback" not in errors
        assert "ERROR octavo.client.supervisor: engine 0.1 of B: its process" in errors
        assert "engine 0.2 of B is ready" in errors


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--journal", "x"), "--journal"),
        (("--admin-socket", "x"), "--admin-socket"),
        (("--grpc-port", "1"), "--grpc-port"),
        (("--lora-modules", "x=y"), "--lora-modules"),
        (("--any-model-name",), "--any-model-name"),
        (("--tokenizer", "x"), "--tokenizer"),
        (("--spare-engine",), "--spare-engine"),
        (("--engine", "inline"), "--engine"),
        (("--model", "x"), "--model"),
        (("--served-model-name", "x"), "--served-model-name"),
        (("--models-max", "0"), "--models-max"),
    ],
)
def test_what_several_models_cannot_have(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "a", "b", "--port", "0", *words]) == USAGE
    assert named in capsys.readouterr().err


def test_names_that_are_equal_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "a", "b", "--port", "0", "--served-model-name", "x", "x"]) == USAGE
    assert "1 different name for 2 models" in capsys.readouterr().err


def test_one_model_has_no_limits_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "a", "--models-max", "2"]) == USAGE
    assert "--models-max" in capsys.readouterr().err


def test_a_directory_without_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--models-dir", str(tmp_path)]) == FAILED
    assert "--models-dir" in capsys.readouterr().err


def test_what_is_no_model_in_a_directory_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "well").mkdir()
    make_model(tmp_path / "well")
    (tmp_path / "empty").mkdir()
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "page.gguf").write_text("<html>")
    (tmp_path / "notes.txt").write_text("no model, and not called one")
    assert [each.name for each in models_in(tmp_path)] == ["well"]
    lines = [each.getMessage() for each in caplog.records]
    for name in ("empty", "gone.gguf", "page.gguf"):
        (line,) = (each for each in lines if str(tmp_path / name) in each)
        assert line.count(name) == 1
    assert len(lines) == 3


@pytest.mark.parametrize("engines", [1, 2])
def test_a_model_gets_a_size_of_the_room_or_a_reason(tmp_path: Path, engines: int) -> None:
    asked = EngineArguments(str(make_model(tmp_path)), data_parallel_size=engines)
    many = replace(asked, max_num_seqs=2048)  # whose KV cache takes all that an engine may have
    room = Room(engines * (160 << 20), 1)
    need = computed(many, room)
    assert 0.99 * room.num_bytes < need.num_bytes <= room.num_bytes
    with pytest.raises(ConfigError, match=r"all models together have 1 MiB; .*models_memory"):
        computed(asked, Room(1 << 20, 2))
    with pytest.raises(ConfigError, match="max_model_len=999999"):
        computed(replace(asked, max_model_len=999_999), Room(1 << 20, 2))
    with pytest.raises(ConfigError, match="lower kv_cache_memory_bytes"):
        computed(replace(asked, num_gpu_blocks_override=1 << 20), Room(1 << 29, 2))


@pytest.mark.slow
def test_a_model_that_never_fits_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_model(tmp_path / name)
    models = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["serve", *models, "--port", "0", "--models-memory", "1MiB"]) == FAILED
    assert "memory" in capsys.readouterr().err


def test_an_unknown_flag_is_no_model() -> None:
    """An unknown flag is refused, also with a value that has spaces."""
    parser = make_parser(COMMANDS["serve"])
    for words in (["a", "--nonsense=a b"], ["--nonsense=a b", "c"], ["a", "b", "--nonsense"]):
        with pytest.raises(UsageError, match="there is no option --nonsense"):
            parser.parse_args(words)
    assert parser.parse_args(["--port", "1", "a", "b", "--host", "x", "c"]).model_word == [*"abc"]
