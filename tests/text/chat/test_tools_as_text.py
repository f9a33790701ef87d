"""Tools, calls and results as text, in templates that know none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.formats.registry import tool_format
from octavo.text.chat.messages import ChatTemplateError
from octavo.text.chat.template import ChatTemplate

TEMPLATES = Path(__file__).parent / "templates"
GENERIC = tool_format("generic")
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "clock"}},
]
SHOWN = '{"name": "weather", "parameters": {"type": "object"}}\n{"name": "clock"}\n</tools>'
PLAIN = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
OWN_SYSTEM = (
    "{% if messages[0].role != 'system' %}[system|You are Tiny.]{% endif %}"
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
)
STRICT = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('users and assistants take turns') }}{% endif %}"
    "[{{ m.role }}|{{ m.content }}]{% endfor %}"
)
PARTS = (
    "{% for m in messages %}[{{ m.role }}|{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}]{% endfor %}"
)


def user(text: Any) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def calling(*calls: tuple[str, str, str], content: Any = None) -> dict[str, Any]:
    """Return an assistant's message with calls, each of an id, a name and arguments."""
    made = [{"id": key, "function": {"name": name, "arguments": a}} for key, name, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(key: str, text: Any) -> dict[str, Any]:
    """Return the result of a call."""
    return {"role": "tool", "tool_call_id": key, "content": text}


def rendered(source: str, *messages: dict[str, Any], **options: Any) -> str:
    """Return the prompt with the tools in the generic format."""
    options = {"tools": TOOLS, "tool_format": GENERIC, **options}
    return ChatTemplate(source).render(messages, **options)


def test_the_tools_stand_behind_the_template_s_own_instructions() -> None:
    text = rendered(OWN_SYSTEM, user("x"))
    assert text.startswith("[system|You are Tiny.\n\nThese functions are available.")
    assert SHOWN in text
    assert text.endswith("</tool_call>][user|x]")
    assert rendered(PLAIN, user("x")).startswith("[system|These functions")
    chatml = rendered((TEMPLATES / "chatml.jinja").read_text("utf-8"), user("x"))
    assert chatml.startswith("<|im_start|>system\nYou are a helpful assistant.\n\nThese functions")


def test_instructions_of_the_conversation_come_first() -> None:
    """The template's own are replaced by them, as they are without tools."""
    for role in ("system", "developer"):
        for source in (PLAIN, OWN_SYSTEM):
            text = rendered(source, {"role": role, "content": "Be brief."}, user("x"))
            assert text.startswith("[system|Be brief.\n\nThese functions are")
    parts = [{"type": "text", "text": "Be brief."}]
    text = rendered(PARTS, {"role": "system", "content": parts}, user("x"))
    assert text.startswith("[system|(Be brief.)(These functions are")


@pytest.mark.parametrize("source", [NO_SYSTEM, STRICT])
def test_a_template_without_a_system_message_gets_the_tools_with_the_first_question(
    source: str,
) -> None:
    text = rendered(source, user("x"))
    assert text.startswith("[user|These functions are")
    assert text.endswith("</tool_call>\n\nx]")
    assert rendered(NO_SYSTEM, {"role": "assistant", "content": "x"}).endswith("][assistant|x]")


def test_calls_are_the_assistant_s_text_and_results_a_user_s() -> None:
    """The messages of users and assistants take turns, as many templates demand."""
    past = [
        user("How warm?"),
        calling(("a", "weather", '{"city": "Oslo"}'), ("b", "clock", ""), content="I look."),
        result("a", "3 degrees"),
        result("b", '{"hour": 9}'),
        user("And?"),
    ]
    text = rendered(STRICT, *past, tools=None)
    assert text == (
        "[user|How warm?][assistant|I look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>]'
        '[user|<tool_response>\n{"name": "weather", "content": "3 degrees"}\n</tool_response>\n'
        '<tool_response>\n{"name": "clock", "content": {"hour": 9}}\n</tool_response>\n\n'
        "And?]"
    )
    named = {"role": "tool", "name": "f", "content": [{"type": "text", "text": 'a "b"'}]}
    for source in (PLAIN, PARTS):
        last = '[user|<tool_response>\n{"name": "f", "content": "a \\"b\\""}\n</tool_response>]'
        assert rendered(source, user("x"), named, tools=None).endswith(last)
    alone = rendered(PLAIN, {"role": "tool", "content": "[1,"}, tools=None)
    assert alone == '[user|<tool_response>\n{"content": "[1,"}\n</tool_response>]'


def test_a_conversation_without_tools_is_unchanged() -> None:
    """The text of messages without calls and results stays as it is."""
    said = [user("x"), user("y"), {"role": "assistant", "content": "z"}]
    for path in TEMPLATES.glob("*.jinja"):
        source = path.read_text("utf-8")
        if path.stem in ("corners", "mistral", "gemma"):  # turns must alternate
            continue
        assert rendered(source, *said, tools=None) == ChatTemplate(source).render(said)


def test_a_named_format_writes_the_tools_where_the_template_does_not() -> None:
    """A template that shows tools keeps its way, unless the generic format is asked for."""
    named = tool_format("phi4_mini_json")
    text = rendered(PLAIN, user("x"), calling(("a", "clock", "{}")), tool_format=named)
    assert SHOWN in text
    assert text.endswith('[assistant|functools[{"name": "clock", "arguments": {}}]]')
    qwen = (TEMPLATES / "qwen3.jinja").read_text("utf-8")
    past = [user("x"), calling(("a", "clock", "{}")), result("a", "9")]
    own = rendered(qwen, *past, tool_format=tool_format("hermes"))
    assert own == ChatTemplate(qwen).render(past, tools=TOOLS)
    assert "These functions" in rendered(qwen, *past)
    pythonic = rendered(PLAIN, user("x"), tool_format=tool_format("pythonic"))
    assert "your answer is a call, as here:\n[NAME(ARGUMENT=" in pythonic


def test_an_answer_with_a_call_is_continued() -> None:
    text = rendered(PLAIN, user("x"), calling(("a", "clock", "{}")), continue_final_message=True)
    assert text.endswith('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')


def test_what_is_wrong_is_named_where_the_client_sent_it() -> None:
    wrong = [user("x"), calling(("a", "clock", "{"))]
    with pytest.raises(ChatTemplateError) as caught:
        rendered(PLAIN, *wrong)
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"
