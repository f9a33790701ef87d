"""The descriptions of requests in a journal: each names the kind of request that it is of."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.serving.durable import head


def translate(server: Any, request: Any) -> Any:
    raise AssertionError("nothing is translated here")


def test_two_kinds_of_one_name_are_refused_and_those_of_two_dialects_kept_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head, "_TRANSLATIONS", dict(head._TRANSLATIONS))
    there = dict(head._TRANSLATIONS)

    class Other(Struct):
        """A struct that a second dialect might define."""

    Other.__name__ = "ChatRequest"
    Other.__module__ = "octavo.server.other.schema"
    head.register(Other, translate)
    head.register(Other, translate)  # for another path
    added = head._TRANSLATIONS.keys() - there.keys()
    assert [head._TRANSLATIONS[name] for name in added] == [(Other, translate)]
    assert there.items() <= head._TRANSLATIONS.items()
    Other.__module__ = ChatRequest.__module__
    with pytest.raises(AssertionError):
        head.register(Other, translate)
