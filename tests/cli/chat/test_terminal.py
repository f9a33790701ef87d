"""`octavo run` at a real pseudo terminal, against a fake server: editing, Ctrl-C, Ctrl-D."""

from __future__ import annotations

import codecs
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo.env import child_environment
from tests.cli.chat.fake_server import HOLD, LIMIT, delta, serving, texts

# Makes standard input the terminal of the process's session, so that Ctrl-C is a signal.
_AT_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
UP, CTRL_C, CTRL_D = "\x1b[A", "\x03", "\x04"


class Terminal:
    """A process at a pseudo terminal, and what it has shown."""

    def __init__(self, *words: str) -> None:
        self._side, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, "-W", "ignore", "-m", "octavo", "run", *words],
            stdin=other,
            stdout=other,
            stderr=other,
            env=child_environment({"TERM": "xterm", "INPUTRC": os.devnull}),
            start_new_session=True,
        )
        os.close(other)
        self.shown = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until a text is shown behind what was waited for before; return what is there."""
        end = time.monotonic() + LIMIT
        while text not in self.shown[self._seen :]:
            ready, _, _ = select.select([self._side], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} is not shown: {self.shown!r}"
            try:
                data = os.read(self._side, 65536)
            except OSError:  # the process has ended
                data = b""
            assert data, f"it ended without {text!r}: {self.shown!r}"
            self.shown += self._decode(data)
        start, self._seen = self._seen, self.shown.index(text, self._seen) + len(text)
        return self.shown[start : self._seen]

    def interrupt_at_prompt(self) -> None:
        """Press Ctrl-C when the process waits for a key.

        Between the prompt and that wait, Python's line editor would notice it with the next key.
        """
        end = time.monotonic() + LIMIT
        state = Path(f"/proc/{self.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "S":  # it is not asleep
            assert time.monotonic() < end
            time.sleep(0.002)
        self.type(CTRL_C)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._side)


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    made = Terminal(*words)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_conversation_at_a_terminal() -> None:
    held = [delta(content="Once **upon** a"), HOLD]
    scripts = texts("`on", "e`\x1b[2J"), held, texts("three")
    with serving(*scripts) as server, terminal("tiny", "--url", server.url) as user:
        user.wait_for(">>> ")
        user.type("first\n")
        user.wait_for("\x1b[36m`one`\x1b[0m\ufffd[2J")  # styled, and harmless
        user.wait_for(">>> ")
        user.type("second\n")
        user.wait_for("\x1b[1m**upon**\x1b[0m a")
        assert server.holds.wait(LIMIT)
        user.type(CTRL_C)
        user.wait_for("(stopped)")
        assert server.was_left.wait(LIMIT)  # the server need not go on
        user.wait_for(">>> ")
        user.type('"""third\n')
        user.wait_for("... ")
        user.type('line"""\n')
        user.wait_for("three")
        user.wait_for(">>> ")
        user.type("/he\t\n")  # is completed
        user.wait_for("/set NAME VALUE")
        user.wait_for(">>> ")
        user.type(UP + UP + UP + UP + UP + "!\n")  # over four lines to the first message
        user.wait_for("three")
        user.wait_for(">>> ")
        user.type(CTRL_D)
        assert user.process.wait(LIMIT) == 0
    contents = [each["content"] for each in server.bodies[-1]["messages"]]
    assert contents == [
        *("first", "`one`\x1b[2J", "second", "Once **upon** a", "third\nline", "three", "first!"),
    ]


@pytest.mark.slow
def test_ctrl_c_twice_at_the_prompt_leaves() -> None:
    with serving(texts("a")) as server, terminal("tiny", "--url", server.url) as user:
        user.wait_for(">>> ")
        user.interrupt_at_prompt()
        user.wait_for("to leave")
        user.wait_for(">>> ")
        user.interrupt_at_prompt()
        assert user.process.wait(LIMIT) == 130


@pytest.mark.slow
def test_pipes_get_the_answer_and_nothing_else() -> None:
    with serving(texts("**one**", " \x1b[2J")) as server:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", "run", "tiny", "sum up", "--url", server.url],
            input=b"a text",
            capture_output=True,
            check=True,
            env=child_environment({}),
        )
    assert (done.stdout, done.stderr) == (b"**one** \x1b[2J\n", b"")
    assert server.bodies[0]["messages"][0]["content"] == "sum up\n\na text"
