"""A pair becomes one prompt in the tokenizer's own form, or in a template's, cut to fit."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from octavo.text.chat.template import ChatTemplate
from octavo.text.pairs import TEMPLATES, Pair, encode_pair
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer

WORDS = ["[CLS]", "[SEP]", "[UNK]", *"abcdefgh", "Q", "D"]
CLS, SEP = 0, 1
A, B, C, Q, D = (WORDS.index(word) for word in ("a", "b", "c", "Q", "D"))
TEMPLATE = "{# query document #}Q {{ messages[-2].content }} D {{ messages[-1].content }} h"


def make(templates: dict[str, str] | None = None) -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    backend = Backend(models.WordLevel(vocabulary, "[UNK]"))
    splitter: Any = pre_tokenizers.WhitespaceSplit()
    backend.pre_tokenizer = splitter
    frame: Any = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    backend.post_processor = frame
    return Tokenizer(backend, chat_templates=templates)


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source)


@pytest.mark.parametrize(
    ("most", "ids", "second_from"),
    [
        (None, [CLS, A, A, A, SEP, B, B, SEP], 5),
        (8, [CLS, A, A, A, SEP, B, B, SEP], 5),
        (6, [CLS, A, A, SEP, B, SEP], 4),
        (5, [CLS, A, SEP, B, SEP], 3),
    ],
)
def test_both_texts_are_framed_and_cut(most: int | None, ids: list[int], second_from: int) -> None:
    tokenizer = make()
    pair = Pair(query="a a a", document="b b")
    assert encode_pair(tokenizer, pair, compiled, most) == (ids, second_from)
    assert tokenizer.encode("a a a") == [CLS, A, A, A, SEP]  # nothing is cut afterwards


def test_a_cut_text_keeps_its_frame() -> None:
    tokenizer = make()
    assert tokenizer.encode_framed("a b c", most_tokens=4) == ([CLS, A, B, SEP], 0)
    assert tokenizer.encode_framed("a b c", most_tokens=2, add_special_tokens=False) == ([A, B], 0)
    with pytest.raises(TokenizerError, match="2 tokens leave nothing of the text beside the"):
        tokenizer.encode_framed("a b c", most_tokens=2)
    assert tokenizer.encode_framed("a", "")[1] == 3  # the last special token is the second text


@pytest.mark.parametrize("is_own", [False, True])
def test_a_template_for_pairs_is_the_form(is_own: bool) -> None:
    tokenizer = make({"default": TEMPLATE} if is_own else {"default": "a chat: {{ messages }}"})
    given = None if is_own else TEMPLATE
    pair = Pair(query="a b", document="c c c c", template=given)
    h = WORDS.index("h")
    assert encode_pair(tokenizer, pair, compiled)[0] == [Q, A, B, D, C, C, C, C, h]
    assert encode_pair(tokenizer, pair, compiled, 7) == ([Q, A, B, D, C, C, h], 0)
    with pytest.raises(TokenizerError, match="5 tokens leave nothing of the document"):
        encode_pair(tokenizer, pair, compiled, 5)


def test_qwen3_s_rerankers_have_a_template_of_their_own() -> None:
    source = TEMPLATES["qwen3_reranker"]
    messages = [{"role": "query", "content": "{{q}}"}, {"role": "document", "content": "d"}]
    default = "Given a web search query, retrieve relevant passages that answer the query"
    expected = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        f"<|im_start|>user\n<Instruct>: {default}\n<Query>: {{{{q}}}}\n<Document>: d<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert compiled(source).render(messages) == expected
    own = [{"role": "system", "content": "Be strict"}, *messages]
    assert compiled(source).render(own) == expected.replace(default, "Be strict")


def test_an_instruction_needs_a_template() -> None:
    pair = Pair(query="a", document="b", instruction="c")
    with pytest.raises(TokenizerError, match="reads no instruction"):
        encode_pair(make(), pair, compiled)
