"""Kills engines and servers under a batch; every line must be answered once.

    python benchmarks/served/batches.py [--model smollm2] [--lines 1000] [--engines 3] [--servers 2]

A real `octavo serve` answers the batch over HTTP. Engines and servers are killed with SIGKILL, at
random numbers of results that the seed fixes. `seconds` is the time from the batch's beginning to
its results, the restarts included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2]))

from octavo.client.client import ENGINE_PROGRAM

POLL_SECONDS = 0.02
HTTP_SECONDS = 60.0


class Server:
    """A process of `octavo serve`, and its engine's."""

    def __init__(self, model: str, directory: Path, options: list[str]) -> None:
        program = [sys.executable, "-m", "octavo", "serve", model, "--port", "0"]
        program += ["--batch-dir", str(directory), "--log-level", "error", *options]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r" at (http://\S+)", line)
            if found is not None:
                self.client = httpx.Client(base_url=f"{found[1]}/v1", timeout=HTTP_SECONDS)
                return
        raise SystemExit("the server has not started")

    def kill(self) -> None:
        """Kill the server, with which its engine ends."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def kill_engine(self) -> bool:
        """Kill the engine; return False if there is none at this moment."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
                command = (path.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == self.process.pid and ENGINE_PROGRAM.encode() in command:
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
        return False


def requests_text(num_lines: int, num_tokens: int) -> str:
    """Return a file of requests, of prompts and answers of several lengths."""
    chance = random.Random(1)
    lines = []
    for index in range(num_lines):
        words = " ".join(str(chance.randrange(1000)) for _ in range(chance.randint(1, 30)))
        body = {
            "prompt": words,
            "max_tokens": chance.randint(1, num_tokens),
            "ignore_eos": True,
            "temperature": 0,
        }
        line = {"custom_id": f"line-{index}", "method": "POST", "url": "/v1/completions"}
        lines.append(json.dumps({**line, "body": body}))
    return "\n".join(lines) + "\n"


def ids_of(server: Server, file_id: str | None) -> list[str]:
    """Return the ids of a file's results, in their order."""
    if file_id is None:
        return []
    text = server.client.get(f"/files/{file_id}/content").text
    return [json.loads(line)["custom_id"] for line in text.splitlines()]


def _number(custom_id: str) -> int:
    return int(custom_id.removeprefix("line-"))


def measure(
    model: str,
    directory: Path,
    num_lines: int,
    kills: dict[str, int],
    *,
    num_tokens: int,
    seed: int,
    options: list[str],
) -> dict[str, Any]:
    """Answer a batch under kills; return the figures, of which most must be what was asked for."""
    chance = random.Random(seed)
    planned = [what for what, count in kills.items() for _ in range(count)]
    chance.shuffle(planned)
    places = sorted(chance.sample(range(1, max(2, num_lines * 9 // 10)), len(planned)))
    server = Server(model, directory, options)
    began = time.monotonic()
    done = {"engine": 0, "server": 0}
    try:
        text = requests_text(num_lines, num_tokens)
        sent = server.client.post(
            "/files", files={"file": ("in.jsonl", text)}, data={"purpose": "batch"}
        )
        body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions"}
        name = server.client.post("/batches", json=body).json()["id"]
        while True:
            batch = server.client.get(f"/batches/{name}").json()
            counts = batch["request_counts"]
            if batch["status"] not in ("validating", "in_progress", "finalizing"):
                break
            if places and counts["completed"] + counts["failed"] >= places[0]:
                what = planned[0]
                if what == "engine" and not server.kill_engine():
                    continue
                if what == "server":
                    server.kill()
                    server = Server(model, directory, options)
                done[what] += 1
                del planned[0], places[0]
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
        results, errors = (ids_of(server, batch[f"{kind}_file_id"]) for kind in ("output", "error"))
    finally:
        server.kill()
    ids = [*results, *errors]
    return {
        "status": batch["status"],
        "lines": num_lines,
        "answered": len(ids),
        "answered_once": len(set(ids)),
        "errors": len(errors),
        "in_order": all(each == sorted(each, key=_number) for each in (results, errors)),
        "engine_kills": done["engine"],
        "server_kills": done["server"],
        "seconds": round(seconds, 2),
    }


def main() -> int:
    """Print the figures as JSON; return 1 if a line was not answered once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=16, help="of the longest answer")
    parser.add_argument("--engines", type=int, default=3, help="kills of the engine")
    parser.add_argument("--servers", type=int, default=2, help="kills of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("options", nargs="*", help="further options of octavo serve")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(
            arguments.model,
            Path(directory) / "batches",
            arguments.lines,
            {"engine": arguments.engines, "server": arguments.servers},
            num_tokens=arguments.tokens,
            seed=arguments.seed,
            options=arguments.options,
        )
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    once = figures["answered"] == figures["answered_once"] == figures["lines"]
    return 0 if once and figures["in_order"] and figures["status"] == "completed" else 1


if __name__ == "__main__":
    sys.exit(main())
