"""A plugin of pytest for llama.cpp's tests: nothing is downloaded, and servers are kept.

A server goes on where the next test starts one with the same settings; its prefix cache is
emptied in between. Tests of what a server counts or how it starts get one of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.llama.reasons import reason_of
from tests.llama.server import words_of
from tests.llama.standins import FILES

_KEPT_IN = (
    *("test_completion", "test_chat_completion", "test_template", "test_embedding"),
    *("test_compat_anthropic", "test_compat_oai_responses", "test_tokenize", "test_infill"),
    *("test_rerank", "test_tool_call", "test_vision_api", "test_ignore_eos"),
)
_SECONDS = 300
_WITHOUT_EFFECT = ("--jinja", "--cont-batching", "--kv-unified")


def settings_of(words: list[str]) -> list[str]:
    """Return the words of a command line that mean something to `octavo serve`."""
    left = [each for each in words_of(Path(), words[1:]) if each not in _WITHOUT_EFFECT]
    for flag in ("--ubatch-size", "-fa"):
        while flag in left:
            at = left.index(flag)
            del left[at : at + 2]
    return left


class Wget(types.ModuleType):
    """The module by which their tools download files: it copies stand-ins."""

    def __init__(self, folder: Path = Path()) -> None:
        super().__init__("wget")
        self.folder = folder

    def download(self, url: str, out: str) -> None:
        """Put the stand-in of a file where a test wants it."""
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / FILES[url.rpartition("/")[2]], out)


# Their tools import it before this plugin is configured.
_WGET = Wget()
sys.modules["wget"] = _WGET


class Kept:
    """A process of the tests, which goes on when they end it, for as long as it is `kept`."""

    def __init__(
        self, words: list[str], socket: Path, options: dict[str, Any], *, is_kept: bool
    ) -> None:
        self.words = words
        self.is_kept = is_kept
        self._socket = socket
        admin = ["--admin-socket", str(socket)] if is_kept else []
        self._process = subprocess.Popen([*words, *admin], **options)
        self.pid = self._process.pid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def is_running(self) -> bool:
        """Return whether the process could serve a further test."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """End the process, unless it is kept."""
        if not self.is_kept:
            self._process.terminate()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, unless the process is kept."""
        return 0 if self.is_kept else self._process.wait(timeout)

    def forget(self) -> None:
        """Drop what the prefix cache has."""
        transport = httpx.HTTPTransport(uds=str(self._socket))
        with httpx.Client(transport=transport, base_url="http://localhost") as operator:
            operator.post("/reset_prefix_cache").raise_for_status()

    def end(self) -> None:
        """End the process for good."""
        if self.is_running():
            self._process.terminate()
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Keeper:
    """The server that is kept, and the module `subprocess` as llama.cpp's tests see it."""

    def __init__(self, folder: Path, is_ours: bool) -> None:
        self._folder = folder
        self.is_ours = is_ours
        self._kept: Kept | None = None
        self.may_keep = False

    def start(self, words: list[str], **options: Any) -> Any:
        """Return the kept server, if its settings are these, or start a process."""
        kept, settings = self._kept, settings_of(words)
        is_same = kept is not None and settings_of(kept.words) == settings
        if kept is not None and is_same and kept.is_running() and self.may_keep:
            kept.forget()
            return kept
        self.end()
        if not self.is_ours:
            return subprocess.Popen(words, **options)
        made = Kept(words, self._folder / "admin", options, is_kept=self.may_keep)
        if self.may_keep:
            self._kept = made
        return made

    def end(self) -> None:
        """End the kept server."""
        if self._kept is not None:
            self._kept.end()
            self._kept = None

    def module(self) -> types.ModuleType:
        """Return what the tests import as `subprocess`."""
        module = types.ModuleType("subprocess")
        module.__dict__.update(subprocess.__dict__)
        module.Popen = self.start  # type: ignore[attr-defined]
        return module


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the directory for sockets, and whether the server is Octavo."""
    parser.addoption("--llama-folder")
    parser.addoption("--llama-theirs", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Make the keeper of this run."""
    folder = Path(config.getoption("--llama-folder"))
    _WGET.folder = folder
    keeper = Keeper(folder, not config.getoption("--llama-theirs"))
    config.keeper = keeper  # type: ignore[attr-defined]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Change their tools: models are there, and processes are started by the keeper."""
    utils: Any = sys.modules["utils"]
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.subprocess = session.config.keeper.module()  # type: ignore[attr-defined]
    start = utils.ServerProcess.start
    utils.ServerProcess.start = partialmethod(_start, start)
    ask = utils.ServerProcess.make_request
    utils.ServerProcess.make_request = partialmethod(_ask, ask)


def _start(server: Any, start: Any, timeout_seconds: int = _SECONDS) -> None:
    """Start a server with as much time as a busy machine may need."""
    start(server, max(timeout_seconds, _SECONDS))


def _ask(server: Any, ask: Any, *words: Any, **fields: Any) -> Any:
    """Send a request; the names of the answer's headers have no case, as HTTP says."""
    response = ask(server, *words, **fields)
    response.headers = httpx.Headers(response.headers)
    return response


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what there is not; say whether this test's server may be an earlier one."""
    name = f"{item.path.name}::{item.name}"
    keeper: Keeper = item.config.keeper  # type: ignore[attr-defined]
    keeper.may_keep = item.path.stem in _KEPT_IN
    if keeper.is_ours and (why := reason_of(name)):
        pytest.skip(why)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the kept server."""
    config.keeper.end()  # type: ignore[attr-defined]
