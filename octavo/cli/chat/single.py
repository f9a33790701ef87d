"""One answer of an engine of this process: to a message, or to a text that it continues."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from octavo.api.llm import LLM
from octavo.api.outputs import RequestOutput
from octavo.api.pooling.served import check_generates
from octavo.api.prompts import Prompt
from octavo.cli.chat.display import Display
from octavo.core.sampling_params import RequestError, SamplingParams
from octavo.text.chat.template import ChatTemplate, choose_template

NO_TEMPLATE = (
    "this model has no chat template, so it was not made for conversations; continue a text with "
    "--raw, or give it a template with --chat-template FILE"
)


def answer(
    llm: LLM,
    prompt: str,
    settle: Callable[[SamplingParams], SamplingParams],
    *,
    system: str | None = None,
    template: str | None = None,
    is_raw: bool = False,
    shows_stats: bool = False,
) -> None:
    """Write the answer while it is generated.

    It starts sooner than a conversation, which has the server's reading of requests and an event
    loop.
    """
    check_generates(llm.model.facts)
    sampling = settle(llm.get_default_sampling_params())
    read: Prompt = prompt if is_raw else _conversation(llm, prompt, system, template)
    display = Display()
    times = _Times()

    def take(output: RequestOutput) -> None:
        part = output.outputs[0]
        times.count(len(part.token_ids))
        times.num_prompt = len(output.prompt_ids)
        display.text(part.text)

    try:
        llm.stream(read, take, sampling)
    finally:
        display.end()
    if shows_stats:
        times.show()


def _conversation(llm: LLM, prompt: str, system: str | None, source: str | None) -> Prompt:
    """Return the prompt that a model's template makes of one message."""
    tokenizer = llm.model.tokenizer
    if source is None:
        if not tokenizer.chat_templates:
            raise RequestError(NO_TEMPLATE)
        source = choose_template(tokenizer.chat_templates, with_tools=False)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    template = ChatTemplate(source, tokenizer.special_tokens)
    text = template.render(messages, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return {"prompt": text, "prompt_token_ids": ids}


class _Times:
    """The tokens of an answer, and when the first of them came."""

    def __init__(self) -> None:
        self._began = self._first = time.monotonic()
        self._num_tokens = self.num_prompt = 0

    def count(self, num_tokens: int) -> None:
        """Count tokens that have just come, the first of which stops the first clock."""
        if not self._num_tokens:
            self._first = time.monotonic()
        self._num_tokens += num_tokens

    def show(self) -> None:
        """Write the numbers and the speed to the stream of errors."""
        rest, more = time.monotonic() - self._first, self._num_tokens - 1
        speed = f", {more / rest:.1f} tokens/s after it" if more > 0 else ""
        sys.stderr.write(
            f"{self.num_prompt} prompt tokens, first token after "
            f"{(self._first - self._began) * 1000:.0f} ms, {self._num_tokens} tokens{speed}\n"
        )
