"""One answer of an engine of this process: to a message, or to a text that it continues."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from octavo.api.async_llm import AsyncLLM
from octavo.api.pooling.tasks import check_generates
from octavo.api.prompts import Prompt
from octavo.cli.chat.display import Display
from octavo.core.sampling_params import RequestError, SamplingParams
from octavo.text.chat.template import ChatTemplate, choose_template

NO_TEMPLATE = (
    "this model has no chat template, so it was not made for conversations; continue a text with "
    "--raw, or give it a template with --chat-template FILE"
)


def answer(
    llm: AsyncLLM,
    prompt: str,
    settle: Callable[[SamplingParams], SamplingParams],
    *,
    system: str | None = None,
    template: str | None = None,
    is_raw: bool = False,
    shows_stats: bool = False,
) -> None:
    """Write the answer while it is generated.

    It starts sooner than a conversation, which has the server's reading of requests.
    """
    check_generates(llm.facts)
    sampling = settle(llm.get_default_sampling_params())
    read: Prompt = prompt if is_raw else _conversation(llm, prompt, system, template)
    display = Display()
    try:
        asyncio.run(_follow(llm, read, sampling, display, shows_stats))
    finally:
        display.end()


def _conversation(llm: AsyncLLM, prompt: str, system: str | None, source: str | None) -> Prompt:
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


async def _follow(
    llm: AsyncLLM, prompt: Prompt, sampling: SamplingParams, display: Display, shows_stats: bool
) -> None:
    began = first = time.monotonic()
    num_tokens = num_prompt = 0
    async for output in llm.generate(prompt, sampling):
        if not num_tokens:
            first = time.monotonic()
        part = output.outputs[0]
        num_tokens += len(part.token_ids)
        num_prompt = len(output.prompt_ids)
        display.text(part.text)
    if shows_stats:
        display.end()
        _show_speed(num_prompt, num_tokens, first - began, time.monotonic() - first)


def _show_speed(num_prompt: int, num_tokens: int, first: float, rest: float) -> None:
    speed = f", {(num_tokens - 1) / rest:.1f} tokens/s after it" if num_tokens > 1 else ""
    sys.stderr.write(
        f"{num_prompt} prompt tokens, first token after {first * 1000:.0f} ms, "
        f"{num_tokens} tokens{speed}\n"
    )
