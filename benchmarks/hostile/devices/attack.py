"""Strangers at the ports through which ranks with devices of their own meet.

While an engine starts, its ranks listen at ports of this machine without a key. Callers that write
by chance, or nothing, must not change a token, nor keep an engine from ending or starting in time;
and no such port may be reached from another machine.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from benchmarks.hostile.attack import COMPLETIONS, WATCH_KEY
from benchmarks.served.command import port_of, running
from tests.api.tiny import make_model

LIMIT_SECONDS = 300.0
MOST_CALLERS = 200  # open at once, of all ports
_LISTENS = "0A"  # in the kernel's table of connections
_ASKED = {"prompt": "Hi", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
_NUM_ANSWERS = 5


class Strangers:
    """Callers of all ports at which the processes of a server listen, but for its own."""

    def __init__(self, process: int, seed: int) -> None:
        self._process, self._chance = process, random.Random(seed)
        self._callers: list[socket.socket] = []
        self._is_over = Event()
        self._thread = Thread(target=self._call)
        self.own_port = 0  # of the server, once it is known
        self.called: set[int] = set()
        self.public: set[str] = set()

    def start(self) -> None:
        """Start the thread that calls whatever port it finds."""
        self._thread.start()

    def stop(self) -> None:
        """End the calls, and close all connections."""
        self._is_over.set()
        self._thread.join()
        for caller in self._callers:
            caller.close()

    def _call(self) -> None:
        while not self._is_over.wait(0.01):
            for address, port in _listening(_with_children(self._process)):
                if not address.startswith("127."):
                    self.public.add(f"{address}:{port}")
                elif port != self.own_port:
                    self._call_once(port)

    def _call_once(self, port: int) -> None:
        if len(self._callers) >= MOST_CALLERS:
            self._callers.pop(self._chance.randrange(MOST_CALLERS)).close()
        caller = socket.socket()
        caller.settimeout(1)
        self._callers.append(caller)
        with suppress(OSError):
            caller.connect(("127.0.0.1", port))
            self.called.add(port)
            caller.sendall(self._chance.randbytes(self._chance.choice((0, 1, 8, 64, 70_000))))


def attack_devices(directory: Path, seed: int) -> list[str]:
    """Return what is wrong with an engine of two ranks on devices while strangers call them."""
    directory.mkdir(parents=True)
    make_model(directory)
    quiet, _ = _texts(directory, seed, has_strangers=False)
    texts, faults = _texts(directory, seed, has_strangers=True)
    if texts and set(texts) != set(quiet):
        faults.append(f"the answer is {texts[0]!r} instead of {quiet[0]!r}")
    return [f"devices: {fault}" for fault in faults]


def _texts(directory: Path, seed: int, *, has_strangers: bool) -> tuple[list[str], list[str]]:
    """Return the answers of a server, and what is wrong; one that does not start has none."""
    log, faults, texts = directory / "log", list[str](), list[str]()
    words = ["serve", str(directory), "--port", "0", "--device", "fake", "--api-key", WATCH_KEY]
    words += ["--tensor-parallel-size", "2", "--dtype", "float32"]
    with (
        log.open("w") as file,
        running(*words, log=file.fileno(), environment={"OMP_NUM_THREADS": "1"}) as process,
    ):
        strangers = Strangers(process.pid, seed)
        if has_strangers:
            strangers.start()
        began = time.monotonic()
        try:
            with suppress(AssertionError):  # it has not started
                strangers.own_port = port_of(process)
                texts = [_answer(strangers.own_port) for _ in range(_NUM_ANSWERS)]
        finally:
            if has_strangers:
                strangers.stop()
        if time.monotonic() - began > LIMIT_SECONDS:
            faults.append(
                f"{time.monotonic() - began:.0f} s for a start and {_NUM_ANSWERS} answers"
            )
        process.send_signal(signal.SIGTERM)
        code = process.wait(LIMIT_SECONDS)
    if texts and code:
        faults.append(f"the exit code is {code}")
    if "Traceback" in log.read_text():
        faults.append(f"the log has a traceback: {log.read_text()[-2000:]}")
    faults += [f"{place} can be reached from elsewhere" for place in sorted(strangers.public)]
    if has_strangers and not strangers.called:
        faults.append("no port of a rank was found, so that nothing was tried")
    return texts, faults


def _answer(port: int) -> str:
    """Return the text of one answer; raise OSError for an error of the server."""
    headers = {"Authorization": f"Bearer {WATCH_KEY}", "Content-Type": "application/json"}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{COMPLETIONS}", json.dumps(_ASKED).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=LIMIT_SECONDS) as answer:
        text: str = json.load(answer)["choices"][0]["text"]
    return text


def _with_children(process: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    found = [process]
    for each in found:
        with suppress(OSError):
            for listed in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, listed.read_text().split())
    return found


def _listening(processes: list[int]) -> Iterator[tuple[str, int]]:
    """Yield the addresses and ports at which these processes listen for others."""
    owned = set()
    for process in processes:
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    owned.add(str(descriptor.readlink()))
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and f"socket:[{inode}]" in owned:
                host, _, port = local.partition(":")
                words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
                yield socket.inet_ntop(family, b"".join(words)), int(port, 16)
