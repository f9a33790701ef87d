"""Measures several models on one server: how long a switch takes, and what the front costs.

    chrt -r 50 python -m benchmarks.served.models [MODEL MODEL]

`switch` lets two models of which one has room be asked for in turns, one token each. `front` sends
the same requests to a server with one model and to one with two, in turns. Without models they are
tiny ones. It prints JSON, in milliseconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.served.command import port_of
from octavo.env import child_environment
from tests.api.tiny import make_model

SWITCHES = 10
ROUNDS, REQUESTS = 7, 60
SETTLING = 20  # requests before those that count


@contextmanager
def serving(*words: str) -> Iterator[http.client.HTTPConnection]:
    """Start a server; yield a connection to it."""
    command = [sys.executable, "-m", "octavo", "serve", *words, "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment({"OCTAVO_API_KEY": ""}),
    )
    try:
        yield http.client.HTTPConnection("127.0.0.1", port_of(process))
    finally:
        process.terminate()
        process.wait()


def milliseconds(connection: http.client.HTTPConnection, model: str) -> float:
    """Return how long a request for one token takes."""
    body = json.dumps({"model": model, "prompt": "Hi", "max_tokens": 1})
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    return 1000 * (time.perf_counter() - began)


def switch(models: list[str]) -> dict[str, object]:
    """Measure the first use of two models, and switches between them."""
    names = ("x", "y")
    with serving(*models, "--served-model-name", *names, "--models-max", "1") as connection:
        first = [milliseconds(connection, name) for name in names]
        times = [milliseconds(connection, names[index % 2]) for index in range(SWITCHES)]
        loaded = [milliseconds(connection, names[(SWITCHES - 1) % 2]) for _ in range(SETTLING)]
    return {
        "first": [round(each) for each in first],
        "switch": round(median(times)),
        "switch_range": [round(min(times)), round(max(times))],
        "loaded": round(median(loaded), 1),
    }


def front(models: list[str]) -> dict[str, object]:
    """Measure requests to a server with one model, and to one with two."""
    one = serving(models[0], "--served-model-name", "x", "--num-threads", "1")
    two = serving(*models, "--served-model-name", "x", "y", "--num-threads", "1")
    with one as alone, two as several:
        for _ in range(SETTLING):
            milliseconds(alone, "x")
            milliseconds(several, "x")
        rounds = [
            tuple(
                median(milliseconds(each, "x") for _ in range(REQUESTS))
                for each in (alone, several)
            )
            for _ in range(ROUNDS)
        ]
    differences = [after - before for before, after in rounds]
    return {
        "one": round(median(before for before, _ in rounds), 3),
        "several": round(median(after for _, after in rounds), 3),
        "difference": round(median(differences), 3),
        "difference_range": [round(min(differences), 3), round(max(differences), 3)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    models: list[str] = parser.parse_args().models
    with tempfile.TemporaryDirectory() as name:
        if not models:
            for each in ("a", "b"):
                (Path(name) / each).mkdir()
                models.append(str(make_model(Path(name) / each)))
        print(json.dumps({"switch": switch(models[:2]), "front": front(models[:2])}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
