"""Chat templates: a conversation becomes the prompt that the model expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateSyntaxError

from octavo.loader.errors import quote
from octavo.text.chat.content_parts import reads_parts
from octavo.text.chat.messages import (
    REASONING_FIELDS,
    ChatTemplateError,
    ContentFormat,
    Message,
    plain,
    put_into_parts,
    read_messages,
)
from octavo.text.chat.sandbox import TemplateSandbox, dates
from octavo.text.token_table import MAX_TEMPLATE_CHARACTERS

if TYPE_CHECKING:
    from octavo.formats.description import ToolFormat

Place = tuple[int, int]  # of the first character, and of the one behind the last
MAX_OUTPUT_CHARACTERS = 1 << 23
# The variables that every template gets; a caller's own variables cannot replace them.
OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# The condition by which some templates recognise a message that has only calls.
_NO_CONTENT = re.compile(r"""content(?:["']\])?\s+is\s+(?:not\s+)?none""", re.IGNORECASE)
# Ends a message that is to be continued; the prompt is cut there. The space after it shows whether
# the template keeps a message's trailing spaces.
MARK = "<<the message goes on here>>"


class ChatTemplate:
    """One template, compiled once; it renders what the reference implementation renders.

    The result depends only on the arguments: `now` supplies the date. A template is hostile input.
    The sandbox keeps it from everything but its variables, and the sizes of the template and of its
    output are limited. Its time and memory are not: a long loop, or a string multiplied, may use
    any amount. `LLM.chat` accepts that, since it renders in the caller's own process; the
    server compiles and renders in a prompt worker, which has limits of time and memory.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if not isinstance(source, str):
            raise ChatTemplateError(
                f"a chat template is a text in Jinja's language, not {type(source).__name__}"
            )
        if "{" not in source:
            raise ChatTemplateError(
                f"the chat template {quote(source)} would give the same prompt for every "
                "conversation; give the template's text, not its file's name"
            )
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ChatTemplateError(
                f"the chat template has {len(source)} characters, more than the limit of "
                f"{MAX_TEMPLATE_CHARACTERS}; shorten it"
            )
        self.source = source
        self._now = now
        self._special_tokens = dict(special_tokens or {})
        self._shows_tools = "tools" in source
        self._reads_calls = "tool_calls" in source
        self._knows_none = _NO_CONTENT.search(source) is not None
        try:
            self._sandbox = TemplateSandbox(now)
            self._template = self._sandbox.from_string(source)
            self.takes_parts = reads_parts(source)  # otherwise content must be a string
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid in line {error.lineno}: {error.message}; correct "
                "it, or give another chat_template"
            ) from error
        except (SyntaxError, RecursionError, TemplateError) as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_format: ToolFormat | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        variables: Mapping[str, Any] | None = None,
        answers: list[Place] | None = None,
        content_format: ContentFormat = "auto",
        has_dates: bool = False,
    ) -> str:
        """Return the prompt for `messages`.

        A template that reads content as a list of parts gets such a list; for other templates the
        parts are joined by newlines. Tool calls' arguments are passed as objects. What the
        template does not know of tools becomes text in the `tool_format`, and so does all of it
        if that is the generic one; without a format it is left out, which `check_tools` refuses.
        `add_generation_prompt` opens the assistant's turn. `continue_final_message` leaves the
        last message open instead, so that the model continues it; a string names the field that
        is to be continued. `variables` are whatever else this template reads. The places of the
        assistant's texts, as far as the template marks them, are added to `answers`. The
        `content_format` says what the template reads, if that is not to be seen from it.
        """
        _check_kinds(tools, variables)
        if reserved := OWN_VARIABLES & (variables or {}).keys():
            name = f"chat_template_kwargs.{min(reserved)}"
            raise ChatTemplateError(f"{name} has a parameter of its own: use that", param=name)
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "add_generation_prompt=true opens a new message and continue_final_message=true "
                "continues the last one: use one of them",
                param="continue_final_message",
            )
        takes_parts = self.takes_parts if content_format == "auto" else content_format == "openai"
        chat = read_messages(
            messages, takes_parts=takes_parts, knows_developer="developer" in self.source
        )
        if content_format == "openai":
            put_into_parts(chat)
        known: dict[str, Any] = {
            **self._special_tokens,
            **(dates(self._now()) if has_dates else {}),
            **plain(variables or {}),
            "tools": plain(tools),
            "documents": plain(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        known["messages"] = chat = self._with_tools(chat, known, tool_format)
        if not continue_final_message:
            return self._run(known, answers)
        field = "content" if continue_final_message is True else continue_final_message
        text = _mark_end(chat[-1], field, self.source)
        return _cut_at_mark(self._run(known, answers), text)

    @property
    def marks_answers(self) -> bool:
        """True if the template says which texts are the assistant's."""
        return self._sandbox.marks_answers

    def _with_tools(
        self, chat: list[dict[str, Any]], known: dict[str, Any], tool_format: ToolFormat | None
    ) -> list[dict[str, Any]]:
        """Return the messages with what the template does not know of tools."""
        if tool_format is not None:
            chat = self._with_text(chat, known, tool_format)
        if self._knows_none:
            for message in chat:
                if "tool_calls" in message:
                    message.setdefault("content", None)
        return chat

    def _with_text(
        self, chat: list[dict[str, Any]], known: dict[str, Any], tool_format: ToolFormat
    ) -> list[dict[str, Any]]:
        """Return the messages with what the template does not know of tools as text.

        Tools that are text then are taken out of the `known` variables.
        """
        # Imported here, with all formats of calls, because most conversations have no tools.
        from octavo.text.chat.tools_as_text import (
            instructions,
            with_instructions,
            with_turns_as_text,
            with_written_calls,
        )

        if tool_format.is_generic or not self._shows_tools:
            chat = with_turns_as_text(chat, tool_format)
            tools, known["tools"] = known["tools"], None
            if tools:
                alone = {**known, "add_generation_prompt": False}
                text = instructions(tools, tool_format)
                chat = with_instructions(
                    chat, text, lambda probe: self._run({**alone, "messages": probe})
                )
        elif not self._reads_calls:
            chat = with_written_calls(chat, tool_format)
        return chat

    def check_tools(self, messages: Sequence[Message], tools: object) -> None:
        """Refuse tools, or calls in messages, that the template would leave out silently."""
        if tools and not self._shows_tools:
            raise ChatTemplateError(
                "the chat template does not show tools to the model; use a template that does "
                "(--chat-template), or leave the tools out",
                param="tools",
            )
        for index, message in enumerate(messages):
            if message.get("tool_calls") and not self._reads_calls:
                where = f"messages[{index}].tool_calls"
                raise ChatTemplateError(
                    f"{where}: the chat template does not show calls to the model; use a template "
                    "that does (--chat-template), or write the calls into the content",
                    param=where,
                )

    def _run(self, variables: Mapping[str, Any], answers: list[Place] | None = None) -> str:
        """Render, and turn every failure into a ChatTemplateError."""
        try:
            return self._collect(variables, answers)
        except ChatTemplateError:
            raise
        except RecursionError as error:
            raise ChatTemplateError("the chat template is nested too deeply") from error
        except Exception as error:  # a template can raise anything
            what = str(error) or type(error).__name__
            raise ChatTemplateError(
                f"the chat template cannot render this conversation: {what}"
            ) from error

    def _collect(self, variables: Mapping[str, Any], answers: list[Place] | None) -> str:
        parts: list[str] = []
        num_characters = 0
        marked: list[tuple[int, str]] = []
        if answers is not None:
            self._sandbox.on_answer = lambda text: marked.append((num_characters, text))
        try:
            for part in self._template.generate(variables):
                num_characters += len(part)
                if num_characters > MAX_OUTPUT_CHARACTERS:
                    raise ChatTemplateError(
                        f"the chat template wrote more than {MAX_OUTPUT_CHARACTERS} characters, "
                        "which is the limit of a prompt"
                    )
                parts.append(part)
        finally:
            self._sandbox.on_answer = None
        text = "".join(parts)
        if answers is not None:
            answers += [(start, start + len(each)) for start, each in marked]
            # A template that captures a marked text writes it elsewhere, or changes it.
            if any(not text.startswith(each, start) for start, each in marked):
                raise ChatTemplateError(
                    "the chat template does not write the texts that it marks as the assistant's "
                    "where it marks them; leave return_assistant_tokens_mask out",
                    param="return_assistant_tokens_mask",
                )
        return text


def _check_kinds(tools: object, variables: object) -> None:
    """Refuse tools and variables of types that no template can use."""
    if variables is not None and not isinstance(variables, Mapping):
        raise ChatTemplateError(
            f"the template's variables must be by name, not {type(variables).__name__}"
        )
    if tools is not None and not isinstance(tools, list | tuple):
        raise ChatTemplateError(f"tools must be a list of objects, not {type(tools).__name__}")


def choose_template(templates: Mapping[str, str], *, with_tools: bool) -> str:
    """Return the source of the model's template: the one for tools if there are tools."""
    for name in ("tool_use", "default") if with_tools else ("default",):
        if name in templates:
            return templates[name]
    if templates:
        raise ChatTemplateError(
            "the model has no default chat template, but these: " + ", ".join(sorted(templates))
        )
    raise ChatTemplateError("the model has no chat template; give one, or send a plain prompt")


def _mark_end(message: dict[str, Any], field: str, source: str) -> str:
    """Put the mark at the end of the message's `field`, and return the text before it."""
    text = message.get(field)
    if text is None:
        raise ChatTemplateError(f"the last message has no {field!r} that could be continued")
    fields = [field]
    if field in REASONING_FIELDS:
        fields = [name for name in REASONING_FIELDS if message.get(name) == text]
    if not any(name in source for name in fields):
        raise ChatTemplateError(f"the chat template does not read {field!r}: nothing to continue")
    if isinstance(text, str):
        message.update(dict.fromkeys(fields, f"{text}{MARK} "))
        return text
    blocks = text if isinstance(text, list) else []
    for block in reversed(blocks):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            text = block["text"]
            block["text"] = f"{text}{MARK} "
            return str(text)
    raise ChatTemplateError("the last message has no text that could be continued")


def _cut_at_mark(rendered: str, text: str) -> str:
    """Return the prompt up to the end of the last message."""
    position = rendered.rfind(MARK)
    if position < 0 or text.strip() not in rendered:
        raise ChatTemplateError(
            "the chat template changes or leaves out the last message, so it cannot be continued"
        )
    before = rendered[:position]
    keeps_spaces = rendered.startswith(" ", position + len(MARK))
    return before if keeps_spaces else before.rstrip()


def mask_of(tokens: Sequence[Place], answers: Sequence[Place]) -> bytes:
    """Return a byte for each token: 1 if a part of it is in an answer, 0 if not.

    The answers are in the order of the text, and so are the tokens, but those that are not of the
    text are at (0, 0).
    """
    mask = bytearray(len(tokens))
    number = 0
    for index, (start, end) in enumerate(tokens):
        while number < len(answers) and answers[number][1] <= start:
            number += 1
        if number == len(answers):
            break
        mask[index] = start < end and end > answers[number][0]
    return bytes(mask)
