"""The part of a server on which the translation of a request depends, in one value.

The server has one from its start on. A prompt worker that reads a body receives the same value, so
that a body is translated there exactly as in the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from octavo.serving.answers.formats import AnswerFormats
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.text.chat.messages import ContentFormat
from octavo.wire.facts import EngineFacts
from octavo.workers.jobs import Conversation


class TranslationContext(Struct, frozen=True, kw_only=True):
    """Facts about the model and the settings that translations read; all of it can be sent."""

    facts: EngineFacts
    formats: AnswerFormats
    chat_template: str | None
    trust_request_chat_template: bool
    default_chat_template_kwargs: Mapping[str, Any] | None
    log_prompts: bool
    content_format: ContentFormat = "auto"  # of chat templates
    cohere_is_reasoning_model: bool | None = None  # None: as the format of reasoning is
    tokens_only: bool = False  # no answer has a text
    is_verbose: bool = False  # answers at llama.cpp's own path have their prompt
    seed: int = 0  # of requests without one, in dialects where they share it; 0: they draw one
    has_dates: bool = False  # chat templates get the date in variables
    max_embed_len: int | None = None  # of a text that is embedded in pieces

    def conversation(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any],
        use: ToolUse = NO_TOOLS,
        *,
        is_continued: bool = False,
        **others: Any,
    ) -> Conversation:
        """Return what the chat template is given; it has the server's variables too.

        If it is continued, the answer goes on with the last message.
        """
        arguments = {
            "tool_format": self.formats.formats.tools,
            "template": self.chat_template,
            "add_generation_prompt": not is_continued,
            "continue_final_message": is_continued,
            **others,
        }
        return Conversation(
            content_format=self.content_format,
            messages=messages,
            tools=list(use.described) or None,
            variables={**(self.default_chat_template_kwargs or {}), **variables},
            has_dates=self.has_dates,
            **arguments,
        )
