"""Leaves out the oldest turns of a conversation that is too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_LEADING = ("system", "developer")


def with_fewer_turns(
    conversation: Any,  # a struct with messages
    render: Callable[[Any], str],
    tokenise: Callable[[str], Sequence[int]],
    most: int,
) -> tuple[str, Sequence[int]]:
    """Return the text and the tokens of as many of the last turns as have at most `most` tokens.

    If the last turn alone has more, that is returned.
    """
    messages = conversation.messages
    starts = turn_starts(messages)

    def made(number: int) -> tuple[str, Sequence[int]]:
        left = [*messages[: starts[0]], *messages[starts[number] :]]
        text = render(msgspec.structs.replace(conversation, messages=left))
        return text, tokenise(text)

    low, high = 0, len(starts) - 1  # the first start that fits is behind `low`
    best = made(high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = made(middle)
        if len(tried[1]) > most:
            low = middle
        else:
            best, high = tried, middle
    return best


def turn_starts(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Return the places where what is left of a conversation may begin, the earliest first.

    The first is behind the instructions, which always stay. The others are users' messages, so that
    no result of a tool stands without its call; the last such message always stays.
    """
    begin = 0
    while begin < len(messages) and messages[begin].get("role") in _LEADING:
        begin += 1
    later = range(begin + 1, len(messages))
    return [begin, *(index for index in later if messages[index].get("role") == "user")]
