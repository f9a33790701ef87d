"""Durations of Ollama's, and names in bodies of any shape."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.server.models.naming import seconds_of
from octavo.transport.errors import ApiError


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        (2.5, 2.5),
        ("30", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        (-1, None),
        ("-1", None),
        ("-1m", None),
    ],
)
def test_durations(given: Any, seconds: float | None) -> None:
    found = seconds_of(given)
    assert found == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["", "m", "5 m", "1d", True, [], {}, "9" * 80 + "s", "5m\n"])
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(ApiError) as caught:
        seconds_of(given)
    assert (caught.value.status, caught.value.param) == (400, "keep_alive")
