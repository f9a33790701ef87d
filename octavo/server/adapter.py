"""An `AsyncLLM` as the server's engine: facts, health and statistics in the server's terms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from octavo.api.async_llm import AsyncLLM
from octavo.api.outputs import RequestOutput
from octavo.api.requests import PLAIN, Options
from octavo.api.text_model import recommended
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineSnapshot
from octavo.server.engine import Command, Health, ModelFacts


class LLMEngine:
    """Implements `octavo.server.engine.Engine`; closed with the AsyncLLM it is made over."""

    def __init__(self, llm: AsyncLLM, facts: ModelFacts) -> None:
        self._llm = llm
        self._facts = facts

    @classmethod
    async def over(
        cls, llm: AsyncLLM, *, max_logprobs: int = 20, tokenizer: Path | None = None
    ) -> LLMEngine:
        """In the event loop that will serve; `tokenizer`: where it is, if not with the model."""
        await llm.resume()  # binds it to this loop, so that it is well before the first request
        told = llm.facts
        source = told.source
        own = source.weights[0] if source.is_gguf else source.directory
        facts = ModelFacts(
            name=told.name,
            path=str(tokenizer or own),
            tokenizer=await llm.get_tokenizer(),
            vocabulary=told.vocabulary,
            max_model_len=told.max_model_len,
            defaults=recommended(told.generation),
            max_logprobs=max_logprobs,
            max_num_seqs=told.max_num_seqs,
            num_blocks=told.num_blocks,
            block_size=told.block_size,
            longest_tokens=told.longest_tokens,
            max_new_tokens=told.generation.max_new_tokens,
        )
        return cls(llm, facts)

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = PLAIN,
        take: Callable[[RequestOutput], bool] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        return self._llm.generate(prompt, sampling_params, request_id, options=options, take=take)

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
        if self._llm.is_well():
            return Health(True)
        return Health(False, "it is being started again, or has stopped")

    def snapshot(self) -> EngineSnapshot:
        return self._llm.snapshot()
