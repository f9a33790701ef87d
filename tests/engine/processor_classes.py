"""Logits processors of an operator, as `--logits-processors` names them, right ones and wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

FUNCTION = lambda arguments: None  # noqa: E731


class Ban:
    """Forbids the tokens of the argument `ban`; with `after`, from that output position on."""

    def validate(self, arguments: dict[str, Any]) -> None:
        banned = arguments.pop("ban", [])  # what it does to its copy concerns no other call
        arguments.pop("after", None)
        if not isinstance(banned, list):
            raise ValueError("ban must be a list of token ids")

    def make(self, arguments: dict[str, Any]) -> Any:
        banned = arguments.get("ban")
        if not banned:
            return None

        def ban(prompt: Any, output: Any, logits: Any) -> Any:
            if len(output) >= arguments.get("after", 0):
                logits[banned] = -np.inf
            return logits

        return ban


class Faulty:
    """Fails in the way that the argument `fault` names."""

    def validate(self, arguments: dict[str, Any]) -> None:
        if arguments.get("fault") == "validate":
            raise KeyError("gone")

    def make(self, arguments: dict[str, Any]) -> Any:
        if arguments.get("fault") == "make":
            raise ValueError("no")
        return 7 if arguments.get("fault") == "kind" else None


class NoMake:
    def validate(self, arguments: dict[str, Any]) -> None: ...


class NeedsArguments(Ban):
    def validate(self, arguments: dict[str, Any]) -> None:
        if not arguments:
            raise ValueError("say what to ban")


class NeedsMore(Faulty):
    def __init__(self, more: int) -> None: ...
