"""Shows what a running server is doing: its queues, its engines, its KV memory and its requests.

At a terminal it is one page, which is drawn anew twice a second until Ctrl-C; a pipe gets a line
for each frame. In the bars of requests `=` is cached, `#` computed, `>` generated and `.` to come.
The key that a server wants is read from OCTAVO_API_KEY. With several keys, requests of others are
counted and not listed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo import env
from octavo.cli.commands import OK
from octavo.cli.parsing import Parser

if TYPE_CHECKING:
    from octavo.route.address import Address
    from octavo.serving.live.schema import LiveFrame

DEFAULT_URL = "http://127.0.0.1:8000"
RETRY_SECONDS = 1.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, no cursor
_PLAIN_MAP = str.maketrans("░▒▓█", ".:+#")
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        default=DEFAULT_URL,
        help=f"the server (default: {DEFAULT_URL}), also as the base URL of its clients",
    )
    parser.add_argument("--once", action="store_true", help="print one page, and end")
    parser.add_argument("--json", action="store_true", help="print each frame as a line of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Read the stream until the end, and show each frame."""
    from octavo.route.address import read_address

    address = read_address(arguments.url)
    key = env.api_keys().partition(",")[0].strip()
    if arguments.once:
        return _once(address, key, as_json=arguments.json)
    if arguments.json or not sys.stdout.isatty():
        return _lines(address, key, as_json=arguments.json)
    return _screen(address, key)


def _once(address: Address, key: str, *, as_json: bool) -> int:
    """Print the second frame: rates are differences between two."""
    from octavo.cli.top.ask import LostError
    from octavo.cli.top.screen import page
    from octavo.cli.top.stream import frames

    before: LiveFrame | None = None
    for frame, data in frames(address, key):
        if before is None:
            before = frame
            continue
        width = shutil.get_terminal_size((100, 0)).columns
        text = data.decode() if as_json else "\n".join(page(frame, before, width, 1000))
        sys.stdout.write(f"{_shown(text)}\n")
        return OK
    raise LostError(f"the server at {address.url} ended its stream; is it shutting down?")


def _lines(address: Address, key: str, *, as_json: bool) -> int:
    from octavo.cli.top.ask import LostError
    from octavo.cli.top.screen import line
    from octavo.cli.top.stream import frames

    before: LiveFrame | None = None
    while True:
        count = 0
        for count, (frame, data) in enumerate(frames(address, key), 1):  # noqa: B007
            text = data.decode() if as_json else line(frame, before)
            sys.stdout.write(f"{_shown(text)}\n")
            sys.stdout.flush()
            before = frame
        if not count:  # a stream ends after an hour, and another follows
            raise LostError(f"the server at {address.url} ended its stream; is it shutting down?")


def _screen(address: Address, key: str) -> int:
    """Draw each frame over the one before, and wait for a server that goes away."""
    from octavo.cli.top.screen import page

    before: LiveFrame | None = None
    is_open = False
    try:
        for frame in _until_interrupted(address, key):
            if not is_open:  # an error of the first stream belongs on the usual screen
                sys.stdout.write(_ENTER)
                is_open = True
            width, height = shutil.get_terminal_size()
            if isinstance(frame, str):
                lines, before = [frame[:width]], None
            else:
                lines, before = page(frame, before, width, height - 1), frame
            text = "".join(f"{each}{_REST_OF_LINE}\r\n" for each in lines)
            sys.stdout.write(f"{_HOME}{_shown(text)}{_REST}")
            sys.stdout.flush()
    except KeyboardInterrupt:  # the way to leave
        pass
    finally:
        if is_open:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
    return OK


def _shown(text: str) -> str:
    """Return a text in the characters that standard output has; a map has others of its own."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN_MAP).encode(encoding, "replace").decode(encoding)
    return text


def _until_interrupted(address: Address, key: str) -> Iterator[LiveFrame | str]:
    """Yield frames, and a message while there are none; only the first stream may fail."""
    from octavo.cli.top.ask import LostError
    from octavo.cli.top.stream import frames

    was_there = False
    while True:
        try:
            for frame, _ in frames(address, key):
                was_there = True
                yield frame
        except LostError as error:
            if not was_there:
                raise
            yield f"{error} (trying again; Ctrl-C leaves)"
        time.sleep(RETRY_SECONDS)
