"""System messages behind the first turn, for chat templates that refuse them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.text.chat.messages import ChatTemplateError

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
