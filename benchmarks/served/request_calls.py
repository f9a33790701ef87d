"""The number of Python calls in one streamed chat request, from the socket to its first token.

    python -m benchmarks.served.request_calls [--list] [--json]

The server, the core and the connection are real; the model is the tests' stand-in. Requests are
sent one after the other, and the third is counted with `sys.setprofile`, so that what is built
only once is not counted. The front end, which is a process of its own in `octavo serve`, is the
event loop's thread here: its calls count until the first chunk with text is written to the
transport. The engine's thread counts until it hands over the first token. Only functions of
`octavo/` count, with comprehensions and generator expressions as functions of their own; those of
libraries are reported separately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.server.engine import ChainRunner, FakeEngine, make_directory
from tests.server.make import listening

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'octavo'}/"
TEXT = re.compile(rb'"content":"[^"]')
COUNTED = 3  # which request
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class Calls:
    """The calls of both threads from the request's first byte to the first chunk with text."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_steps = 0
        self.engine_thread = 0
        self.is_delivered = False  # by the engine's thread: the first token
        self.is_written = threading.Event()
        self.calls: dict[str, Counter[CodeType]] = {"front end": Counter(), "engine": Counter()}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self.is_on:
            return
        code = frame.f_code
        is_write = code.co_name == "write" and "Transport" in code.co_qualname
        if is_write and TEXT.search(frame.f_locals["data"]):
            self.is_on = False
            self.is_written.set()
            return
        if threading.get_ident() != self.engine_thread:
            self.calls["front end"][code] += 1
        elif not self.is_delivered:
            self.calls["engine"][code] += 1
            self.is_delivered = code.co_name == "call_soon_threadsafe"

    def before_step(self) -> None:
        """Hold the engine after the counted request's first token until that is written."""
        self.engine_thread = threading.get_ident()
        if self.is_on:
            self.num_steps += 1
            assert self.num_steps == 1 or self.is_written.wait(60)


def report(calls: Counter[CodeType]) -> dict[str, Any]:
    """Return the numbers of calls, functions and files of a thread."""
    ours = {code: count for code, count in calls.items() if code.co_filename.startswith(PACKAGE)}
    return {
        "calls": sum(ours.values()),
        "functions": len(ours),
        "files": len({code.co_filename for code in ours}),
        "library_functions": len(calls) - len(ours),
    }


async def ask(port: int) -> None:
    """Send one streamed chat request and read it to its end."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "The quick"}], "max_tokens": 4, "stream": True}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    assert b"[DONE]" in answer, answer
    writer.close()


def main() -> None:
    """Run the benchmark and print its counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list the functions in call order")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    counter = Calls()
    threading.setprofile(counter)
    with tempfile.TemporaryDirectory() as name:
        directory = make_directory(Path(name))
        runner = ChainRunner(counter.before_step)
        fake = FakeEngine(directory, runner=runner)
        with listening(directory, fake, chat_template=TEMPLATE) as life:
            for number in range(1, COUNTED + 1):
                # The end of the request before would be counted.
                while life.num_connections or life.server.admission.num_open:
                    time.sleep(0.01)
                time.sleep(0.05)
                counter.is_on = number == COUNTED
                asyncio.run(ask(life.port))
    threading.setprofile(None)
    front, engine = counter.calls["front end"], counter.calls["engine"]
    counts = {name: report(calls) for name, calls in counter.calls.items()}
    counts["both"] = report(front + engine)
    if given.json:
        print(json.dumps(counts, indent=2))
    else:
        for name, numbers in counts.items():
            print(f"{name:10}", ", ".join(f"{count} {what}" for what, count in numbers.items()))
    if given.list:
        for code, count in (front + engine).items():
            if not code.co_filename.startswith(PACKAGE):
                continue
            place = code.co_filename.removeprefix(PACKAGE)
            print(f"{count:5}  {place}:{code.co_firstlineno} {code.co_qualname}")


if __name__ == "__main__":
    main()
