"""`octavo bench serve` as it is typed, against a server whose answers are always the same."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, OK, USAGE
from tests.bench.test_served import WHOLE

RAMP = ("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2")
FEW = ("--num-prompts", "3", "--disable-tqdm")


class _Handler(BaseHTTPRequestHandler):
    """A server with one model, whose tokens are words of four letters."""

    protocol_version = "HTTP/1.1"
    keys: Sequence[str | None] = ()
    bodies: Sequence[dict[str, Any]] = ()

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).keys = [*self.keys, self.headers["authorization"]]
        if self.path == "/tokenize":
            self._send({"tokens": [1] * 2 * len(body["prompt"].split())})
        elif body["model"] not in ("m", "a", "b"):
            self._send({"error": {"message": "no such model"}}, 404)
        else:
            type(self).bodies = [*self.bodies, body]
            self.send_response(200)
            self.send_header("content-length", str(len(WHOLE)))
            self.end_headers()
            self.wfile.write(WHOLE)

    def _send(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    _Handler.keys = _Handler.bodies = ()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    few = ["--num-prompts", "3", "--disable-tqdm"]
    assert main(["bench", "serve", url, *few]) == OK
    told = capsys.readouterr().out
    assert "Successful requests:" in told
    assert "P99 TTFT (ms):" in told
    assert set(_Handler.keys) == {"Bearer secret"}
    saved = ["--save-detailed", "--result-dir", str(tmp_path), "--metadata", "a=b"]
    assert main(["bench", "serve", "--base-url", url, *few, "--json", *saved]) == OK
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert (found["completed"], found["total_output_tokens"], found["a"]) == (3, 12, "b")
    assert (found["output_lens"], found["errors"]) == ([4] * 3, [""] * 3)
    assert found["request_rate"] == "inf"


def test_what_the_command_refuses(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", url, "--model", "other"]) == FAILED
    assert "no such model" in capsys.readouterr().err
    for words in (
        [url, "--port", "1"],
        [url, "--num-prompts", "0"],
        [url, "--request-rate", "0"],
        [url, "--burstiness", "nan"],
        [url, "--random-range-ratio", "1"],
        [url, "--dataset-name", "custom"],
        [url, "--dataset-path", "x"],
        [url, "--percentile-metrics", "x"],
        [url, "--metric-percentiles", "101"],
        [url, "--goodput", "x:1"],
        [url, "--header", "x"],
        [url, "--result-dir", "/no/such"],
        [url, "--output-json", "/no/such/file"],
        [url, "--plot", "x.png"],
        [url, "--plot", "/no/such/x.svg"],
        [url, "--length-scale", "0"],
        [url, "--timed-trace-sec-multiplier", "nan"],
        [url, "--dataset-name", "timed_trace"],
        [url, "--dataset-name", "mooncake", "--dataset-path", "/no/such"],
        [url, "--dataset-name", "mooncake", "--input-len", "5"],
        [url, "--dataset-name", "burstgpt", "--output-len", "5"],
        [url, "--self-timed"],
        [url, "--ramp-up-start-rps", "1"],
        [url, "--ramp-up-strategy", "linear"],
        [url, "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "2"],
        [url, *RAMP, "--request-rate", "3"],
        [url, *RAMP, "--sweep", "--goodput", "ttft:1"],
        [url, "--sweep"],
        [url, "--sweep=1,x", "--goodput", "ttft:1"],
        [url, "--sweep=0", "--goodput", "ttft:1"],
        [url, "--sweep", "--goodput", "ttft:1", "--goodput-share", "2"],
        [url, "--lora-assignment", "other"],
        ["ftp://x"],
    ):
        assert main(["bench", "serve", *words]) == USAGE, words
    capsys.readouterr()


def test_no_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        assert main(["bench", "serve", "--port", port]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "octavo serve" in line
    assert "connection refused" in line


def test_requests_have_adapters_and_lengths(url: str) -> None:
    words = ["--input-len", "6", "--output-len", "7", "--lora-modules", "a", "b"]
    assert main(["bench", "serve", url, *FEW, *words, "--lora-assignment", "round-robin"]) == OK
    trial, *bodies = _Handler.bodies
    assert sorted(each["model"] for each in bodies) == ["a", "a", "b"]
    assert {each["max_tokens"] for each in _Handler.bodies} == {7}
    assert {len(each["prompt"].split()) for each in _Handler.bodies} == {3}  # of two tokens each
    assert all(each["ignore_eos"] for each in _Handler.bodies)
    assert trial["prompt"] in [each["prompt"] for each in bodies]


def test_a_trace_is_replayed(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": at, "input_length": size, "output_length": 5, "hash_ids": [0, 1]}
        for at, size in ((100, 600), (101, 1024))
    ]
    trace.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    data = ["--dataset-name", "mooncake", "--dataset-path", str(trace), "--json"]
    assert main(["bench", "serve", url, *data, "--disable-tqdm"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["num_prompts"], told["completed"], told["self_timed"]) == (2, 2, True)
    short, long = sorted((each["prompt"] for each in _Handler.bodies[1:]), key=len)
    assert long.startswith(short)
    assert (len(short.split()), len(long.split())) == (300, 512)


def test_vllms_flags_about_tokenizers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line of vLLM's works as it is: its model is a tokenizer's name there."""
    words = ["--model", "org/model", "--served-model-name", "m", "--tokenizer", "org/model"]
    assert main(["bench", "serve", url, *FEW, *words, "--trust-remote-code"]) == OK
    said = capsys.readouterr().err
    assert "--tokenizer " in said
    assert "--trust-remote-code " in said
    assert {each["model"] for each in _Handler.bodies} == {"m"}


def test_a_ramp(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ramp = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "500", "--ramp-up-end-rps"]
    assert main(["bench", "serve", url, *FEW, *ramp, "1000", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["ramp_up_start_rps"], told["ramp_up_end_rps"]) == (500.0, 1000.0)
    assert told["completed"] == 3


def test_a_sweep(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer is in time here, so that the highest rate is the knee."""
    files = ["--output-json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
    words = ["--goodput", "e2el:1000000", "--sweep=500,1000", *files]
    assert main(["bench", "serve", url, *FEW, *words]) == OK
    assert "The knee is at 1000 requests/s" in capsys.readouterr().out
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["knee"]["request_rate"] == 1000.0
    assert [each["request_rate"] for each in told["runs"]] == [500.0, 1000.0]
    assert [each["goodput_share"] for each in told["runs"]] == [1.0, 1.0]
    prompts = [each["prompt"] for each in _Handler.bodies]
    assert len(set(prompts)) == len(prompts) == 1 + 2 * 3  # a run has no words of another
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_a_sweep_without_a_knee(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--goodput", "ttft:0.000001", "--sweep=500,1000", "--json"]
    assert main(["bench", "serve", url, *FEW, *words]) == OK
    told = json.loads(capsys.readouterr().out)
    assert (told["knee"]["request_rate"], told["knee"]["fails_at"]) == (None, 500.0)


def test_pictures_of_a_run(url: str, tmp_path: Path) -> None:
    for name in ("a.svg", "a.html"):
        assert main(["bench", "serve", url, *FEW, "--plot", str(tmp_path / name)]) == OK
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    texts = [each.text for each in ElementTree.parse(tmp_path / "a.svg").iter() if each.text]
    assert "Time to First Token" in texts
