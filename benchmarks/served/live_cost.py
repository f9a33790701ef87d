"""What listeners of the live stream cost a server: the same requests with some, and with none.

    python -m benchmarks.served.live_cost [--model smollm2] [--listeners 1] [--rounds 8]

One server answers rounds of equal streams, in turn without and with listeners, so that other load
on the machine affects both. The ratio is that of each pair. The listeners read in a process of
their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.serving_cost import Online, make_prompts, spread

# Reads so many streams until its input ends.
LISTEN = """
import http.client, sys, threading
port, count = map(int, sys.argv[1:])
def read():
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v1/live")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    while response.readline():
        pass
for _ in range(count):
    threading.Thread(target=read, daemon=True).start()
sys.stdin.read()
"""


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Run all rounds, after one that warms up; return the report."""
    served = Online(options)
    size = options["requests"], options["input"]
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    try:
        served.run(make_prompts(*size, seed=-1))
        for number in range(options["rounds"]):
            prompts = make_prompts(*size, seed=number)
            for listens in (False, True) if number % 2 else (True, False):
                rounds[listens].append(_round(served, prompts, options["listeners"] * listens))
    finally:
        served.process.terminate()
        served.process.communicate()
    pairs = list(zip(rounds[True], rounds[False], strict=True))
    return {
        "rounds": options["rounds"],
        "listeners": options["listeners"],
        "seconds_with": spread([each["seconds"] for each in rounds[True]]),
        "seconds_without": spread([each["seconds"] for each in rounds[False]]),
        "with_by_without": spread([a["seconds"] / b["seconds"] for a, b in pairs]),
        "engine_by_engine": spread([a["engine"] / b["engine"] for a, b in pairs]),
        "front_end_seconds_with": spread([each["front end"] for each in rounds[True]]),
        "front_end_seconds_without": spread([each["front end"] for each in rounds[False]]),
    }


def _round(served: Online, prompts: list[list[int]], num_listeners: int) -> dict[str, float]:
    """Run a round beside some listeners."""
    if not num_listeners:
        return served.run(prompts)
    command = [sys.executable, "-c", LISTEN, str(served.port), str(num_listeners)]
    with subprocess.Popen(command, stdin=subprocess.PIPE):  # which ends with its input
        return served.run(prompts)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--listeners", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    engine = {
        "max_num_seqs": max(64, given.requests),
        "max_model_len": given.input + given.output,
        "enable_prefix_caching": False,
    }
    figures = measure({**vars(given), "engine": engine})
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        text = "{median} ({least} to {most})".format(**value) if isinstance(value, dict) else value
        print(f"{name:26}", text)


if __name__ == "__main__":
    main()
