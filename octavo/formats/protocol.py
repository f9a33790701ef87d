"""What formats exchange with the server: the tools of a request, calls, and a model's formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class FormatError(ValueError):
    """A format that does not exist, or a description that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] | None = None  # the JSON schema of its arguments; None: any
    strict: bool = False  # constrains its arguments where the model may choose whether to call


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a past message."""

    name: str
    arguments: str  # a JSON object
    call_id: str | None = None
