"""A conversation with a model, whose answers are streamed to the terminal.

`chat` reads lines and a few commands, and survives Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from octavo.api.async_llm import AsyncLLM
from octavo.api.pooling.tasks import check_generates
from octavo.api.prompts import Prompt
from octavo.core.sampling_params import RequestError, SamplingParams
from octavo.text.chat.template import ChatTemplate, choose_template
from octavo.text.tokenizer import Tokenizer

HELP = """\
/clear   forget the conversation
/exit    leave (Ctrl-D and two Ctrl-C do so too)
/help    show this text
\"\"\"      begins and ends a text of several lines
"""
PROMPT, CONTINUED = ">>> ", "... "
QUOTES = '"""'


class ChatSession:
    """A model and the messages so far."""

    def __init__(
        self,
        llm: AsyncLLM,
        settle: Callable[[SamplingParams], SamplingParams],
        *,
        system: str | None = None,
        template: str | None = None,
        is_raw: bool = False,
        shows_speed: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._llm = llm
        self._stream = stream or sys.stdout
        self._shows_speed = shows_speed
        self._system = system
        try:
            check_generates(llm.facts)
            self._tokenizer: Tokenizer = asyncio.run(llm.get_tokenizer())
            self._sampling = settle(llm.get_default_sampling_params())
            self._template = None if is_raw else _template(self._tokenizer, template)
        except BaseException:
            llm.close()
            raise
        self.messages: list[dict[str, str]] = []
        self.forget()

    def forget(self) -> None:
        """Start a new conversation, with the same system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def close(self) -> None:
        """Release the model's memory."""
        self._llm.close()

    def answer(self, prompt: str) -> str:
        """Write the answer while it is generated.

        After Ctrl-C the conversation keeps the text so far; a request that fails leaves no trace.
        """
        self.messages.append({"role": "user", "content": prompt})
        pieces: list[str] = []
        is_kept = False
        try:
            asyncio.run(self._follow(self._prompt(prompt), pieces))
            is_kept = True
        except KeyboardInterrupt:
            is_kept = bool(pieces)
            raise
        finally:
            if is_kept:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()
            if pieces:
                self._write("\n")
        return "".join(pieces)

    def _prompt(self, prompt: str) -> Prompt:
        if self._template is None:
            return prompt
        text = self._template.render(self.messages, add_generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": ids}

    async def _follow(self, prompt: Prompt, pieces: list[str]) -> None:
        began = first = time.monotonic()
        num_tokens = num_prompt = 0
        async for output in self._llm.generate(prompt, self._sampling):
            if not num_tokens:
                first = time.monotonic()
            part = output.outputs[0]
            num_tokens += len(part.token_ids)
            num_prompt = len(output.prompt_ids)
            if part.text:
                pieces.append(part.text)
                self._write(part.text)
        if self._shows_speed:
            _show_speed(num_prompt, num_tokens, first - began, time.monotonic() - first)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _template(tokenizer: Tokenizer, source: str | None) -> ChatTemplate:
    if source is None:
        if not tokenizer.chat_templates:
            raise RequestError(
                "this model has no chat template, so it was not made for conversations; continue "
                "a text with --raw, or give it a template with --chat-template FILE"
            )
        source = choose_template(tokenizer.chat_templates, with_tools=False)
    return ChatTemplate(source, tokenizer.special_tokens)


def _show_speed(num_prompt: int, num_tokens: int, first: float, rest: float) -> None:
    speed = f", {(num_tokens - 1) / rest:.1f} tokens/s after it" if num_tokens > 1 else ""
    sys.stderr.write(
        f"\n{num_prompt} prompt tokens, first token after {first * 1000:.0f} ms, "
        f"{num_tokens} tokens{speed}\n"
    )


class Partner(Protocol):
    """The model's side of the conversation."""

    def answer(self, prompt: str) -> str:
        """Write the answer to a message."""

    def forget(self) -> None:
        """Start a new conversation."""


def chat(partner: Partner, read: Callable[[str], str] = input) -> int:
    """Run the conversation until its user leaves."""
    with contextlib.suppress(ImportError):  # lets the user edit lines
        import readline  # noqa: F401
    sys.stdout.write("Ask something; /help lists the commands.\n")
    is_leaving = False
    while True:
        try:
            text = _read_text(read)
            is_leaving = False
            if text and not _command(text, partner):
                partner.answer(text)
        except KeyboardInterrupt:
            if is_leaving:
                raise
            is_leaving = True
            sys.stdout.write("\n(Ctrl-C again to leave)\n")
        except EOFError:
            sys.stdout.write("\n")
            return 0
        except RequestError as error:
            sys.stderr.write(f"{error}\n")


def _read_text(read: Callable[[str], str]) -> str:
    """Read a line, or the lines between quotes."""
    line = read(PROMPT).strip()
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read(CONTINUED))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()


def _command(text: str, partner: Partner) -> bool:
    """Execute a command, and return whether the text was one."""
    match text:
        case "/clear":
            partner.forget()
            sys.stdout.write("Started a new conversation.\n")
        case "/exit" | "/quit" | "/bye":
            raise EOFError
        case _ if text.startswith("/") and " " not in text:
            sys.stdout.write(HELP)
        case _:
            return False
    return True
