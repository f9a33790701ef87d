"""What a request says about tools, in the terms of no dialect, and the ids of calls.

An id has nine letters and digits, which the chat templates of all models accept.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from octavo.workers.answer_shape import CallableTool

LENGTH = 9  # the only one that Mistral's templates accept
_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and how its answers may use them."""

    described: tuple[dict[str, Any], ...] = ()  # for the chat template
    callable: tuple[CallableTool, ...] = ()  # those that answers may call
    must_call: bool = False
    only_these: bool = False  # the request has others, which answers may not call
    is_parallel: bool = True  # an answer may have several calls
    is_old: bool = False  # asked for as functions, and answered so

    @property
    def field(self) -> str:
        """The field that has the tools."""
        return "functions" if self.is_old else "tools"


NO_TOOLS = ToolUse()


def made_id(place: str) -> str:
    """Return the id of the call at a place, the same each time."""
    number = int.from_bytes(blake2b(place.encode(), digest_size=8).digest())
    characters = []
    for _ in range(LENGTH):
        number, character = divmod(number, len(_CHARACTERS))
        characters.append(_CHARACTERS[character])
    return "".join(characters)


def short_id(given: str | None) -> str | None:
    """Return an id that another server has made, replaced unless it has this form."""
    if given is None or (len(given) == LENGTH and given.isascii() and given.isalnum()):
        return given
    return made_id(given)
