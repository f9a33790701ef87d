"""Chat templates render what the reference implementation renders."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from octavo.text.chat.messages import ChatTemplateError
from octavo.text.chat.sandbox import TemplateRefusedError
from octavo.text.chat.template import ChatTemplate, choose_template

TEMPLATES = {path.stem: path.read_text("utf-8") for path in Path(__file__).parent.glob("*/*.jinja")}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
Rendered = Callable[..., str | None]


def _user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: object, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _call(**arguments: object) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": arguments}
    return [{"id": "call12345", "type": "function", "function": function}]


SYSTEM = {"role": "system", "content": " Be brief. "}
RESULT = {"role": "tool", "tool_call_id": "call12345", "content": '{"t": "21°"}'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"here\" in 'é'.\nAll of it.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city"},
                    "days": {"type": ["integer", "null"]},
                    "units": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
            "return": {"type": "string"},
        },
    }
]
DOCUMENTS = [{"title": "One", "text": "First."}, {"title": "Two", "text": "Second."}]

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [_user("Hi <there> & é 🙂")],
    "system": [SYSTEM, _user("Hi")],
    "several": [SYSTEM, _user("Hi"), _assistant("Hello\n"), _user(" More? ")],
    "thinking": [_user("1?"), _assistant("<think>\nhm\n</think>\n\nA"), _user("2?")],
    "reasoning": [
        _user("1?"),
        _assistant("A", reasoning="because"),
        _assistant("B", thinking="so"),
    ],
    "tool call": [
        _user("Weather?"),
        _assistant("", tool_calls=_call(city="Zürich", days=3)),
        RESULT,
    ],
    "null content": [_user("Weather?"), _assistant(None, tool_calls=_call(city="Bern")), RESULT],
    "two calls": [_user("?"), _assistant("", tool_calls=_call(city="a") + _call(city="b"))],
    "parts": [_user([{"type": "text", "text": "Part one"}, {"type": "text", "text": " two"}])],
    "wrong order": [_assistant("x"), _assistant("y")],
    "to be continued": [_user("Hi"), _assistant("The answer is ")],
}
READ_PARTS = {"llama3_tools", "qwen3"}  # templates that read content as a list
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "documents": {"documents": DOCUMENTS},
    "variables": {"variables": {"enable_thinking": False, "bos_token": "<b>", "x": [1, None]}},
    "date": {"variables": {"date_string": "1 Jan 2030"}, "tools": TOOLS},
    "continued": {"continue_final_message": True},
    "reasoning continued": {"continue_final_message": "reasoning"},
}


@pytest.fixture(scope="module")
def reference() -> Rendered:
    """The reference implementation's renderer; it returns None where it fails."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")

    def render(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str | None:
        # apply_chat_template does this before it renders.
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        more = dict(options)
        variables = {**SPECIAL_TOKENS, **more.pop("variables", {})}
        try:
            rendered, _ = utils.render_jinja_template(
                [chat], chat_template=source, **more, **variables
            )
        except Exception:
            return None
        return str(rendered[0])

    return render


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with each list of parts joined; the reference would print the list."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_reference_implementation_agrees(name: str, reference: Rendered) -> None:
    source = TEMPLATES[name]
    template = ChatTemplate(source, SPECIAL_TOKENS)
    num_rendered = 0
    for messages in CONVERSATIONS.values():
        for options in OPTIONS.values():
            try:
                ours = template.render(messages, **options)
            except ChatTemplateError:
                ours = None
            if name not in READ_PARTS:
                messages = joined(messages)
            assert ours == reference(source, messages, options)
            num_rendered += ours is not None
    assert num_rendered >= 20


@pytest.mark.filterwarnings("ignore")
def test_a_saved_tokenizer_renders_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tests.text.vocabularies import byte_fallback

    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_fallback(), bos_token="<s>", eos_token="</s>"
    )
    theirs.chat_template = TEMPLATES["mistral"]
    ours = ChatTemplate(TEMPLATES["mistral"], {"bos_token": "<s>", "eos_token": "</s>"})
    for name in ("one", "several", "null content"):
        messages = CONVERSATIONS[name]
        rendered = theirs.apply_chat_template(messages, tools=TOOLS, tokenize=False)
        assert ours.render(messages, tools=TOOLS) == rendered


def test_chatml() -> None:
    template = ChatTemplate(TEMPLATES["chatml"])
    assert template.render([_user("Hi")], add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_date_is_an_argument() -> None:
    noon = datetime(2031, 2, 3, 12)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: noon)
    assert template.render([_user("x")]) == "03 Feb 2031"


@pytest.mark.parametrize("text", ["The answer is", "The answer is ", "The\n\n", "a  \n"])
def test_a_message_is_continued_where_it_ends(text: str) -> None:
    messages = [_user("Hi"), _assistant(text)]
    keeps = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert keeps.render(messages, continue_final_message=True) == f"[Hi][{text}"
    trims = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    assert trims.render(messages, continue_final_message=True) == f"[Hi][{text.rstrip()}"
    parts = [_user("Hi"), _assistant([{"type": "text", "text": text}])]
    first = ChatTemplate("{{ messages[1].content[0].text }}</s>")
    assert first.render(parts, continue_final_message=True) == text


def test_a_message_that_cannot_be_continued_is_rejected() -> None:
    messages = [_user("Hi"), _assistant("x")]
    for source, field, message in (
        ("{{ messages[0].content }}", True, "changes or leaves out the last message"),
        ("{{ messages[1].role }} content", True, "changes or leaves out"),
        ("{{ messages[1].content }}", "reasoning", "has no 'reasoning'"),
        ("{{ messages[1]['con' ~ 'tent'] }}", True, "does not read 'content'"),
    ):
        with pytest.raises(ChatTemplateError, match=message):
            ChatTemplate(source).render(messages, continue_final_message=field)
    with pytest.raises(ChatTemplateError, match="use one of them"):
        ChatTemplate("{{ x }}").render(
            messages, continue_final_message=True, add_generation_prompt=True
        )
    with pytest.raises(ChatTemplateError, match="no text that could be continued"):
        ChatTemplate("{{ messages[0].content[0] }}").render(
            [_assistant([])], continue_final_message=True
        )


def test_a_templates_own_rejection_differs_from_its_failures() -> None:
    with pytest.raises(TemplateRefusedError, match=r"^roles must alternate$"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render([_user("x")])
    with pytest.raises(ChatTemplateError, match="cannot render this conversation") as failed:
        ChatTemplate("{{ messages[0].content.x.y }}").render([_user("x")])
    assert not isinstance(failed.value, TemplateRefusedError)
    with pytest.raises(ChatTemplateError, match="not valid in line 2"):
        ChatTemplate("fine\n{% if %}")


def test_arguments_are_checked() -> None:
    template = ChatTemplate("{{ messages }}")
    with pytest.raises(ChatTemplateError, match="conversation is empty"):
        template.render([])
    with pytest.raises(ChatTemplateError) as refused:
        template.render([_user("x")], variables={"tools": []})
    assert refused.value.param == "chat_template_kwargs.tools"


def test_the_callers_messages_are_not_changed() -> None:
    messages = [_user([{"type": "text", "text": "a"}]), _assistant([{"type": "text", "text": "b"}])]
    template = ChatTemplate("{{ messages[1].content[0].text }}")
    assert template.render(messages, continue_final_message=True) == "b"
    assert messages[1] == _assistant([{"type": "text", "text": "b"}])


def test_an_enumeration_is_its_value() -> None:
    class Role(StrEnum):
        USER = "user"

    template = ChatTemplate("{{ messages[0].role ~ messages[0].role.upper() }}")
    assert template.render([{"role": Role.USER, "content": ""}]) == "userUSER"


def test_the_template_for_tools_is_for_tools() -> None:
    both = {"default": "d", "tool_use": "t"}
    assert choose_template(both, with_tools=True) == "t"
    assert choose_template(both, with_tools=False) == "d"
    assert choose_template({"default": "d"}, with_tools=True) == "d"
    with pytest.raises(ChatTemplateError, match="no default chat template, but these: rag, x"):
        choose_template({"x": "", "rag": ""}, with_tools=False)
    with pytest.raises(ChatTemplateError, match="has no chat template"):
        choose_template({}, with_tools=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./template.jinja", "'./template.jinja' would give the same .* not its file's name"),
        ("", "would give the same prompt for every conversation"),
        (5, "is a text in Jinja's language, not int"),
    ],
)
def test_a_source_that_is_no_template_is_rejected(source: Any, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source)


def test_tools_and_variables_of_other_types_are_rejected() -> None:
    template, wrong = ChatTemplate("{{ messages }}"), ("x", {"type": "function"}, 5)
    for tools in wrong:
        given: Any = tools
        with pytest.raises(ChatTemplateError, match=r"^tools must be a list of objects, not "):
            template.render([_user("x")], tools=given)
    for variables in ("x", [1], 5):
        given = variables
        with pytest.raises(ChatTemplateError, match=r"^the template's variables must be by name"):
            template.render([_user("x")], variables=given)
