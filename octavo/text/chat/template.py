"""A conversation as the prompt that its model expects, written by the model's own template."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from octavo.loader.errors import quote
from octavo.text.chat.budget import (
    Budget,
    ChatTemplateError,
    TemplateLimitError,
    TemplateLimits,
    spending,
)
from octavo.text.chat.content_parts import reads_parts
from octavo.text.chat.messages import OWN_VARIABLES, REASONING_FIELDS, Message, plain, read_messages
from octavo.text.chat.sandbox import TemplateSandbox

# Stands at the end of a message that is to be continued until the prompt is cut there. The space
# shows whether the template keeps the one that a message ends with.
MARK = "<<the message goes on here>>"


class ChatTemplate:
    """One template, compiled once.

    It renders what the reference implementation renders, but under limits, and always as a pure
    function of its arguments: `now` is where the date comes from. A template is hostile input,
    and the limits leave it seconds of time: a server renders in a process that it can kill.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._limits = limits or TemplateLimits()
        if not isinstance(source, str):
            raise ChatTemplateError(
                f"a chat template is a text in Jinja's language, not {type(source).__name__}"
            )
        if "{" not in source:
            raise ChatTemplateError(
                f"the chat template {quote(source)} would say the same of every conversation; "
                "give the template's text, not its file's name"
            )
        if len(source) > self._limits.template_characters:
            raise TemplateLimitError(
                f"the chat template has {len(source)} characters, more than"
                f" {self._limits.template_characters}"
            )
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = TemplateSandbox(now).from_string(source)
            self.takes_parts = reads_parts(source)  # else a message's content must be a text
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid in line {error.lineno}: {error.message}"
            ) from error
        except (SyntaxError, RecursionError, TemplateError) as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`.

        Content that comes as a list of text parts is handed on so to a template that reads such
        lists, and joined by newlines for others. Tool calls' arguments are handed on as objects.
        `add_generation_prompt` opens the assistant's turn. `continue_final_message` leaves the
        last message open instead, so that the model goes on with it; as a string it names the
        field that is to be continued. `variables` are whatever else this template knows.
        """
        _check_kinds(tools, variables)
        if taken := OWN_VARIABLES & (variables or {}).keys():
            raise ChatTemplateError(f"{min(taken)} is not a variable that can be given by name")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "add_generation_prompt opens a new message and continue_final_message continues the"
                " last one: use one of them"
            )
        chat = read_messages(messages, takes_parts=self.takes_parts)
        known: dict[str, Any] = {
            **self._special_tokens,
            **plain(variables or {}),
            "messages": chat,
            "tools": plain(tools),
            "documents": plain(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._run(known)
        field = "content" if continue_final_message is True else continue_final_message
        text = _mark_end(chat[-1], field, self.source)
        return _cut_at_mark(self._run(known), text)

    def _run(self, variables: Mapping[str, Any]) -> str:
        """Render, and put every way in which this can fail into words."""
        try:
            with spending(Budget(self._limits)):
                return self._collect(variables)
        except ChatTemplateError:
            raise
        except RecursionError as error:
            raise TemplateLimitError("the chat template is nested too deeply") from error
        except Exception as error:  # a template can make anything fail
            what = str(error) or type(error).__name__
            raise ChatTemplateError(
                f"the chat template cannot render this conversation: {what}"
            ) from error

    def _collect(self, variables: Mapping[str, Any]) -> str:
        parts, num_characters = [], 0
        for part in self._template.generate(variables):
            num_characters += len(part)
            if num_characters > self._limits.output_characters:
                raise TemplateLimitError(
                    f"the chat template wrote more than {self._limits.output_characters} characters"
                )
            parts.append(part)
        return "".join(parts)


def _check_kinds(tools: object, variables: object) -> None:
    """Whatever else these are, a template could do no good with it."""
    if variables is not None and not isinstance(variables, Mapping):
        raise ChatTemplateError(
            f"the template's variables must be by name, not {type(variables).__name__}"
        )
    if tools is not None and not isinstance(tools, list | tuple):
        raise ChatTemplateError(f"tools must be a list of objects, not {type(tools).__name__}")


def choose_template(templates: Mapping[str, str], *, with_tools: bool) -> str:
    """The source to use of a model's templates: the one for tools, where there are tools."""
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
    """The prompt up to where the last message ends."""
    position = rendered.rfind(MARK)
    if position < 0 or text.strip() not in rendered:
        raise ChatTemplateError(
            "the chat template changes or leaves out the last message, so it cannot be continued"
        )
    before = rendered[:position]
    keeps_spaces = rendered.startswith(" ", position + len(MARK))
    return before if keeps_spaces else before.rstrip()
