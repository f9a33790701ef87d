"""Puts an `AsyncLLM` behind the server: its facts, health and commands in the server's words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo.core.sampling_params import SamplingParams
from octavo.exec.facts import EngineSnapshot
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.desk import PLAIN, Options
from octavo.frontend.outputs import RequestOutput
from octavo.server.engine import Command, Health, ModelFacts

RESTARTING = "the engine is being started again"


class LLMEngine:
    """Implements `octavo.server.engine.Engine`."""

    def __init__(self, llm: AsyncLLM, facts: ModelFacts) -> None:
        self._llm = llm
        self.facts = facts

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = PLAIN,
    ) -> AsyncIterator[RequestOutput]:
        return self._llm.generate(prompt, sampling_params, request_id, options=options)

    async def abort(self, request_id: str) -> None:
        await self._llm.abort(request_id)

    async def command(self, command: Command) -> None:
        match command:
            case "pause":
                await self._llm.pause()
            case "resume":
                await self._llm.resume()
            case "reset_prefix_cache":
                await self._llm.reset_prefix_cache()

    def health(self) -> Health:
        is_well = self._llm.is_well()
        return Health(is_well, "" if is_well else RESTARTING)

    def snapshot(self) -> EngineSnapshot:
        return self._llm.snapshot()


async def attach(llm: AsyncLLM, *, max_logprobs: int, tokenizer: Path | None = None) -> LLMEngine:
    """The engine of the running event loop; from now on its death is noticed and mended.

    `tokenizer` is where it can be read again, if not beside the weights.
    """
    await llm.resume()  # it was not paused: this only ties it to the loop
    facts = llm.facts
    source = facts.source
    path = tokenizer or (source.weights[0] if source.is_gguf else source.directory)
    told = ModelFacts(
        name=facts.name,
        path=str(path),
        tokenizer=await llm.get_tokenizer(),
        vocabulary=facts.vocabulary,
        max_model_len=facts.max_model_len,
        defaults=llm.get_default_sampling_params(),
        max_logprobs=max_logprobs,
        max_num_seqs=facts.max_num_seqs,
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
    )
    return LLMEngine(llm, told)
