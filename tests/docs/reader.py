"""A reader who types what a page says, with small models of random weights."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from octavo.env import child_environment
from octavo.loader.pinned import ALIASES
from tests.docs.models import (
    make_adapter,
    make_chat_model,
    make_embedding_model,
    make_gguf_model,
)
from tests.docs.pages import Block, blocks
from tests.how_to.follow import ROOT

DEFAULT_PORT = "8000"
# Ports that pages name; the servers of the tests have others, which are free.
_PORT = re.compile(r"(?<=:)(8000|8001|8002|11434)\b")
_PORT_FLAG = re.compile(r"--port[ =](\d+)")
_SERVE = re.compile(r"^(?:\w+=\S+ )*octavo (?:serve|route)\b")
# Variables of `octavo serve`: a free port, and time enough on a busy machine.
_OF_SERVERS = {"OCTAVO_PORT": "0", "OCTAVO_READY_SECONDS": "60"}
# Commands that ask the server at the default port, unless they name another one.
_ASKS_DEFAULT = re.compile(r"\boctavo (?:top|bench serve|explain)\b(?! http://)")


class Reader:
    """Follows a page: its files, commands and programs, and the servers that these start."""

    def __init__(self, place: Path) -> None:
        self.place = place / "here"
        self.ports: dict[str, str] = {}
        self._servers: dict[str, tuple[subprocess.Popen[str], threading.Thread]] = {}
        self._environment = _environment(place)
        self.place.mkdir()
        make_adapter(self.place / "adapters" / "sql")
        make_gguf_model(place / "files" / "model.gguf")
        (self.place / "model.gguf").symlink_to(place / "files" / "model.gguf")

    def follow(self, page: str) -> int:
        """Type what the page says; return how many commands and programs were run."""
        try:
            return sum(self._follow(block) for block in blocks(page) if not block.reason)
        finally:
            for port in list(self._servers):
                self._stop(port)

    def _follow(self, block: Block) -> int:
        if block.file:
            path = self.place / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._with_ports(block.code), "utf-8")
        if block.kind == "python" and not block.file:
            self._run([sys.executable, "-c", self._with_ports(block.code)], block)
            return 1
        if block.kind != "console":
            return 0
        for command in block.commands:
            if _SERVE.search(command):
                self._serve(command, block)
            else:
                named = _ASKS_DEFAULT.sub(_with_address, command)
                self._run(["bash", "-euo", "pipefail", "-c", self._with_ports(named)], block)
        return len(block.commands)

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda match: self.ports.get(match[0], match[0]), text)

    def _run(self, words: list[str], block: Block) -> None:
        done = subprocess.run(
            words,
            cwd=self.place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        said = f"{block.page}: {words[-1]}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, said

    def _serve(self, command: str, block: Block) -> None:
        """Start a server at a free port, in place of one that had the page's port."""
        flag = _PORT_FLAG.search(command)
        port = flag[1] if flag else DEFAULT_PORT
        self._stop(port)
        command = _PORT_FLAG.sub("--port 0", self._with_ports(command)).rstrip("& ")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}" if "=" not in command.split()[0] else command],
            cwd=self.place,
            env=self._environment | (_OF_SERVERS if " serve" in f" {command}" else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        found = None
        for line in process.stdout:
            if found := re.search(r"http://[\w.:-]+:(\d+)", line):
                break
        if found is None:
            process.wait()
            raise AssertionError(f"{block.page}: {command} has not started")
        self.ports[port] = found[1]
        drain = threading.Thread(target=_drain, args=(process.stdout,))
        drain.start()
        self._servers[port] = process, drain
        _await_ready(found[1], process)

    def _stop(self, port: str) -> None:
        if port not in self._servers:
            return
        process, drain = self._servers.pop(port)
        for _ in range(2):  # the first lets requests finish
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        process.wait()
        drain.join()


def _with_address(command: re.Match[str]) -> str:
    """Return a command with the server's address, where it takes one."""
    flag = " --url" if command[0].endswith("explain") else ""
    return f"{command[0]}{flag} http://127.0.0.1:{DEFAULT_PORT}"


def _drain(output: IO[str]) -> None:
    """Read what a server prints, so that it never waits for a reader."""
    with output:
        for _ in output:
            pass


def _await_ready(port: str, process: subprocess.Popen[str]) -> None:
    """Wait until the server would answer a request."""
    while process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready").close()
            return
        time.sleep(0.02)
    raise AssertionError(f"the server ended with {process.returncode}")


def _cached(place: Path, name: str) -> Path:
    pin = ALIASES[name]
    return place / "cache" / "pypi" / f"{pin.package}-{pin.version}" / "files" / "model"


def _environment(place: Path) -> dict[str, str]:
    """Write the models and programs that pages name; return the variables that lead to them."""
    make_chat_model(_cached(place, "smollm2"))
    make_embedding_model(_cached(place, "minilm"))
    programs = place / "bin"
    programs.mkdir()
    python = sys.executable
    for name, line in (
        ("octavo", f'"{python}" -m octavo "$@"'),
        ("python", f'"{python}" "$@"'),
        # An answer that is an error must end the test.
        ("curl", f'"{shutil.which("curl")}" --fail-with-body --silent --show-error "$@"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\nexec {line}\n")
        (programs / name).chmod(0o755)
    home = place / "home"
    home.mkdir()
    return {
        "PATH": f"{programs}:{child_environment({})['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "OCTAVO_CACHE": str(place / "cache"),
        "OCTAVO_CPU_THREADS": "1",
        "OCTAVO_CPU_CALIBRATION": "off",
        "PYTHONPATH": str(ROOT),
        "OPENAI_API_KEY": "none",
    }
