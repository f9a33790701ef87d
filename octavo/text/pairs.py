"""Prompts of several texts: pairs for cross-encoders, and parts that are tokenised separately.

A pair has the form that the model was trained on. Encoders read it in the tokenizer's own form,
with special tokens between the texts. Rerankers made of decoders read a template. It is a chat
template for messages with the roles "query" and "document" and, for an instruction, "system".
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from octavo.text.token_bytes import TokenizerError
from octavo.text.token_table import TokenTable

if TYPE_CHECKING:
    from octavo.text.chat.template import ChatTemplate

ROLES = ("query", "document")
# The templates of rerankers whose files have none.
TEMPLATES: Mapping[str, str] = {
    "qwen3_reranker": ""
    "{%- set instruction = namespace(text='Given a web search query, retrieve relevant passages "
    "that answer the query') -%}"
    "{%- set texts = namespace(query='', document='') -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{%- set instruction.text = message.content -%}"
    "{%- elif message.role == 'query' -%}{%- set texts.query = message.content -%}"
    "{%- else -%}{%- set texts.document = message.content -%}{%- endif -%}"
    "{%- endfor -%}"
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {{ instruction.text }}\n<Query>: {{ texts.query }}\n"
    "<Document>: {{ texts.document }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n{{ '' }}",
}
_MOST_CUTS = 8  # a text that is cut between two characters may get other tokens, and more of them


class Pair(Struct, frozen=True, kw_only=True):
    """Two texts that are read together, and the form of their prompt."""

    query: str
    document: str
    query_tokens: int | None = None  # of the query, at most; it is cut at its end
    document_tokens: int | None = None
    instruction: str | None = None  # of models that read one
    template: str | None = None  # instead of the model's own form
    form: str = ""  # a name in TEMPLATES, for a model without a template of its own


class Part(Struct, frozen=True, kw_only=True):
    """One part of a prompt: a text or token ids."""

    text: str = ""
    packed_ids: bytes = b""  # instead of a text
    is_framed: bool = False  # with the special tokens around a text


def template_of(pair: Pair, own: Mapping[str, str]) -> str | None:
    """Return the template of a pair; None if the tokenizer has a form of its own."""
    for source in (pair.template, own.get("default")):
        if source is not None and all(role in source for role in ROLES):
            return source
    return TEMPLATES.get(pair.form)


def _shortened(pair: Pair, tokenizer: TokenTable) -> Pair:
    """Return a pair whose texts have no more tokens than they may, each by itself."""
    query, document = pair.query, pair.document
    if pair.query_tokens is not None:
        query = tokenizer.beginning(query, pair.query_tokens)
    if pair.document_tokens is not None:
        document = tokenizer.beginning(document, pair.document_tokens)
    return replace(pair, query=query, document=document)


def encode_pair(
    tokenizer: TokenTable,
    pair: Pair,
    compiled: Callable[[str], ChatTemplate],
    most_tokens: int | None = None,
) -> tuple[list[int], int]:
    """Return the token ids of a pair, and where the second text begins (0 in a template).

    What has more than `most_tokens` is cut: in a template the document, at its end.
    """
    pair = _shortened(pair, tokenizer)
    source = template_of(pair, tokenizer.chat_templates)
    if source is None:
        if pair.instruction is not None:
            raise TokenizerError("this model reads no instruction beside a pair; leave it out")
        return tokenizer.encode_framed(pair.query, pair.document, most_tokens)
    template, document = compiled(source), pair.document
    for _ in range(_MOST_CUTS):
        messages = [{"role": "query", "content": pair.query}]
        messages.append({"role": "document", "content": document})
        if pair.instruction is not None:
            messages.insert(0, {"role": "system", "content": pair.instruction})
        ids = tokenizer.encode(template.render(messages), add_special_tokens=False)
        num_over = 0 if most_tokens is None else len(ids) - most_tokens
        if num_over <= 0:
            return ids, 0
        kept = tokenizer.encode(document, add_special_tokens=False)[:-num_over]
        if not kept:
            break
        document = tokenizer.decode(kept, skip_special_tokens=False)
    raise TokenizerError(
        f"{most_tokens} tokens leave nothing of the document beside the query and the template; "
        "allow more"
    )


def encode_parts(tokenizer: TokenTable, parts: Sequence[Part]) -> array[int]:
    """Return the tokens of all parts, one behind the other."""
    ids = array("i")
    for part in parts:
        ids.frombytes(part.packed_ids)
        if part.text or part.is_framed:
            ids.extend(tokenizer.encode(part.text, add_special_tokens=part.is_framed))
    return ids
