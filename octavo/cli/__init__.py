"""The command line: finds the sub-command and passes it the remaining words.

Imports are lazy: `octavo --help` reads only this file and the table of commands, and only the
parser of the command that runs is built.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from octavo.cli.commands import COMMANDS, INTERRUPTED, OK, USAGE, Command, overview

# Other words for a command: a conversation is `run` without a prompt, and vLLM's `throughput`.
_ALSO = {
    "-V": "version",
    "--version": "version",
    "chat": "run",
    "bench-throughput": "bench-offline",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line (without the program's name) and return the exit code."""
    if words is not None:
        return _dispatch(list(words))
    code = _dispatch(sys.argv[1:])
    if code == INTERRUPTED:
        _leave()
    return code


def _leave() -> None:
    """End an interrupted process; a step that still runs, perhaps for seconds, is not awaited."""
    from contextlib import suppress
    from os import _exit
    from signal import SIG_IGN, SIGINT, signal
    from threading import active_count

    signal(SIGINT, SIG_IGN)  # a third Ctrl-C must not disturb the exit
    if active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader has gone, or it is closed
                stream.flush()
        _exit(INTERRUPTED)


def _dispatch(rest: list[str]) -> int:
    is_debugging = rest[:1] == ["--debug"]
    if is_debugging:
        del rest[0]
    if not rest or rest[0] in ("-h", "--help"):
        return _show_overview()
    if rest[0] == "help":
        return _dispatch([*rest[1:], "--help"] if rest[1:] else [])
    if "-".join(rest[:2]) in (*COMMANDS, *_ALSO):  # as in `octavo bench serve`
        rest[:2] = ["-".join(rest[:2])]
    name = _ALSO.get(rest[0], rest[0])
    command = COMMANDS.get(name)
    if command is None:
        return _unknown(name)
    if is_debugging:
        rest.append("--debug")
    return _execute(command, rest[1:])


def _show_overview() -> int:
    try:
        sys.stdout.write(overview())
        sys.stdout.flush()
    except OSError as error:
        from octavo.cli.execute import fail_to_write

        return fail_to_write(error)
    return OK


def _execute(command: Command, words: list[str]) -> int:
    from octavo.cli.execute import execute

    return execute(command, words)


def _unknown(name: str) -> int:
    from octavo.nearest import nearest  # here, for errors only

    near = nearest(name, COMMANDS)
    hint = f"did you mean `octavo {near[0]}`?" if near else f"there are: {', '.join(COMMANDS)}"
    kind = "option" if name.startswith("-") else "command"
    sys.stderr.write(f"octavo: there is no {kind} {name[:80]!r}; {hint}\n")
    return USAGE
