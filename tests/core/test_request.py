"""Requests and events between the front end and the core."""

from dataclasses import FrozenInstanceError

import pytest

from octavo.core.request import TokenEvent
from tests.core.make import request


def test_max_total_includes_emitted_tokens() -> None:
    """Tokens that an earlier engine emitted count against max_tokens."""
    assert request("a", 5, max_tokens=7).max_total == 12
    assert request("a", 5, max_tokens=7, emitted=[1, 2]).max_total == 12


def test_a_request_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        request("a", 5).priority = 1  # type: ignore[misc]


def test_the_defaults_of_a_request() -> None:
    plain = request("a", 5)
    assert (plain.priority, plain.lora, plain.cache_scope, plain.parent_id) == (0, None, "", None)
    assert not plain.emitted


def test_the_defaults_of_an_event() -> None:
    event = TokenEvent("a", 0, (1,))
    assert event.finish_reason is None
    assert event[4:] == (None, None, None, None, None)
