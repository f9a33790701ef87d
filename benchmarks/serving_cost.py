"""The server's cost on top of the engine's: the same requests offline and over HTTP.

    python benchmarks/serving_cost.py [--model smollm2] [--rounds 7] [--json]

Offline is `LLM.generate` in one process. Over HTTP is `octavo serve`, with a stream for each
request. Both stay loaded and alternate, round by round, so that other load on the machine affects
both. The client shares the machine's cores with the server: it only collects bytes, ten times a
second. Its processor time is reported, as are those of the front end and the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

ROOT = Path(__file__).parents[1]
# The client's pause between two reads: long until most of the answers have come, so that it takes
# little time of the cores that it shares with the server.
LOOK_SECONDS, LAST_LOOK_SECONDS, MOST = 0.1, 0.002, 0.85
END = b"data: [DONE]\n\n"
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}"
    "\r\n\r\n"
)


def make_prompts(num_requests: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Make prompts of ordinary tokens; each seed gives others, so that no prefix is cached."""
    chance = random.Random(seed)
    return [
        [chance.randrange(1000, 20_000) for _ in range(num_tokens)] for _ in range(num_requests)
    ]


def offline(options: dict[str, Any]) -> None:
    """Generate without a server: read and write one line of JSON for each round."""
    from octavo import LLM, SamplingParams

    llm = LLM(options["model"], **options["engine"])
    sampling = SamplingParams(temperature=0.0, max_tokens=options["output"], ignore_eos=True)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        given = [{"prompt_token_ids": prompt} for prompt in json.loads(line)]
        began = time.monotonic()
        outputs = llm.generate(given, sampling, use_tqdm=False)
        seconds = time.monotonic() - began
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "tokens": num_tokens}), flush=True)


class Offline:
    """The handle of the process that generates offline."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--offline", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        figures: dict[str, Any] = json.loads(self.process.stdout.readline())
        return figures

    def run(self, prompts: list[list[int]]) -> dict[str, float]:
        """Run one round; return its figures."""
        assert self.process.stdin is not None
        before = processor_seconds(self.process.pid)
        self.process.stdin.write(json.dumps(prompts) + "\n")
        self.process.stdin.flush()
        figures = self._read()
        figures["engine"] = processor_seconds(self.process.pid) - before
        return figures


class Online:
    """`octavo serve`, and its client in this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.num_output = options["output"]
        words = [word for name, value in options["engine"].items() for word in _flag(name, value)]
        command = [sys.executable, "-m", "octavo", "serve", options["model"], "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--log-level", "warning", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = next(line for line in self.process.stdout if " at http://" in line)
        self.port = int(ready.rpartition(":")[2])
        (self.engine,) = children(self.process.pid)
        self.usual_bytes = 0  # of all answers of a round

    def run(self, prompts: list[list[int]]) -> dict[str, float]:
        """Run one round, with each request on a connection of its own; return its figures."""
        numbers = {"front end": self.process.pid, "engine": self.engine, "client": os.getpid()}
        before = {name: processor_seconds(number) for name, number in numbers.items()}
        began = time.monotonic()
        answers = self._ask(prompts)
        figures = {"seconds": time.monotonic() - began}
        for name, number in numbers.items():
            figures[name] = processor_seconds(number) - before[name]
        for answer in answers:
            if b" 200 " not in answer[:20]:
                raise RuntimeError(f"the server refused: {answer[:500]!r}")
        usages = [answer.rpartition(b'"completion_tokens":')[2] for answer in answers]
        figures["tokens"] = sum(int(usage[: usage.index(b",")]) for usage in usages)
        figures["chunks"] = sum(answer.count(b'"text":') for answer in answers)
        return figures

    def _ask(self, prompts: list[list[int]]) -> list[bytearray]:
        answers = [bytearray() for _ in prompts]
        poll = select.epoll()
        by_number: dict[int, tuple[socket.socket, bytearray]] = {}
        for prompt, answer in zip(prompts, answers, strict=True):
            connection = socket.create_connection(("127.0.0.1", self.port))
            body = json.dumps(self._body(prompt)).encode()
            connection.sendall(HEAD.format(len(body)).encode() + body)
            by_number[connection.fileno()] = (connection, answer)
            poll.register(connection.fileno(), select.EPOLLIN)
        num_bytes = 0
        while by_number:
            for number, _ in poll.poll():
                connection, answer = by_number[number]
                part = connection.recv(1 << 18)
                answer += part
                num_bytes += len(part)
                if not part or END in answer[-64:]:
                    poll.unregister(number)
                    del by_number[number]
                    connection.close()
            is_late = num_bytes > MOST * self.usual_bytes
            time.sleep(LAST_LOOK_SECONDS if is_late else LOOK_SECONDS)
        self.usual_bytes = num_bytes
        return answers

    def _body(self, prompt: list[int]) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "max_tokens": self.num_output,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def children(number: int) -> list[int]:
    """Return the ids of the engines that a process has started."""
    tasks = Path(f"/proc/{number}/task").iterdir()
    started = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    return [
        each
        for each in started
        if b"octavo.engine.process" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


def processor_seconds(number: int) -> float:
    """Return the processor time of all threads of a process so far."""
    words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Run all rounds, after one that warms up; return the report."""
    size = options["requests"], options["input"]
    alone = Offline(options)
    served = Online(options)
    rounds: dict[str, list[dict[str, float]]] = {"offline": [], "served": []}
    try:
        for number in range(-1, options["rounds"]):
            prompts = make_prompts(*size, seed=number)
            pairs = [("offline", alone.run), ("served", served.run)]
            for name, run in pairs if number % 2 else reversed(pairs):
                figures = run(prompts)
                assert figures["tokens"] == options["requests"] * options["output"], figures
                if number >= 0:
                    rounds[name].append(figures)
    finally:
        for process in (alone.process, served.process):
            process.terminate()
            process.communicate()
    return report(rounds, options["requests"] * options["output"])


def report(rounds: dict[str, list[dict[str, float]]], num_tokens: int) -> dict[str, Any]:
    """Return medians and ranges; the ratios are those of each round's pair."""
    pairs = zip(rounds["served"], rounds["offline"], strict=True)
    per_token = 1e6 / num_tokens
    return {
        "rounds": len(rounds["served"]),
        "offline_seconds": spread([figures["seconds"] for figures in rounds["offline"]]),
        "served_seconds": spread([figures["seconds"] for figures in rounds["served"]]),
        "served_by_offline": spread([a["seconds"] / b["seconds"] for a, b in pairs]),
        "chunks": spread([figures["chunks"] for figures in rounds["served"]]),
        "processor_microseconds_a_token": {
            "offline": spread([figures["engine"] * per_token for figures in rounds["offline"]]),
            **{
                name: spread([figures[name] * per_token for figures in rounds["served"]])
                for name in ("engine", "front end", "client")
            },
        },
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return the least, the median and the largest value."""
    return {
        "least": round(min(values), 4),
        "median": round(statistics.median(values), 4),
        "most": round(max(values), 4),
    }


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--offline", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="of each engine; 0: as it chooses")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.offline is not None:
        offline(json.loads(given.offline))
        return
    engine: dict[str, Any] = {
        "max_num_seqs": max(64, given.requests),
        "max_model_len": given.input + given.output,
        "enable_prefix_caching": False,
    }
    if given.threads:
        engine["num_threads"] = given.threads
    figures = measure({**vars(given), "engine": engine})
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for name in ("offline_seconds", "served_seconds", "served_by_offline"):
        print(f"{name:18}", "{median} ({least} to {most})".format(**figures[name]))
    costs = figures["processor_microseconds_a_token"]
    print("processor time a token, in µs:", {name: cost["median"] for name, cost in costs.items()})


if __name__ == "__main__":
    main()
