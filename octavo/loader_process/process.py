"""The main program of the loader's process: `python -m octavo.loader_process.process`.

Only the front end starts it, beside an engine that can open no file any more. It answers the
engine's requests one after the other, and ends with the engine. It may open files below the
directories of its arguments for reading, and nothing else; a file that takes too long, or that
makes this process fail, costs this process alone. The front end then starts another.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path

from octavo.confine.landlock import restrict_reading
from octavo.confine.process import confine, give_up_privileges
from octavo.confine.worker import limit_memory
from octavo.loader_process.messages import (
    FILE_SECONDS,
    MAX_FILE_BYTES,
    FileRead,
    FileRefused,
    LoaderProtocolError,
    ReadFile,
    close_all,
    decode_request,
    printable,
    receive,
    send,
)
from octavo.loader_process.read import Directories, FileRefusedError, read_file
from octavo.loader_process.sealed import SpareMemory
from octavo.observe.log import TEXT, set_up_log
from octavo.observe.memory_bill import MAX_SPARE_BYTES

log = logging.getLogger(__name__)

# For the mapped copy, and what is made of its header.
MEMORY_BYTES = MAX_FILE_BYTES + (2 << 30)
QUIET_SECONDS = 0.05  # without a request, before spare memory is taken
NO_MEMORY, FAILED = "no_memory", "failed"


def main(argv: list[str]) -> int:
    """Answer requests until the engine has ended; return the exit status."""
    options = _parse(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end handles Ctrl-C
    set_up_log(options.log_level, form=options.log_format)
    with contextlib.suppress(OSError):  # not every container allows it
        Path("/proc/self/oom_score_adj").write_text("1000")
    give_up_privileges()
    connection = socket.socket(fileno=options.socket)
    directories = Directories(options.directory)
    limit_memory(MEMORY_BYTES, is_final=True)
    _confine(directories)
    return serve(connection, directories, options.seconds)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="octavo.loader_process.process", description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="a descriptor")
    parser.add_argument("--seconds", type=float, default=FILE_SECONDS, help="for each file")
    parser.add_argument("--log-level", type=int, default=logging.INFO)
    parser.add_argument("--log-format", default=TEXT)
    parser.add_argument("--directory", type=Path, action="append", required=True)
    return parser.parse_args(argv)


def _confine(directories: Directories) -> None:
    """Give up all but reading below the directories, and what answers need."""
    missing = restrict_reading(directories.roots)
    if missing is not None:
        log.warning("the loader's process could read other files than the named ones: %s", missing)
    missing = confine(may_read=True, may_share=True)
    if missing is not None:
        log.warning("the loader's process is not confined: %s", missing)


def serve(connection: socket.socket, directories: Directories, seconds: float) -> int:
    """Answer one request after the other; each may take so many seconds."""
    spare = SpareMemory(MAX_SPARE_BYTES)
    while True:
        if not spare.is_there and not select.select([connection], [], [], QUIET_SECONDS)[0]:
            spare.fill()
        try:
            data, descriptors = receive(connection)
            close_all(descriptors)  # an engine has nothing to pass
            if not data:
                return 0
            request = decode_request(data)
        except LoaderProtocolError as error:
            log.error("the loader ends, since its engine broke the protocol: %s", error)
            return 1
        # The signal ends this process whatever it does; the front end reports that to the engine.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            _answer(connection, directories, request, spare)
        except BrokenPipeError:  # the engine has ended
            return 0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(
    connection: socket.socket, directories: Directories, request: ReadFile, spare: SpareMemory
) -> None:
    number, path = request.number, Path(request.path)
    try:
        opened = read_file(directories, path, request.beside, request.names, spare)
    except FileRefusedError as error:
        send(connection, FileRefused(number, error.code, printable(str(error))), ())
        return
    except MemoryError:
        why = f"a file needs more memory than the {MEMORY_BYTES:,} bytes of the loader"
        send(connection, FileRefused(number, NO_MEMORY, why), ())
        return
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        log.error("the loader failed at a file: %s", why)
        send(connection, FileRefused(number, FAILED, why), ())
        return
    try:
        sizes = [os.fstat(descriptor).st_size for descriptor in opened]
        send(connection, FileRead(number, *sizes), opened)
    finally:
        close_all(opened)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
