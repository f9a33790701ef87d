"""Time to the first byte and the first text of a stream, in each dialect, for the same prompt.

The server is that of benchmarks/frontend.py: a real front end over an engine without a model. The
requests go round by round, one at a time, with the dialects in a new order each round; what is
reported is the median over all rounds, and that of the differences to chat completions.

    python -m benchmarks.served.dialects --rounds 400
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.frontend import pin

TEXT = "How warm is it in the country, and does the lazy dog mind? " * 16
MESSAGES = [{"role": "user", "content": TEXT}]
TOKENS = 4
# By dialect: the path, the body, and what precedes the first text in a stream.
DIALECTS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": TOKENS, "stream": True},
        b'"delta":{"content":"',
    ),
    "responses": (
        "/v1/responses",
        {"input": TEXT, "max_output_tokens": TOKENS, "stream": True},
        b"event: response.output_text.delta",
    ),
    "responses, not kept": (
        "/v1/responses",
        {"input": TEXT, "max_output_tokens": TOKENS, "stream": True, "store": False},
        b"event: response.output_text.delta",
    ),
    "messages": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": TOKENS, "stream": True},
        b"event: content_block_delta",
    ),
    "ollama": (
        "/api/chat",
        {"model": "metronome", "messages": MESSAGES, "options": {"num_predict": TOKENS}},
        b'"message":{"role":"assistant","content":"',
    ),
}


def times_of(port: int, dialect: str) -> tuple[float, float]:
    """Return the milliseconds from a request to the first byte of its answer, and to its text."""
    path, body, mark = DIALECTS[dialect]
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        connection.sendall(head.encode() + data)
        read, first, text = b"", 0.0, 0.0
        while part := connection.recv(1 << 16):
            now = time.perf_counter()
            read += part
            if not first and read.partition(b"\r\n\r\n")[2]:
                first = now
            if not text and mark in read:
                text = now
    if not read.startswith(b"HTTP/1.1 200") or not text:
        raise SystemExit(f"{dialect}: {read[:500].decode()}")
    return 1000 * (first - began), 1000 * (text - began)


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Start a server and return the times of each dialect, round by round."""
    frontend = Path(__file__).parents[1] / "frontend.py"
    command = [sys.executable, str(frontend), "--serve", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port, _, engine = process.stdout.readline().split()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pin(process.pid, {cores[0]})
        pin(int(engine), set(cores[1:]))
        os.sched_setaffinity(0, set(cores[1:]))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in DIALECTS}
    order, shuffle = list(DIALECTS), random.Random(1)
    try:
        for index in range(rounds + 20):
            shuffle.shuffle(order)
            for name in order:
                found = times_of(int(port), name)
                if index >= 20:  # warm
                    times[name].append(found)
    finally:
        process.terminate()
        process.stdout.read()
        process.wait()
    return times


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times = measure(options.rounds)
    results: dict[str, dict[str, Any]] = {}
    for name, found in times.items():
        figures: dict[str, Any] = {}
        for which, what in enumerate(("first_byte", "first_text")):
            own = [each[which] for each in found]
            more = [
                each[which] - chat[which] for each, chat in zip(found, times["chat"], strict=True)
            ]
            low, middle, high = statistics.quantiles(more, n=4)
            figures[f"{what}_ms"] = round(statistics.median(own), 3)
            figures[f"{what}_over_chat_ms"] = [round(each, 3) for each in (low, middle, high)]
        results[name] = figures
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        for what in ("first_byte", "first_text"):
            low, middle, high = figures[f"{what}_over_chat_ms"]
            print(
                f"{name}: {what.replace('_', ' ')} after {figures[f'{what}_ms']:.2f} ms; over "
                f"chat {middle:+.2f} ms (quartiles {low:+.2f} and {high:+.2f})"
            )


if __name__ == "__main__":
    main()
