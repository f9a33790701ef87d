"""Messages are normalised, or rejected with the path of the part at fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.text.chat.messages import (
    UNSUPPORTED,
    ChatTemplateError,
    ContentFormat,
    read_messages,
)
from octavo.text.chat.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}
PLAIN = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")


def read(*messages: Any, takes_parts: bool = False) -> list[dict[str, Any]]:
    return read_messages(messages, takes_parts=takes_parts)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}], **more}


def test_text_parts_are_joined_for_a_template_that_reads_texts() -> None:
    parts = [text("one"), text("two"), "three", {"text": "four"}]
    assert PLAIN.render([{"role": "user", "content": parts}, USER]) == "[one\ntwo\nthree\nfour][Hi]"
    assert PLAIN.render([{"role": "assistant", "content": []}]) == "[]"
    answers = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    assert PLAIN.render([{"role": "assistant", "content": answers}]) == "[a\nno]"


def test_a_template_that_reads_parts_gets_them() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}<{{ part.type }}:{{ part.text }}>{% endfor %}{% endif %}"
        "{% endfor %}"
    )
    parts = [text("a", cache_control={"type": "ephemeral"}), {"type": "input_text", "text": "b"}]
    assert template.render([USER, {"role": "user", "content": parts}]) == "Hi<text:a><text:b>"


@pytest.mark.parametrize(
    ("content_format", "expected"),
    [("auto", "[Hi]<a><b>"), ("openai", "<Hi><a><b>"), ("string", "[Hi][a\nb]")],
)
def test_the_caller_may_say_what_a_template_reads(
    content_format: ContentFormat, expected: str
) -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}"
        "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    parts = [text("a"), text("b")]
    messages: list[dict[str, Any]] = [USER, {"role": "user", "content": parts}]
    assert template.render(messages, content_format=content_format) == expected


def test_a_last_message_in_parts_can_be_continued() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content[0].text }};{% endfor %}")
    chat = [USER, {"role": "assistant", "content": "So"}]
    found = template.render(chat, continue_final_message=True, content_format="openai")
    assert found == "Hi;So"


READS_PARTS = {
    "{% for part in message.content %}{% endfor %}": True,
    "{% for part in messages[0]['content'] | selectattr('text') %}{% endfor %}": True,
    "{{ message['content'] | map(attribute='text') | join }}": True,
    "{{ messages[0].content[0].text }}": True,
    "{% for part in message.content[1:] %}{% endfor %}": True,
    "{% set words = m.content if m.content else [] %}{% for w in words %}{% endfor %}": True,
    "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(m.content) }}": True,
    "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ show(c=m['content']) }}": True,
    "{% macro a(x) %}{% for p in x %}{% endfor %}{% endmacro %}"
    "{% macro b(y) %}{{ a(y) }}{% endmacro %}{{ b(m.content) }}": True,
    "{% generation %}{% for p in m.content %}{% break %}{% endfor %}{% endgeneration %}": True,
    "{{ message.content }}": False,
    "{% for message in messages %}{{ message.content | trim }}{% endfor %}": False,
    # SmolLM3's template would drop a list.
    "{% set c = m.content if m.content is string else '' %}{{ c }}": False,
    "{% set c = m.content %}{{ c.split('</think>')[-1] }}{{ c[:5] }}": False,
    "{% for line in message.content.split('x') %}{% endfor %}": False,
    "{% for call in message.tool_calls %}{{ message.content }}{% endfor %}": False,
    "{% macro show(c) %}{{ c }}{% endmacro %}{{ show(m.content) }}": False,
}


@pytest.mark.parametrize("source", READS_PARTS)
def test_the_syntax_shows_whether_a_template_reads_parts(source: str) -> None:
    assert ChatTemplate(source).takes_parts == READS_PARTS[source]


def test_a_long_chain_of_variables_takes_one_pass() -> None:
    """One pass finds all variables that are set in the order of the source."""
    chain = "".join(f"{{% set v{n + 1} = v{n} %}}" for n in range(3000))
    source = "{% set v0 = m.content %}" + chain + "{% for p in v3000 %}{% endfor %}"
    assert ChatTemplate(source).takes_parts


@pytest.mark.parametrize("takes_parts", [True, False])
@pytest.mark.parametrize(
    ("part", "field", "code"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, ".type", UNSUPPORTED),
        ({"type": "input_audio"}, ".type", UNSUPPORTED),
        ({"type": "text", "text": "a", "image_url": {"url": "x"}}, ".image_url", UNSUPPORTED),
        ({"type": "text"}, ".text", None),
        ({"type": "text", "text": 5}, ".text", None),
        ({"type": "refusal", "text": "x"}, ".refusal", None),
        ({"type": 3, "text": "x"}, ".type", None),
        ({}, ".type", None),
        (7, "", None),
    ],
)
def test_a_part_that_is_no_text_is_rejected_with_its_path(
    part: Any, field: str, code: str | None, takes_parts: bool
) -> None:
    with pytest.raises(ChatTemplateError) as refused:
        read(USER, {"role": "user", "content": [text("a"), part]}, takes_parts=takes_parts)
    assert refused.value.param == f"messages[1].content[1]{field}"
    assert refused.value.code == code
    assert refused.value.param in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("Hi", ""),
        (None, ""),
        ({"content": "x"}, ".role"),
        ({"role": None, "content": "x"}, ".role"),
        ({"role": 1, "content": "x"}, ".role"),
        ({"role": "", "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": None}, ".content"),
        ({"role": "system", "content": []}, ".content"),
        ({"role": "user", "tool_calls": []}, ".content"),
        ({"role": "tool", "content": {"t": 1}}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
    ],
)
def test_an_invalid_message_is_rejected_with_its_path(wrong: Any, field: str) -> None:
    with pytest.raises(ChatTemplateError) as refused:
        read(USER, wrong)
    assert refused.value.param == f"messages[1]{field}"


@pytest.mark.parametrize("wrong", ["Hi", {"role": "user"}, 5])
def test_other_types_than_conversations_are_rejected(wrong: Any) -> None:
    with pytest.raises(ChatTemplateError, match="a conversation is a list of messages, not"):
        read_messages(wrong, takes_parts=False)


def test_a_developer_is_the_system_for_a_template_that_knows_no_developers() -> None:
    message = {"role": "developer", "content": "Be brief"}
    assert ChatTemplate("{{ messages[0].role }}").render([message]) == "system"
    knows = ChatTemplate("{{ 'yes' if messages[0].role == 'developer' }}")
    assert knows.render([message]) == "yes"


def test_an_assistant_may_have_no_content() -> None:
    absents: tuple[dict[str, Any], ...]
    absents = ({"content": None}, {"tool_calls": []}, {"name": "a"})
    for absent in absents:
        assert PLAIN.render([{"role": "assistant", **absent}]) == "[]"
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    assert PLAIN.render([refused]) == "[No.]"


def test_content_may_be_absent_where_there_is_something_else() -> None:
    assert "content" not in read(call({}))[0]
    (thought,) = read({"role": "assistant", "reasoning": "hm"})
    assert thought["reasoning_content"] == thought["thinking"] == "hm"
    assert read({"role": "assistant", "content": "", "tool_calls": []}) == [
        {"role": "assistant", "content": ""}
    ]


def test_arguments_in_a_string_are_the_object_for_the_template() -> None:
    arguments = {"city": "Zürich", "days": 3, "deep": {"list": [1, None, True]}}
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments | tojson }}")
    as_object = template.render([call(arguments)])
    assert as_object == template.render([call(json.dumps(arguments))])
    assert json.loads(as_object) == arguments
    items = ChatTemplate(
        "{% for name, value in messages[0].tool_calls[0].function.arguments.items() %}"
        "{{ name }}={{ value }};{% endfor %}"
    )
    assert items.render([call('{"a": 1, "b": "x"}')]) == "a=1;b=x;"
    assert items.render([call("")]) == items.render([call(" {} ")]) == ""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('tools | map(attribute="function") | tojson', '[{"name": "f"}, {"name": "g"}]'),
        (
            'tools | selectattr("function.name", "eq", "g") | tojson',
            '[{"function": {"name": "g"}}]',
        ),
        ('{"x": tools | map(attribute="function.name")} | tojson', '{"x": ["f", "g"]}'),
        ("tools[0].keys() | tojson", '["function"]'),
        ("tools[0].function.values() | tojson", '["f"]'),
        ("tools[0].function.items() | tojson", '[["name", "f"]]'),
        ("range(3) | tojson", "[0, 1, 2]"),
    ],
)
def test_what_filters_yield_is_a_list_in_json(expression: str, expected: str) -> None:
    template = ChatTemplate("{{ " + expression + " }}")
    tools = [{"function": {"name": name}} for name in "fg"]
    assert template.render([{"role": "user", "content": "x"}], tools=tools) == expected


def test_what_has_no_form_in_json_is_refused() -> None:
    template = ChatTemplate("{{ nothing | tojson }}")
    with pytest.raises(ChatTemplateError, match="Undefined has no form in JSON"):
        template.render([{"role": "user", "content": "x"}])


def test_arguments_of_a_call_without_wrapping() -> None:
    message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    assert read(message)[0]["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]
    with pytest.raises(ChatTemplateError, match=r"tool_calls\[0\]\.arguments is not valid JSON"):
        read({**message, "tool_calls": [{"name": "f", "arguments": "{"}]})


def test_the_callers_messages_are_not_changed() -> None:
    message = call('{"a": 1}', content=[text("x")])
    before = json.dumps(message)
    read(message)
    assert json.dumps(message) == before


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("f()", r"messages\[0\]\.tool_calls must be a list, not str"),
        (["f()"], r"tool_calls\[0\] must be an object"),
        ([{"function": "f"}], r"tool_calls\[0\]\.function must be an object"),
        (
            [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"arguments": "{a: 1}"}}],
            r"messages\[0\]\.tool_calls\[1\]\.function\.arguments is not valid JSON: Expecting",
        ),
        ([{"function": {"arguments": "[1]"}}], "must hold a JSON object, not list"),
        ([{"function": {"arguments": "null"}}], "must hold a JSON object, not NoneType"),
        ([{"function": {"arguments": '{"a": NaN}'}}], "NaN is not a JSON number"),
        ([{"function": {"arguments": "[" * 100_000}}], "is not valid JSON"),
        ([{"function": {"arguments": '{"a":' * 150 + "1" + "}" * 150}}], "deeper than 100 levels"),
        ([{"function": {"arguments": '{"a": ' + "9" * 5000 + "}"}}], "is not valid JSON"),
    ],
)
def test_invalid_calls_are_rejected_with_their_path(calls: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        read({"role": "assistant", "tool_calls": calls})
