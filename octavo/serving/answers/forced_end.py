"""Tokenises the text with which reasoning ends when its budget is spent."""

from __future__ import annotations

from octavo.serving.operation import GenerationRequest
from octavo.serving.server import Server
from octavo.workers.jobs import PromptJob


async def spell_end(server: Server, asked: GenerationRequest) -> None:
    """Let the model know the tokens of that text before the first request that may need them."""
    reasoning, model = server.context.formats.formats.reasoning, server.llm.model
    text = "" if reasoning is None else reasoning.forced_end
    needs_it = asked.sampling.get("thinking_token_budget") is not None
    if text and needs_it and not model.has_forced_end:
        job = PromptJob(text=text, add_special_tokens=False)
        tokens = (await server.prompt_pool.prepare(job)).token_ids
        if not model.has_forced_end:  # by another request meanwhile
            model.force_end(tokens)
