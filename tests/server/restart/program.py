"""A server in a process of its own, over a core without a model, for tests of its restart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
LIMIT = 300.0  # seconds that a test waits at most
BODY = {"prompt": "The quick", "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
BODY |= {"temperature": 0}


def main() -> None:
    """Serve with the settings of the first argument, a JSON object; the second is a directory."""
    from octavo.options.server import ServerSettings
    from octavo.server.lifecycle import ServerLifecycle, run
    from octavo.transport.restart.given import check_addresses
    from tests.server.engine import FakeEngine

    settings = json.loads(sys.argv[1])
    for name in ("uds", "admin_socket", "handover"):
        if name in settings:
            settings[name] = Path(settings[name])
    config = ServerSettings(**{"ready_seconds": LIMIT, "drain_seconds": LIMIT, **settings})
    check_addresses(config)

    def say(life: ServerLifecycle) -> None:
        print("ready", life.port, flush=True)

    code = run(config, FakeEngine(Path(sys.argv[2])), say)
    print("ended", code, flush=True)
    os._exit(code)


class Process:
    """A server's process, which has said that it is ready."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, Any],
        environment: dict[str, str] | None = None,
        passed: int | None = None,  # a descriptor that it gets as systemd's
    ) -> None:
        command = [sys.executable, "-m", "tests.server.restart.program"]
        command += [json.dumps(settings), str(directory)]
        if environment:
            command = ["env", *map("=".join, environment.items()), *command]
        if passed is not None:
            command = [sys.executable, "-c", _AS_SYSTEMD, str(passed), *command]
        self.popen = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=() if passed is None else (passed,),
        )
        assert self.popen.stdout is not None
        words = self.popen.stdout.readline().split()
        assert words, "the server has ended"
        assert words[0] == "ready"
        self.port = int(words[1])

    def stop(self) -> None:
        """Ask it to end."""
        self.popen.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return its exit code."""
        return self.popen.wait(LIMIT)

    def close(self) -> None:
        """Kill it if it runs."""
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


_AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""


class Load:
    """Clients that ask one request after the other, on kept connections and on new ones."""

    def __init__(self, base: str, uds: str | None = None) -> None:
        self._base, self._uds = base, uds
        self._is_over = threading.Event()
        self._lock = threading.Condition()
        self.answers: list[Any] = []
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in range(6)]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until so many further requests have ended."""
        with self._lock:
            most = len(self.answers) + len(self.errors) + count
            assert self._lock.wait_for(lambda: len(self.answers) + len(self.errors) >= most, LIMIT)

    def close(self) -> None:
        """End after the requests that run."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, index: int) -> None:
        keeps, streams = index % 2 == 0, index % 3 == 0
        headers = {} if keeps else {"connection": "close"}
        with self._client() as client:
            while not self._is_over.is_set():
                try:
                    found = self._answer(client, headers, streams)
                except Exception as error:
                    self._note(self.errors, repr(error))
                else:
                    self._note(self.answers, found)

    def _client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=self._uds)
        return httpx.Client(base_url=self._base, timeout=LIMIT, transport=transport)

    def _answer(self, client: httpx.Client, headers: dict[str, str], streams: bool) -> Any:
        body = {**BODY, "stream": streams}
        response = client.post("/v1/completions", json=body, headers=headers)
        response.raise_for_status()
        if not streams:
            return response.json()["choices"][0]["token_ids"]
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        return [token for choice in choices for token in choice["token_ids"] or ()]

    def _note(self, found: list[Any], what: Any) -> None:
        with self._lock:
            found.append(what)
            self._lock.notify_all()


@contextlib.contextmanager
def load_on(base: str, uds: str | None = None) -> Iterator[Load]:
    """Ask all the time; at the end every answer must have been the same, and none have failed."""
    load = Load(base, uds)
    try:
        yield load
    finally:
        load.close()
    assert load.errors == []
    assert load.answers
    assert all(each == load.answers[0] for each in load.answers)
    assert len(load.answers[0]) == BODY["max_tokens"]


if __name__ == "__main__":
    main()
