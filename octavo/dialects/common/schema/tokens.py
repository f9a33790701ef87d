"""The requests and responses of /tokenize and /detokenize."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.dialects.common.schema.chat import MAX_MESSAGES, MESSAGES_SCHEMA, Message
from octavo.dialects.common.schema.completion import PromptTokens
from octavo.dialects.common.schema.tools import Tools
from octavo.dialects.common.schema.unsupported import CHAT_RULES, RULES
from octavo.serving.schema.rules import FieldRules


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of /tokenize: a text in `prompt`, or a conversation in `messages`.

    llama.cpp's clients send the text as `content`.
    """

    rules: ClassVar[FieldRules] = replace(
        CHAT_RULES, ignored=RULES.ignored, other_names=RULES.other_names
    )
    # For the OpenAPI document; null is the same as no value.
    schema: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
            {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            {"required": ["content"], "properties": {"content": {"type": "string"}}},
        ],
        "allOf": [MESSAGES_SCHEMA],
    }
    model: Annotated[str, Meta(max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None  # default: true for a text, false for a conversation
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    tools: Tools | None = None
    content: str | None = None  # llama.cpp's name of the text
    add_special: bool = False  # with `content`, instead of add_special_tokens
    with_pieces: bool = False  # with `content`: list each token with its text
    parse_special: bool = True  # with `content`; false is refused


class TokenPiece(Struct, kw_only=True):
    """A token with its text, or with its bytes if they are no whole characters."""

    id: int
    piece: str | list[int]


class TokenizeResponse(Struct, kw_only=True):
    """The token ids, and on request their strings in the vocabulary."""

    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of /detokenize: token ids."""

    rules: ClassVar[FieldRules] = RULES
    tokens: PromptTokens
    model: Annotated[str, Meta(max_length=512)] | None = None


class DetokenizeResponse(Struct, kw_only=True):
    """The text of the token ids, under vLLM's name and under llama.cpp's.

    llama.cpp's clients name no model; answers to those who do have vLLM's name alone.
    """

    prompt: str
    content: str | UnsetType = UNSET
