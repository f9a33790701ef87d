"""Measures ranks that add up on two nodes, which here are one machine, over loopback.

    python -m benchmarks.native.nodes [MODEL] [--rounds 5] [--make-1b]

It measures a sum of 2,048 numbers over two processes: in memory that both map, over a connection
that is sealed, and 8 KiB over a connection to another process and back, as they are. With a model,
two ranks with one thread each on one machine and on two nodes take turns, as in
`benchmarks.native.ranks`; a ratio is that of the speeds in each round, its median.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.native.ranks import (
    MEMORY_BYTES,
    PROMPT,
    STREAMS,
    SUM_WIDTH,
    generate,
    measure_sum,
)
from octavo import LLM
from octavo.env import child_environment, child_module_path

ROUNDS = 5_000
LOCAL_HOST = "127.0.0.1"
_ADDS = (
    "import sys; from tests.backends.native import _native_test as t; "
    "memory, size, link, rounds, width = map(int, sys.argv[1:6]); "
    "keys = [bytes.fromhex(each) for each in sys.argv[6:]]; "
    "sums = t.TestSums(memory, size, 0, 1, 1, 2, [link], *keys); "
    "sums.add_up(1, width); sums.add_up(rounds - 1, width)"
)
_ECHOES = (
    "import socket, sys; link = socket.socket(fileno=int(sys.argv[1])); size = int(sys.argv[2])\n"
    "for _ in range(int(sys.argv[3])): link.sendall(link.recv(size, socket.MSG_WAITALL))"
)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a TCP connection that sends at once."""
    with socket.create_server((LOCAL_HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        for each in (ours, theirs):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ours, theirs


def memory() -> int:
    """Return memory for the ranks of a node."""
    descriptor = os.memfd_create("ranks")
    os.ftruncate(descriptor, MEMORY_BYTES)
    return descriptor


def start(code: str, descriptors: list[int], *words: object) -> subprocess.Popen[bytes]:
    """Start the process of the other end."""
    command = [sys.executable, "-c", code, *map(str, words)]
    environment = child_environment({"PYTHONPATH": child_module_path()})
    return subprocess.Popen(command, pass_fds=descriptors, env=environment)


def measure_link() -> float:
    """Return the seconds of a sum of two nodes."""
    from tests.backends.native import _native_test

    keys = secrets.token_bytes(32), secrets.token_bytes(32)
    with connected() as (ours, theirs):
        own, other = memory(), memory()
        link = theirs.fileno()
        words = (other, MEMORY_BYTES, link, ROUNDS, SUM_WIDTH, keys[1].hex(), keys[0].hex())
        process = start(_ADDS, [other, link], *words)
        node = _native_test.TestSums(own, MEMORY_BYTES, 0, 1, 0, 2, [ours.detach()], *keys)
        node.add_up(1, SUM_WIDTH)  # until the other one is there
        seconds, wrong = node.add_up(ROUNDS - 1, SUM_WIDTH)
        assert not wrong, f"{wrong} sums are wrong"
        process.wait()
        os.close(own)
        os.close(other)
    return seconds


def measure_echo() -> float:
    """Return the seconds of as many bytes over a connection to another process and back."""
    size = 4 * SUM_WIDTH
    with connected() as (ours, theirs):
        process = start(_ECHOES, [theirs.fileno()], theirs.fileno(), size, ROUNDS)
        data = bytes(size)
        began = time.monotonic()
        for turn in range(ROUNDS):
            if turn == 1:  # the other one is there
                began = time.monotonic()
            ours.sendall(data)
            ours.recv(size, socket.MSG_WAITALL)
        taken = time.monotonic() - began
        process.wait()
    return taken / (ROUNDS - 1)


@contextmanager
def other_node(model: str, options: dict[str, Any]) -> Iterator[None]:
    """Run the node that is not the first."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--headless", "--node-rank", "1"]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def compare(model: str, rounds: int) -> None:
    """Measure both engines in turns, and print a line for each case."""
    settings: dict[str, Any] = {
        "num_threads": 1,
        "tensor_parallel_size": 2,
        "tensor_parallel_form": "sums",
    }
    sizes: dict[str, Any] = {
        "enable_prefix_caching": False,
        "max_num_seqs": STREAMS,
        "max_model_len": 1024,
    }
    cases = {
        "decode, 1 stream": generate(1, 16, 48),
        f"prompt of {PROMPT}": generate(1, PROMPT, 1),
        f"{STREAMS} streams": generate(STREAMS, 16, 32),
    }
    with ExitStack() as stack:
        secret = Path(stack.enter_context(tempfile.TemporaryDirectory()), "secret")
        secret.write_text(secrets.token_hex(32))
        with socket.create_server((LOCAL_HOST, 0)) as free:
            port = free.getsockname()[1]
        nodes = {"nnodes": 2, "master_port": port, "link_secret_file": str(secret)}
        stack.enter_context(other_node(model, {**settings, **nodes}))
        one = stack.enter_context(LLM(model, **settings, **sizes))
        two = stack.enter_context(LLM(model, **settings, **sizes, **nodes))
        for name, run in cases.items():
            for llm in (one, two):
                run(llm)  # warm
            found = [(run(one), run(two)) for _ in range(rounds)]
            ratios = [of_nodes / of_machine for of_machine, of_nodes in found]
            texts = run.texts  # type: ignore[attr-defined]
            what = "the same text" if all(each == texts[0] for each in texts) else "OTHER TEXT"
            print(
                f"{name:18} {statistics.median(first for first, _ in found):8.1f} tokens/s on one "
                f"machine, {statistics.median(second for _, second in found):8.1f} on two nodes: "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); {what}",
                flush=True,
            )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--make-1b", action="store_true")
    asked = parser.parse_args()
    cases: dict[str, Callable[[], float]] = {
        "a sum in memory": partial(measure_sum, 2),
        "a sum over a sealed connection": measure_link,
        "8 KiB over a connection and back": measure_echo,
    }
    for name, measure in cases.items():
        found = [measure() * 1e6 for _ in range(asked.rounds)]
        print(f"{name}: {statistics.median(found):.1f} µs ({min(found):.1f} to {max(found):.1f})")
    if asked.model is None:
        return
    if asked.make_1b:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model))
    compare(asked.model, asked.rounds)


if __name__ == "__main__":
    main()
