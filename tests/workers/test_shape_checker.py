"""Shapes are checked in a process with limits, so that none ends the program that asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.api.outputs import RequestError
from octavo.api.shapes import shape_grammar
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.checked import CheckedShapes, job_of
from octavo.workers.frames import AnswerFrames
from octavo.workers.shape_checker import ShapeChecker
from tests.server.make import LIMIT

RIGHT = job_of(StructuredOutputsParams(regex="a+"), 300)
WRONG = job_of(StructuredOutputsParams(regex="(?=a)"), 300)


def test_a_shape_that_takes_too_much_is_refused_and_the_next_one_is_checked() -> None:
    checker = ShapeChecker(LIMIT)
    assert checker.check(RIGHT).grammar == "start: /a+/"
    assert checker.check(WRONG).what
    checker._seconds = 0.01
    os.kill(process_of(checker).pid, signal.SIGSTOP)
    late = checker.check(RIGHT)
    assert (late.field, late.grammar) == ("regex", "")
    assert "takes more than 0.01 s, the limit" in late.what
    checker._seconds = LIMIT
    assert checker.check(RIGHT).grammar == "start: /a+/"
    os.kill(process_of(checker).pid, signal.SIGKILL)
    assert "ended with its process" in checker.check(RIGHT).what
    assert checker.check(RIGHT).grammar == "start: /a+/"
    process = process_of(checker)
    checker.close()
    assert process.returncode is not None


def process_of(checker: ShapeChecker) -> subprocess.Popen[bytes]:
    """Return the process that has been started."""
    assert checker._process is not None
    return checker._process


def test_a_process_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.workers.launch.PROGRAM", "octavo.no_such_program")
    checked = ShapeChecker().check(RIGHT)
    assert "did not start: " in checked.what
    assert "no_such_program" in checked.what


@pytest.mark.parametrize("place", [1, 2], ids=["while it starts", "while it checks"])
def test_a_check_that_is_interrupted_leaves_no_answer_to_the_next(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    checker, answer = ShapeChecker(LIMIT), AnswerFrames.wait
    calls = 0

    def interrupted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == place:
            raise KeyboardInterrupt
        return answer(*given)

    monkeypatch.setattr(AnswerFrames, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checker.check(RIGHT)
    other = job_of(StructuredOutputsParams(regex="b+"), 300)
    assert checker.check(other).grammar == "start: /b+/"
    checker.close()


def test_only_what_the_process_answers_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.workers.launch.PROGRAM", "octavo.no_such_program")
    checker = ShapeChecker(LIMIT)
    monkeypatch.setattr("octavo.workers.shape_checker.SHARED", checker)
    model: Any = SimpleNamespace(
        checked_shapes=CheckedShapes(), facts=SimpleNamespace(vocabulary=300)
    )
    shape = StructuredOutputsParams(regex="a+")
    with pytest.raises(RequestError, match="did not start"):
        shape_grammar(model, shape)
    monkeypatch.undo()
    assert shape_grammar(model, shape) == "start: /a+/"
    kept = model.checked_shapes.get(shape)
    assert kept is not None
    assert kept.grammar == "start: /a+/"
