"""The render routes say where tokens are in the text, and which are the assistant's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.text.chat.messages import ChatTemplateError
from octavo.text.chat.template import ChatTemplate, mask_of
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import Client, serving

CHAT, TEXT = "/v1/chat/completions/render", "/v1/completions/render"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}A: "
    "{% generation %}{{ message.content }}!{% endgeneration %}\n"
    "{% else %}U: {{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
CAPTURED = (
    "{% set x %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endset %}now {{ x }}"
)
MESSAGES = [
    {"role": "user", "content": "The quick fox"},
    {"role": "assistant", "content": "jumps, über den Hund"},
    {"role": "user", "content": "The quick fox"},
    {"role": "assistant", "content": "jumps again"},
]
OFFSETS: dict[str, Any] = {"return_token_offsets": True, "return_prompt_text": True}
MASK: dict[str, Any] = {"return_assistant_tokens_mask": True}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


async def text_of(client: Client, tokens: list[int]) -> str:
    answer = await client.post("/detokenize", json={"tokens": tokens})
    text: str = answer.json()["prompt"]
    return text


@pytest.mark.parametrize("add_special_tokens", [False, True])
@in_loop
async def test_tokens_are_where_their_text_is(directory: Path, add_special_tokens: bool) -> None:
    async with serving(directory, chat_template=TEMPLATE) as client:
        text = "The quick fox, über den Hund 漢字"
        given = [text, [5, 6, 7], text * 2]
        body = {"prompt": given, "add_special_tokens": add_special_tokens, **OFFSETS}
        first, ids, second = (await client.post(TEXT, json=body)).json()
        assert ids["token_offsets"] is None
        for made, source in ((first, text), (second, text * 2)):
            places = made["token_offsets"]
            assert len(places) == len(made["token_ids"])
            assert [0, 0] not in places[add_special_tokens:]
            covered = {at for start, end in places for at in range(start, end)}
            assert {at for at, each in enumerate(source) if not each.isspace()} <= covered
        answer = (await client.post(CHAT, json={"messages": MESSAGES, **OFFSETS})).json()
        for token, (start, end) in zip(answer["token_ids"], answer["token_offsets"], strict=True):
            piece = answer["prompt_text"][start:end]
            if piece.isascii():
                assert (await text_of(client, [token])).strip() == piece.strip()
        again = (await client.post(CHAT, json={"messages": MESSAGES})).json()
        assert again["token_ids"] == answer["token_ids"]
        assert again["token_offsets"] is None


@in_loop
async def test_a_prompt_that_is_cut_keeps_the_places_of_its_tokens(directory: Path) -> None:
    async with serving(directory) as client:
        body = {"prompt": "The quick fox jumps", "add_special_tokens": False, **OFFSETS}
        (whole,) = (await client.post(TEXT, json=body)).json()
        (cut,) = (await client.post(TEXT, json={**body, "truncate_prompt_tokens": 2})).json()
        assert cut["token_ids"] == whole["token_ids"][-2:]
        assert cut["token_offsets"] == whole["token_offsets"][-2:]


@in_loop
async def test_the_assistants_tokens_are_marked(directory: Path) -> None:
    async with serving(directory, chat_template=TEMPLATE) as client:
        answer = (await client.post(CHAT, json={"messages": MESSAGES, **MASK, **OFFSETS})).json()
        mask, text = answer["assistant_tokens_mask"], answer["prompt_text"]
        assert len(mask) == len(answer["token_ids"])
        said = ["jumps, über den Hund!", "jumps again!"]
        marked = set()
        for each in said:
            start = text.index(each)
            marked |= set(range(start, start + len(each)))
        places = answer["token_offsets"]
        assert mask == [int(any(at in marked for at in range(*place))) for place in places]
        assert 0 in mask
        sent = await client.post("/inference/v1/generate", json={**answer, "prompt_text": None})
        assert sent.status_code == 200
        alone = (await client.post(CHAT, json={"messages": MESSAGES[:1], **MASK})).json()
        assert set(alone["assistant_tokens_mask"]) == {0}
        last = {**MASK, "continue_final_message": True, "add_generation_prompt": False}
        going = (await client.post(CHAT, json={"messages": MESSAGES, **last})).json()
        assert going["assistant_tokens_mask"][-1] == 1


@pytest.mark.parametrize(
    ("template", "path", "body", "param"),
    [
        ("{{ messages[0].content }}", CHAT, MASK, "return_assistant_tokens_mask"),
        (CAPTURED, CHAT, MASK, "return_assistant_tokens_mask"),
        (TEMPLATE, TEXT, {"suffix": "x", "return_token_offsets": True}, "return_token_offsets"),
    ],
)
@in_loop
async def test_what_cannot_be_said_is_refused(
    directory: Path, template: str, path: str, body: dict[str, Any], param: str
) -> None:
    async with serving(directory, chat_template=template) as client:
        given = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
        answer = await client.post(path, json={**given, **body})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


def test_a_template_reports_what_it_marks() -> None:
    template = ChatTemplate(TEMPLATE)
    answers: list[tuple[int, int]] = []
    text = template.render(MESSAGES, answers=answers)
    assert [text[start:end] for start, end in answers] == [
        "jumps, über den Hund!",
        "jumps again!",
    ]
    assert template.render(MESSAGES) == text
    with pytest.raises(ChatTemplateError):
        ChatTemplate("x{% set x %}{% generation %}y{% endgeneration %}{% endset %}").render(
            MESSAGES, answers=[]
        )


def test_a_token_is_marked_if_a_part_of_it_is_in_an_answer() -> None:
    tokens = [(0, 0), (0, 2), (2, 4), (4, 5), (5, 5), (5, 9), (9, 12), (0, 0)]
    assert list(mask_of(tokens, [(3, 5), (10, 11)])) == [0, 0, 1, 1, 0, 0, 1, 0]
    assert list(mask_of(tokens, [])) == [0] * 8
    assert mask_of([], [(0, 1)]) == b""
