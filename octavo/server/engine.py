"""What the server asks of whatever stands behind it: a small protocol, and the facts it tells.

An `AsyncLLM` fulfils it through `octavo.server.adapter`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from octavo.api.outputs import RequestOutput
from octavo.api.requests import Options
from octavo.core.sampling_params import SamplingParams
from octavo.core.snapshot import EngineSnapshot
from octavo.text.tokenizer import Tokenizer

Command = Literal["pause", "resume", "reset_prefix_cache"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server must know of the model and of the room there is for it."""

    name: str  # what the user typed
    path: str  # a directory or a GGUF file: where the tokenizer can be read again
    tokenizer: Tokenizer
    vocabulary: int
    max_model_len: int
    defaults: SamplingParams  # the model's own recommendations
    max_logprobs: int = 20
    max_num_seqs: int = 64
    num_blocks: int = 0
    block_size: int = 16
    longest_tokens: int | None = None  # of one sequence, where the KV cache holds less
    max_new_tokens: int | None = None  # of the model's generation_config

    @property
    def longest(self) -> int:
        """The tokens that a sequence can have, prompt and answer: what clients are told."""
        return self.longest_tokens or self.max_model_len


@dataclass(frozen=True, slots=True)
class Health:
    """Whether tokens come, and why not."""

    is_ready: bool
    reason: str = ""


class Engine(Protocol):
    """What generates. All of it is called from the server's event loop."""

    @property
    def facts(self) -> ModelFacts:
        """Known once the engine is ready."""

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = ...,
        take: Callable[[RequestOutput], bool] | None = ...,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come; leaving the loop, or being cancelled, aborts the request.

        `take` is offered each at once, as of `AsyncLLM.generate`.
        """

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with what it has."""

    async def command(self, command: Command) -> None:
        """Tell the engine as a whole something."""

    def health(self) -> Health:
        """The truth: ready means that a step was completed recently, or that none is due."""

    def snapshot(self) -> EngineSnapshot | None:
        """The newest statistics; None as long as there are none."""
