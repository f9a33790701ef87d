"""One line a record, with its time, the same whoever writes it."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.observe.log import LogHandler, set_up_log

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) ([a-z.]+): (.*)\n")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("octavo")
    handlers, level = root.handlers[:], ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def test_a_line_says_when_how_grave_who_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # the second does not make two lines of one
        set_up_log("INFO")
    logging.getLogger("octavo.x").info("ready after %d s", 2)
    logging.getLogger("octavo.x").debug("unheard")
    logging.getLogger("other").info("unheard")
    logging.getLogger("other").warning("heard")
    said = LINE.findall(capsys.readouterr().err)
    assert said == [("INFO", "octavo.x", "ready after 2 s"), ("WARNING", "other", "heard")]


def test_the_time_is_that_of_greenwich() -> None:
    record = logging.LogRecord("octavo", logging.INFO, "", 0, "x", (), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    assert LogHandler().format(record) == "2023-11-14T22:13:20.250Z INFO octavo: x"


def test_a_log_that_cannot_be_written_is_dropped() -> None:
    program = (
        "import logging; from octavo.observe.log import set_up_log; set_up_log('INFO')\n"
        "logging.getLogger('octavo').info('to nobody'); print('on it goes')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.stdout == b"on it goes\n"
