"""Conversations that are changed: system messages first, as templates want, and fewer turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from octavo.text.chat.messages import ChatTemplateError

_LEADING = ("system", "developer")
Chat = Sequence[dict[str, Any]]


def render_with_system(chat: Chat, render: Callable[[Chat], str], *, moves_system: bool) -> str:
    """Return the text of a conversation by a template.

    If the template refuses it and system messages may be moved, the later ones stand in the first.
    """
    try:
        return render(chat)
    except ChatTemplateError:
        moved = with_system_first(chat) if moves_system else chat
        if moved == chat:
            raise
        return render(moved)


def with_system_first(chat: Chat) -> Chat:
    """Return the messages with the texts of all system messages in the first one."""
    system = [message for message in chat if message["role"] == "system"]
    if not system or system == [chat[0]]:
        return chat
    others = [message for message in chat if message["role"] != "system"]
    content = [part for message in system for part in _parts(message["content"])]
    return joined([{"role": "system", "content": content}, *others])


def joined(chat: Chat) -> list[dict[str, Any]]:
    """Join turns of one role, which templates expect to alternate."""
    whole: list[dict[str, Any]] = []
    for message in chat:
        last = whole[-1] if whole else None
        can_join = last is not None and message.keys() == {"role", "content"} == last.keys()
        if can_join and last is not None and last["role"] == message["role"]:
            both = [*_parts(last["content"]), *_parts(message["content"])]
            whole[-1] = {"role": last["role"], "content": both}
        else:
            whole.append(message)
    return whole


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


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
