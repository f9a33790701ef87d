"""The argument parser, whose errors say what to do, and the types of its values."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from octavo.foreign_options import MISSING
from octavo.nearest import nearest

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)
_UNITS = " kmgt"
_LIKENESS = 0.7  # similarity of a typed word to the flag that it may mean


class UsageError(Exception):
    """A mistake in the command line; the message says what to type instead."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that never abbreviates flags and raises its errors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, allowing options between positional arguments.

        `--max_model_len` means `--max-model-len`, as in vLLM.
        """
        if args is not None:
            args = self._attached(self._dashed(args))
            self._refuse_values(args)
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._about_unknown(unknown, args or ()))
        return found

    def error(self, message: str) -> NoReturn:
        end = " See" if message.endswith("?") else "; see"
        raise UsageError(f"{message}{end} `{self.prog} --help`")

    def flags(self) -> list[str]:
        """Return every flag, hidden ones included."""
        return [flag for action in self._actions for flag in action.option_strings]

    def spellings(self, words: Sequence[str]) -> dict[str, str]:
        """Map each setting to its flag as typed in `words`, or else to the flag's first name."""
        typed = {word.partition("=")[0] for word in self._dashed(words)}
        found = {}
        for action in self._actions:
            named = [flag for flag in action.option_strings if not flag.startswith("--no-")]
            if named:
                found[action.dest] = next((flag for flag in named if flag in typed), named[0])
        return found

    def visible_actions(self) -> list[argparse.Action]:
        """Return the arguments that `--help` shows."""
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def _refuse_values(self, words: Sequence[str]) -> None:
        """Refuse `--flag=value` where the flag takes no value, with the words to type instead."""
        for word in words[: words.index("--") if "--" in words else len(words)]:
            name, equals, _ = word.partition("=")
            action = self._option_string_actions.get(name)
            if equals and action is not None and action.nargs == 0:
                others = [flag for flag in action.option_strings if flag.startswith("--no-")]
                both = f"{name}, or {others[0]} for the opposite" if others else name
                if name.startswith("--no-"):
                    both = f"{action.option_strings[0]}, or {name} for the opposite"
                self.error(f"{name} takes no value; write {both}")

    def _attached(self, words: Sequence[str]) -> list[str]:
        """Give flags whose value is optional the one they mean alone: theirs follows only a `=`.

        The word behind such a flag is an argument of the command, such as the model.
        """
        end = words.index("--") if "--" in words else len(words)
        alone = {
            flag: f"{flag}={action.const}"
            for flag, action in self._option_string_actions.items()
            if action.nargs == argparse.OPTIONAL
        }
        return [*(alone.get(word, word) for word in words[:end]), *words[end:]]

    def _dashed(self, words: Sequence[str]) -> list[str]:
        """Replace underscores in long options by dashes; after `--` all words are values."""
        end = words.index("--") if "--" in words else len(words)
        return [*map(self._dashed_option, words[:end]), *words[end:]]

    def _dashed_option(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        is_known = word.startswith("--") and dashed in self._option_string_actions
        return dashed + equals + value if is_known else word

    def _about_unknown(self, words: list[str], given: Sequence[str]) -> str:
        name = words[0].partition("=")[0]
        if not name.startswith("-"):
            return f"{words[0]!r} is one argument too many{self._meant_as_value(words[0], given)}"
        reason = MISSING.get(name.removeprefix("--").replace("-", "_"))
        if reason is not None:
            return f"{name} is not supported: {reason}"
        near = nearest(name, self.flags(), likeness=_LIKENESS)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"there is no option {name}{hint}"

    def _meant_as_value(self, word: str, given: Sequence[str]) -> str:
        """Say how to write an argument that is too many if it is the value of a flag."""
        for action in self.visible_actions():
            for flag in action.option_strings:
                if action.nargs == argparse.OPTIONAL and f"{flag}={action.const}" in given:
                    return attached_instead(flag, word)
        return ""


def attached_instead(flag: str, word: str) -> str:
    """Return the end of an error: how a word is written that was meant as the value of a flag."""
    return f"; if {word!r} belongs to {flag}, write {flag}={word}"


def byte_count(text: str) -> int:
    """Parse `4GiB`, `500MB`, `1.5G` or a number of bytes. Without a B, units are binary."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: write bytes, or a number and a unit, as in 4GiB"
        )
    is_decimal = text.strip().lower().endswith("b") and not match["binary"]
    exponent = _UNITS.index(match["unit"].lower() or " ")
    return int(float(match["number"]) * (1000 if is_decimal else 1024) ** exponent)


def seconds(text: str) -> float:
    """Parse a finite, non-negative time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, as in 2.5")
    return value


def token_count(text: str) -> int:
    """Parse `4096`, `32k` (thousands) or `32K` (multiples of 1024), as vLLM does."""
    units = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    factor = units.get(text[-1:], 1)
    digits = text[:-1] if text[-1:] in units else text
    try:
        return round(float(digits) * factor) if factor > 1 else int(digits)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of tokens: write it as in 4096 or 32k"
        ) from None


def sequence_length(text: str) -> int | None:
    """Parse a number of tokens; `auto` and -1 are None, the maximum, as in vLLM."""
    return None if text in ("auto", "-1") else token_count(text)
