"""The end of an engine's process is described with its usual cause."""

from __future__ import annotations

import signal

import pytest

from octavo.client.exit_reason import describe_exit


@pytest.mark.parametrize(
    ("status", "num_killed", "expected"),
    [
        (7, 0, "its process ended with exit code 7"),
        (-signal.SIGSEGV, 1, "its process was ended by SIGSEGV"),
        (-signal.SIGKILL, 0, "its process was ended by SIGKILL"),
        (-63, 0, "its process was ended by signal 63"),
    ],
)
def test_ends_without_a_usual_cause(status: int, num_killed: int, expected: str) -> None:
    assert describe_exit(status, num_killed) == expected


def test_ends_with_a_usual_cause() -> None:
    assert "because memory ran out" in describe_exit(-signal.SIGKILL, 1)
    assert "the model's weights, became shorter" in describe_exit(-signal.SIGBUS, 0)
