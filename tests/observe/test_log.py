"""Log lines: the time, the level, the logger and the message, the same from every process."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys

import pytest

from octavo.observe.log import LogHandler, set_up_log

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) ([a-z.]+): (.*)\n")


def test_a_record_is_one_line_with_time_level_logger_and_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    undo = [set_up_log("INFO") for _ in range(2)]  # a second call must not double the lines
    logging.getLogger("octavo.x").info("ready after %d s", 2)
    logging.getLogger("octavo.x").debug("unheard")
    logging.getLogger("other").info("unheard")
    logging.getLogger("other").warning("heard")
    for each in reversed(undo):
        each()
    said = LINE.findall(capsys.readouterr().err)
    assert said == [("INFO", "octavo.x", "ready after 2 s"), ("WARNING", "other", "heard")]


def test_the_set_up_can_be_undone(capsys: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("octavo")
    before = root.handlers[:], ours.level
    undo = set_up_log("DEBUG")
    assert (root.handlers, ours.level) != before
    undo()
    assert (root.handlers, ours.level) == before
    ours.info("after the end")
    assert not capsys.readouterr().err


def test_the_time_is_in_utc() -> None:
    record = logging.LogRecord("octavo", logging.INFO, "", 0, "x", (), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    assert LogHandler().format(record) == "2023-11-14T22:13:20.250Z INFO octavo: x"


def test_a_log_that_cannot_be_written_is_dropped() -> None:
    program = (
        "import logging; from octavo.observe.log import set_up_log; set_up_log('INFO')\n"
        "logging.getLogger('octavo').info('lost'); print('still running')"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert done.stdout == b"still running\n"


def test_a_line_of_json_is_an_object_whatever_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    undo = set_up_log("INFO", {"max_model_len": "--max-model-len"}, "json")
    logging.getLogger("octavo.x").info('a "quoted"\nline of %s', "ü")
    logging.getLogger("octavo.resolve").warning("max_model_len=%d is too large", 9)
    try:
        raise ValueError("because")
    except ValueError:
        logging.getLogger("octavo.x").exception("it failed")
    undo()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [each["level"] for each in lines] == ["INFO", "WARNING", "ERROR"]
    assert [each["message"] for each in lines] == [
        'a "quoted"\nline of ü',
        "--max-model-len=9 is too large",
        "it failed",
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines[0]["time"])
    assert lines[0]["logger"] == "octavo.x"
    assert "traceback" not in lines[0]
    assert lines[2]["traceback"].endswith("ValueError: because")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_line_of_json_is_valid_in_every_encoding(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding, "backslashreplace", write_through=True)
    monkeypatch.setattr(sys, "stderr", stream)
    text = "größe 😀 \x1b[31m \x9b31m \u2028 \udc80"
    # Not by a logger: pytest keeps what those log, and its workers cannot send a lone surrogate.
    record = logging.LogRecord("octavo.x", logging.INFO, __file__, 1, "%s", (text,), None)
    LogHandler({}, "json").handle(record)
    line = out.getvalue().decode("ascii")
    assert json.loads(line)["message"] == text
    assert line[:-1].isprintable()
