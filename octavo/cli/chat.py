"""The conversation at a terminal: reads lines, knows a few commands, and survives Ctrl-C."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Protocol

from octavo.core.sampling_params import RequestError

HELP = """\
/clear   forget what was said
/exit    leave (so do Ctrl-D, and Ctrl-C twice)
/help    this
\"\"\"      begins and ends a text of several lines
"""
PROMPT, CONTINUED = ">>> ", "... "
QUOTES = '"""'


class Partner(Protocol):
    """Whoever answers."""

    def answer(self, prompt: str) -> str:
        """Write an answer."""

    def forget(self) -> None:
        """Begin anew."""


def chat(partner: Partner, read: Callable[[str], str] = input) -> int:
    """Until the person leaves."""
    with contextlib.suppress(ImportError):  # with it, lines can be edited
        import readline  # noqa: F401
    sys.stdout.write("Ask something; /help tells the rest.\n")
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
    """A line, or the lines between quotes."""
    line = read(PROMPT).strip()
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read(CONTINUED))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()


def _command(text: str, partner: Partner) -> bool:
    """Whether it was one."""
    match text:
        case "/clear":
            partner.forget()
            sys.stdout.write("Forgotten.\n")
        case "/exit" | "/quit" | "/bye":
            raise EOFError
        case _ if text.startswith("/") and " " not in text:
            sys.stdout.write(HELP)
        case _:
            return False
    return True
