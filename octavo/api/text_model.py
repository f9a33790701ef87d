"""The text side of one model: its tokenizer, its templates, and the desk where requests are opened.

It is made from the facts that an engine tells, so it works for an engine in any process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.api.outputs import RequestError
from octavo.api.requests import Model, RequestTable
from octavo.core.sampling_params import SamplingParams
from octavo.engine_arguments import EngineArguments
from octavo.loader import ModelFiles, resolve
from octavo.models.generation import GenerationDefaults
from octavo.text.tokenizer import Tokenizer
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    from octavo.loader import Checkpoint
    from octavo.text.chat.template import ChatTemplate


class TextModel:
    """What the front end does with a model, whoever computes it."""

    def __init__(
        self,
        facts: EngineFacts,
        arguments: EngineArguments,
        processors: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,  # if it has been loaded already
    ) -> None:
        self.facts = facts
        if tokenizer is None:
            named = arguments.tokenizer
            tokenizer = load_tokenizer(facts.source if named is None else resolve(named))
        self.tokenizer = tokenizer
        ends = dict.fromkeys((*facts.generation.eos_ids, *sorted(self.tokenizer.end_ids)))
        self.table = RequestTable(
            Model(
                tokenizer=self.tokenizer,
                vocabulary=facts.vocabulary,
                max_model_len=facts.max_model_len,
                longest_tokens=facts.longest_tokens,
                end_ids=tuple(ends),
                max_logprobs=arguments.max_logprobs,
                processors=tuple(sorted(processors)),
            ),
            arguments.seed,
        )

    def now(self) -> float:
        """Seconds on the engine's clock, which all processes of a machine share."""
        return time.monotonic()

    def default_sampling(self) -> SamplingParams:
        """What the model's makers recommend; the dialect's defaults where they are silent."""
        return recommended(self.facts.generation)

    def template(self, source: str | None, *, with_tools: bool) -> ChatTemplate:
        """The chat template given, or the model's own."""
        # Here, as only those who chat need the template engine.
        from octavo.text.chat.template import ChatTemplate, choose_template

        if source is None:
            if not self.tokenizer.chat_templates:
                raise RequestError("this model has no chat template; give one as chat_template")
            source = choose_template(self.tokenizer.chat_templates, with_tools=with_tools)
        return ChatTemplate(source, self.tokenizer.special_tokens)


def load_tokenizer(source: ModelFiles, opened: Checkpoint | None = None) -> Tokenizer:
    """The tokenizer that comes with a model's files, which may be open already."""
    if source.is_gguf:  # the reader of these files takes numpy along
        from octavo.text.gguf_vocabulary import tokenizer_from_gguf

        return tokenizer_from_gguf((opened or source.open()).metadata)
    from octavo.text.tokenizer_files import tokenizer_from_directory

    return tokenizer_from_directory(source.directory)


def recommended(generation: GenerationDefaults) -> SamplingParams:
    """A model's generation_config as sampling parameters."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    said: dict[str, Any] = {
        name: value for name in names if (value := getattr(generation, name)) is not None
    }
    return SamplingParams(**said)
