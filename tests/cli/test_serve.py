"""`octavo serve` as a user starts it: the ready line, an answer, an end, and refusals."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, INTERRUPTED, OK, USAGE
from octavo.env import child_environment
from octavo.transport.sockets import bind_admin
from tests.start.endless import CLOSES

SMALL = ("--num-gpu-blocks-override", "20")
# Limits that a pause of the machine exceeds, where no test means them.
PATIENT = [
    *("--template-seconds", "300", "--tokenize-seconds", "300"),
    *("--shape-seconds", "300", "--ready-seconds", "300"),
]


@contextlib.contextmanager
def server(tiny: str, *words: str, command: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run the real program, or a command, and end it in any case."""
    usual = [sys.executable, "-W", "ignore", "-m", "octavo", "serve", tiny, *SMALL]
    process = subprocess.Popen(
        command or [*usual, *PATIENT, *words],
        stdin=subprocess.PIPE if command else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment({"OMP_NUM_THREADS": "1", "OCTAVO_API_KEY": ""}),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """Return the program's standard output up to the line with `wanted`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return "".join(lines)
    raise AssertionError(f"it ended: {''.join(lines)}")


def ask(url: str, body: dict[str, object]) -> dict[str, object]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        told: dict[str, object] = json.load(response)
    return told


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "inline"])
def test_it_serves(tiny: str, engine: str) -> None:
    words = ["--port", "0", "--engine", engine, "--served-model-name", "it"]
    words += ["--silence-seconds", "300"] if engine == "process" else []
    with server(tiny, *words) as process:
        text = read_until(process, "memory:")
        assert "Octavo serves it at http://127.0.0.1:" in text
        for part in ("  curl http", "from openai import OpenAI", "load the weights", "ready after"):
            assert part in text
        found = re.search(r"http://127.0.0.1:\d+", text)
        assert found is not None
        message = {"role": "user", "content": "x"}
        body: dict[str, object] = {"messages": [message], "max_tokens": 4, "ignore_eos": True}
        told = ask(f"{found[0]}/v1/chat/completions", body)
        assert told["model"] == "it"
        assert told["usage"]["completion_tokens"] == 4  # type: ignore[index]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == OK
        assert "predicted" in errors
        assert "Traceback" not in errors


IMPORTED_AT_LAUNCH = """
import sys
import octavo.client.process as process

def stop(*_):
    server = ("httptools", "jinja2", "tokenizers", "numpy", "octavo.server.lifecycle")
    print(*(name for name in server if name in sys.modules))
    raise SystemExit

process.launch_engines = stop
from octavo.cli import main
main(["serve", sys.argv[1], "--port", "0"])
print("after that they would come")
"""


def test_the_engine_is_launched_before_the_server_is_imported(tiny: str) -> None:
    """The engine's imports overlap those of the server."""
    command = [sys.executable, "-c", IMPORTED_AT_LAUNCH, tiny]
    environment = child_environment({"OCTAVO_API_KEY": ""})
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert told.stdout == "\nafter that they would come\n", told.stdout


_HELD = """
import sys
from octavo.cli import main, serve
from octavo.transport.restart import waiting_room
opened, load = waiting_room.waiting_room, serve._load

def open_and_say(config):
    room = opened(config)
    print("port", room.listening.getsockname()[1], flush=True)
    return room

def load_when_asked(*given):
    sys.stdin.readline()
    return load(*given)

waiting_room.waiting_room, serve._load = open_and_say, load_when_asked
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_request_waits_while_the_engine_loads(tiny: str) -> None:
    words = ["serve", tiny, *SMALL, *PATIENT, "--port", "0"]
    with server(tiny, command=[sys.executable, "-W", "ignore", "-c", _HELD, *words]) as process:
        port = int(read_until(process, "port").split()[-1])
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            urllib.request.urlopen(f"{url}/health", timeout=300)
        assert json.load(caught.value) == {"status": "starting"}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, f"{url}/v1/completions", {"prompt": "a", "max_tokens": 2})
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert asked.result()["usage"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == OK


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_signal_while_it_closes_ends_it_at_once(
    tiny: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    admin = tmp_path / "admin.sock"
    words = [
        "--port",
        "0",
        "--admin-socket",
        str(admin),
        "--middleware",
        "tests.start.endless:Endless",
    ]
    with server(tiny, *words) as process:
        read_until(process, "memory: ")
        assert admin.exists()
        process.send_signal(number)
        assert process.stderr is not None
        assert any(CLOSES in line for line in process.stderr)
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == code
    assert not errors
    assert not admin.exists()


@pytest.mark.slow
def test_ctrl_c_while_it_starts(tiny: str) -> None:
    """Ctrl-C during the start leaves no process and no traceback."""
    with server(tiny, "--port", "0", "--log-level", "debug") as process:
        assert process.stderr is not None
        process.stderr.readline()  # the engine's first line: it is at it
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        assert process.returncode in (INTERRUPTED, OK)
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nosuch"], FAILED, "there is no model 'nosuch'"),
        (["nosuch", "--cpu-isa", "sse9"], USAGE, "--cpu-isa='sse9' is none of the instruction"),
        (["nosuch", "--num-threads", "9999"], USAGE, "--num-threads=9999 is far more than"),
        (["nosuch", "--packed-cache=/proc/no"], USAGE, "--packed-cache='/proc/no' cannot be used"),
        (["nosuch", "--packed-cache-bytes", "1GiB"], USAGE, "without --packed-cache"),
        (["--host", "0.0.0.0"], USAGE, "--insecure-no-auth"),
        (["--port", "70000"], USAGE, "--port=70000 must be between"),
        (["--host", "192.0.2.1", "--insecure-no-auth"], FAILED, "choose another --host"),
        (["--tokenizer", "/no/such"], FAILED, "--tokenizer='/no/such': there is no model"),
        (
            ["--admin-socket", "/proc/no/x"],
            FAILED,
            "the admin socket /proc/no/x cannot be created: there is no directory /proc/no; create",
        ),
        (["--admin-socket", "/tmp"], FAILED, "the admin socket /tmp cannot be created: there is"),
        (
            ["--admin-socket", f"/tmp/{'x' * 120}"],
            FAILED,
            "cannot be created: af_unix path too long; choose",
        ),
        (["--journal", "/proc/no/x"], FAILED, "the journal /proc/no/x cannot be opened: no such"),
        (
            ["--journal", "/dev/full"],
            FAILED,
            "/dev/full is not a regular file; name another",
        ),
        (["--host", "no.such.host.invalid"], USAGE, "no.such.host.invalid"),
        (["--max-num-seqs", "0"], USAGE, "--max-num-seqs=0 must be at least 1"),
        (["--api-key-file", "/no/such"], FAILED, "/no/such cannot be read"),
        (
            ["--middleware", "no.such:thing"],
            USAGE,
            "--middleware='no.such:thing' cannot be used",
        ),
    ],
)
def test_mistakes(
    words: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    assert main(["serve", *([] if "--port" in words else ["--port", "0"]), *words]) == code
    told = capsys.readouterr().err
    assert told.startswith("octavo serve: ")
    assert message in told
    assert "Traceback" not in told
    assert "defect" not in told


def test_an_address_that_is_taken_is_found_out_at_once(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", tiny, "--port", port]) == FAILED
    assert "choose another --port" in capsys.readouterr().err


def test_a_server_that_lives_keeps_its_admin_socket(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        words = ["--port", "0", "--admin-socket", str(path)]
        assert main(["serve", tiny, *words]) == FAILED
        assert "another server answers at the admin socket" in capsys.readouterr().err
        assert path.exists()
    bind_admin(path).close()  # of a server that is no more


@pytest.mark.slow
def test_an_engine_that_cannot_start_says_why(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--port", "0", "--max-model-len", "4k"]
    assert main(["serve", tiny, *words]) == USAGE
    told = capsys.readouterr().err
    assert "--max-model-len=4000 is more than the 128 positions this model was made for" in told
