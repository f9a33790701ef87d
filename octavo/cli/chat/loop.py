"""The conversation at a terminal: it reads lines and a few commands, and survives Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Protocol

from octavo.core.sampling_params import RequestError

HELP = """\
/clear   forget the conversation
/exit    leave (Ctrl-D and two Ctrl-C do so too)
/help    show this text
\"\"\"      begins and ends a text of several lines
"""
PROMPT, CONTINUED = ">>> ", "... "
QUOTES = '"""'


class Partner(Protocol):
    """The model's side of the conversation."""

    def answer(self, prompt: str) -> str:
        """Write the answer to a message."""

    def forget(self) -> None:
        """Start a new conversation."""


def chat(partner: Partner, read: Callable[[str], str] = input) -> int:
    """Run the conversation until its user leaves."""
    with contextlib.suppress(ImportError):  # lets the user edit lines
        import readline  # noqa: F401
    sys.stdout.write("Ask something; /help lists the commands.\n")
    is_leaving = False
    while True:
        try:
            text = _read_text(read)
            is_leaving = False
            if text and not _command(text, partner):
                partner.answer(text)
        except KeyboardInterrupt:
            if is_leaving:
                raise
            is_leaving = True
            sys.stdout.write("\n(Ctrl-C again to leave)\n")
        except EOFError:
            sys.stdout.write("\n")
            return 0
        except RequestError as error:
            sys.stderr.write(f"{error}\n")


def _read_text(read: Callable[[str], str]) -> str:
    """Read a line, or the lines between quotes."""
    line = read(PROMPT).strip()
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read(CONTINUED))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()


def _command(text: str, partner: Partner) -> bool:
    """Execute a command, and return whether the text was one."""
    match text:
        case "/clear":
            partner.forget()
            sys.stdout.write("Started a new conversation.\n")
        case "/exit" | "/quit" | "/bye":
            raise EOFError
        case _ if text.startswith("/") and " " not in text:
            sys.stdout.write(HELP)
        case _:
            return False
    return True
