"""`octavo route` as a user starts it: what is refused, and two real servers behind one address."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.commands import COMMANDS, FAILED, OK, USAGE
from octavo.cli.execute import make_parser
from octavo.cli.routing.route import settings_of
from octavo.env import child_environment
from octavo.options.route import RouteSettings
from tests.api.tiny import make_model
from tests.cli.test_serve import ask, read_until, server

LIMIT_SECONDS = 300.0
# So that no pause of the machine takes a server out, or replaces an engine.
PATIENT = ("--health-timeout-seconds", "300", "--connect-seconds", "300")


def settings(*words: str) -> RouteSettings:
    return settings_of(make_parser(COMMANDS["route"]).parse_args(words))


def test_settings_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-of-a-client\n# another\n")
    (tmp_path / "upstream").write_text("key-of-the-servers\n")
    words = ("--api-key-file", str(tmp_path / "keys"), "--known-tokens", "5", "b:2")
    found = settings("a:1", *words, "--upstream-api-key-file", str(tmp_path / "upstream"))
    assert found.servers == ("a:1", "b:2")
    assert (found.api_keys, found.upstream_api_key) == (("key-of-a-client",), "key-of-the-servers")
    assert (found.port, found.known_tokens) == (9000, 5)
    assert settings("a:1", "--upstream-api-key", "typed").upstream_api_key == "typed"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "http://HOST:PORT"),
        (("ftp://a",), "ftp"),
        (("a:1", "http://a:1/v1"), "twice"),
        (("a:1", "--host", "0.0.0.0"), "key"),
        (("a:1", "--upstream-api-key", ""), "--upstream-api-key"),
        (("a:1", "--max-open-requests", "0"), "--max-open-requests"),
        (("a:1", "--grpc-port", "1"), "--grpc-port"),
    ],
)
def test_what_a_router_cannot_be(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["route", *words]) == USAGE
    assert named in capsys.readouterr().err


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone")
    assert main(["route", "a:1", "--upstream-api-key-file", gone]) == FAILED
    assert gone in capsys.readouterr().err
    assert main(["route", "https://a:1", "--port", "0", "--upstream-ca-certs", gone]) == FAILED
    assert gone in capsys.readouterr().err


@contextlib.contextmanager
def router(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the real program, and end it in any case."""
    command = [sys.executable, "-W", "ignore", "-m", "octavo", "route", "--port", "0", *words]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment({"OCTAVO_API_KEY": ""}),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address_in(text: str) -> str:
    found = re.search(r"http://127.0.0.1:\d+", text)
    assert found is not None
    return found[0]


def stream(url: str, body: dict[str, object]) -> str:
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as response:
        frames = response.read().decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    payloads = [json.loads(each.removeprefix("data: ")) for each in frames[:-2] if each[0] != ":"]
    return "".join(each["choices"][0]["text"] for each in payloads)


@pytest.mark.slow
def test_two_real_servers(tmp_path: Path) -> None:
    """Requests find their models, streams are whole, and one server goes on without the other."""
    pytest.importorskip("octavo.backends.native._native")
    make_model(tmp_path)
    words = ["--port", "0", "--silence-seconds", "300", "--num-threads", "1"]
    words += ["--backend", "native", "--served-model-name"]
    with (
        server(str(tmp_path), *words, "one", "both") as first,
        server(str(tmp_path), *words, "two", "both") as second,
    ):
        urls = [address_in(read_until(each, "Octavo serves")) for each in (first, second)]
        read_until(first, "ready after")
        read_until(second, "ready after")
        with router(*urls, *PATIENT) as process:
            text = read_until(process, urls[1])
            url = address_in(text)
            assert "curl" in text
            path = f"{url}/v1/completions"
            body: dict[str, object] = {"prompt": "Hi", "max_tokens": 20, "temperature": 0}
            body["ignore_eos"] = True
            whole = stream(f"{urls[0]}/v1/completions", {**body, "model": "one"})
            for name in ("one", "two", "both"):
                assert stream(path, {**body, "model": name}) == whole
            for name in ("one", "two"):  # an answer has the first name of its server
                assert ask(path, {**body, "model": name})["model"] == name
            with urllib.request.urlopen(f"{url}/v1/models", timeout=LIMIT_SECONDS) as response:
                names = [each["id"] for each in json.load(response)["data"]]
            assert sorted(names) == ["both", "one", "two"]
            first.kill()
            first.wait()
            for _ in range(3):
                assert stream(path, {**body, "model": "both"}) == whole
            assert ask(path, {**body, "model": "both"})["model"] == "two"
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == OK
            assert "Traceback" not in errors
