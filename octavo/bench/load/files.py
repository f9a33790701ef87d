"""Reads the user's own requests: prompts of a file of lines, or conversations as ShareGPT's."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.bench.load.asked import Asked
from octavo.core.config import ConfigError

MOST_FILE_BYTES = 2 << 30


def read_lines(path: Path, max_tokens: int) -> list[Asked]:
    """Return the requests of a file of JSON objects, one on each line.

    Each has a `prompt`, or `messages`; `output_tokens` is the most that its answer may have.
    """
    found = []
    for number, line in enumerate(_text_of(path).splitlines(), 1):
        if line.strip():
            found.append(_asked(object_of(line, f"{path}, line {number}"), number, max_tokens))
    if not found:
        raise ConfigError(f"{path} has no prompts; write a JSON object with `prompt` on each line")
    return found


def _asked(given: dict[str, Any], number: int, max_tokens: int) -> Asked:
    prompt = given.get("messages", given.get("prompt"))
    if not (isinstance(prompt, str) and prompt) and not (isinstance(prompt, list) and prompt):
        raise ConfigError(f"line {number} of the prompts must have a `prompt` or `messages`")
    most = given.get("output_tokens", max_tokens)
    if not isinstance(most, int) or most < 1:
        raise ConfigError(f"line {number} of the prompts: output_tokens must be a number from 1")
    return Asked(prompt, most)


def read_sharegpt(path: Path, max_tokens: int | None) -> list[Asked]:
    """Return the first prompt of each conversation of a ShareGPT file.

    An answer may have as many tokens as the recorded one has words and a third more, unless a
    number is given.
    """
    try:
        conversations = json.loads(_text_of(path))
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON") from None
    if not isinstance(conversations, list):
        raise ConfigError(f"{path} must be a list of conversations, as ShareGPT's files are")
    found = []
    for prompt, recorded in _pairs(conversations):
        most = max(1, round(len(recorded.split()) * 4 / 3)) if max_tokens is None else max_tokens
        if prompt.strip():
            found.append(Asked(prompt, most))
    if not found:
        raise ConfigError(f"{path} has no conversation with two turns")
    return found


def _pairs(conversations: list[Any]) -> Iterator[tuple[str, str]]:
    for each in conversations:
        turns = each.get("conversations", each.get("conversation")) if type(each) is dict else None
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        values = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) == 2:
            yield texts[0], texts[1]


def chosen(
    asked: list[Asked],
    count: int,
    chance: random.Random,
    *,
    is_shuffled: bool = True,
    is_repeated: bool = True,
) -> list[Asked]:
    """Return as many requests, in an order by chance; those of a short file several times."""
    order = list(asked)
    if is_shuffled:
        chance.shuffle(order)
    if not is_repeated:
        count = min(count, len(order))
    return [order[at % len(order)] for at in range(count)]


def object_of(text: str, place: str) -> dict[str, Any]:
    """Return the object that a text holds; `place` says where it is from."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{place}: it is not JSON") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{place}: it must be a JSON object")
    return given


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_FILE_BYTES:,} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts cannot be read: {path}: {error}") from None
