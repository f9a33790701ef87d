"""The loop of a conversation at a terminal: lines, commands, Ctrl-C, and the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from octavo.cli.chat.commands import COMMANDS, Commands
from octavo.cli.chat.conversation import Conversation
from octavo.cli.chat.endpoint import EndpointError
from octavo.core.sampling_params import RequestError

PROMPT, CONTINUED = ">>> ", "... "
QUOTES = '"""'
MAX_CHARACTERS = 4 << 20  # of one message that is typed
MAX_HISTORY = 1000  # lines, which are kept until the end of the process only


def converse(conversation: Conversation, read: Callable[[str], str] = input) -> int:
    """Answer until the user leaves, and return the exit code."""
    _edit_lines()
    commands = Commands(conversation)
    conversation.display.line(f"{conversation.model}: ask something; /help lists the commands.")
    is_leaving = False
    while True:
        try:
            text, is_quoted = _read_text(read)
        except EOFError:
            sys.stdout.write("\n")
            return 0
        except KeyboardInterrupt:
            if is_leaving:
                raise
            is_leaving = True
            sys.stdout.write("\n(Ctrl-D, or Ctrl-C again, to leave)\n")
            continue
        except RequestError as error:
            conversation.display.note(str(error))
            continue
        except UnicodeDecodeError as error:
            conversation.display.note(
                f"what was typed is not {error.encoding.upper()} text (at byte {error.start:,}), "
                "and is not sent; type it again"
            )
            continue
        is_leaving = False
        _forget_old_lines()
        try:
            _answer(conversation, commands, text, is_command=not is_quoted and text[:1] == "/")
        except EOFError:
            return 0
        except KeyboardInterrupt:
            conversation.display.note("(stopped)")
        except (RequestError, EndpointError) as error:
            conversation.display.note(str(error))


def _answer(conversation: Conversation, commands: Commands, text: str, *, is_command: bool) -> None:
    if is_command:
        line = commands.execute(text)
        if line:
            conversation.display.line(line)
    elif text:
        conversation.ask(commands.with_files(text))  # if it fails, /retry has the files too


def _read_text(read: Callable[[str], str]) -> tuple[str, bool]:
    """Read a line or several; return the text, and whether it was between quotes."""
    line = read(PROMPT)
    if line.lstrip().startswith(QUOTES):
        lines = [line.lstrip().removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(_more(read, lines))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip(), True
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_more(read, lines))
    return "\n".join(lines).strip(), False


def _more(read: Callable[[str], str], lines: list[str]) -> str:
    if sum(map(len, lines)) > MAX_CHARACTERS:
        raise RequestError(f"a message has at most {MAX_CHARACTERS:,} characters; use /file")
    return read(CONTINUED)


def _edit_lines() -> None:
    """Let the user edit and repeat lines, and complete commands; nothing is written to a file."""
    with contextlib.suppress(ImportError):  # a Python without it
        import readline

        names = [*COMMANDS]

        def complete(text: str, state: int) -> str | None:
            found = [name for name in names if name.startswith(text)] if text[:1] == "/" else []
            return found[state] if state < len(found) else None

        readline.set_completer_delims(" \t\n")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


def _forget_old_lines() -> None:
    with contextlib.suppress(ImportError):
        import readline

        while readline.get_current_history_length() > MAX_HISTORY:
            readline.remove_history_item(0)
