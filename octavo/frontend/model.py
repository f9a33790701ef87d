"""A model's name to an engine in this process and a desk in front of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from octavo.config import EngineArguments
from octavo.core.config import ConfigError
from octavo.core.sampling_params import LogitsProcessor, SamplingParams
from octavo.exec.local import LocalEngine, start_local_engine
from octavo.frontend.chat_template import ChatTemplate, choose_template
from octavo.frontend.desk import Desk, Model
from octavo.frontend.gguf_vocabulary import tokenizer_from_gguf
from octavo.frontend.outputs import RequestError
from octavo.frontend.tokenizer import Tokenizer
from octavo.frontend.tokenizer_files import tokenizer_from_directory
from octavo.loader import Source, resolve
from octavo.models.generation import GenerationDefaults


class LocalModel:
    """An engine, a desk, and the text side of one model."""

    def __init__(
        self, arguments: EngineArguments, processors: Mapping[str, LogitsProcessor] | None = None
    ) -> None:
        _check_processors(processors)
        self.engine: LocalEngine = start_local_engine(arguments, processors=processors)
        self.core = self.engine.core
        self._generation = self.engine.generation
        source = self.engine.source
        if arguments.tokenizer is not None:
            source = resolve(arguments.tokenizer)
        self.tokenizer = load_tokenizer(source)
        ends = dict.fromkeys((*self._generation.eos_ids, *sorted(self.tokenizer.end_ids)))
        config = self.engine.config
        self.desk = Desk(
            Model(
                tokenizer=self.tokenizer,
                vocabulary=config.spec.vocabulary,
                max_model_len=config.core.max_model_len,
                longest_tokens=self.core.longest_tokens,
                end_ids=tuple(ends),
                max_logprobs=arguments.max_logprobs,
                processors=tuple(sorted(processors or ())),
            ),
            arguments.seed,
        )

    def release(self) -> None:
        """Let go of the engine: the weights' and the cache's memory. The tokenizer stays."""
        if hasattr(self, "engine"):
            del self.engine, self.core

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return time.monotonic()

    def default_sampling(self) -> SamplingParams:
        """What the model's makers recommend; the dialect's defaults where they are silent."""
        return recommended(self._generation)

    def template(self, source: str | None, *, with_tools: bool) -> ChatTemplate:
        """The chat template given, or the model's own."""
        if source is None:
            if not self.tokenizer.chat_templates:
                raise RequestError("this model has no chat template; give one as chat_template")
            source = choose_template(self.tokenizer.chat_templates, with_tools=with_tools)
        return ChatTemplate(source, self.tokenizer.special_tokens)


def _check_processors(processors: object) -> None:
    """They are by name, so that a request can name them."""
    if processors is not None and not isinstance(processors, Mapping):
        raise ConfigError(
            f"logits_processors is a {type(processors).__name__}; it must map names to functions, "
            "as in {'mine': function}, and requests name them in their SamplingParams"
        )
    for name, processor in (processors or {}).items():
        if not isinstance(name, str) or not callable(processor):
            raise ConfigError(
                f"logits_processors has {name!r}: {processor!r}; it must map names to functions "
                "(prompt_ids, output_ids, logits) -> logits"
            )


def load_tokenizer(source: Source) -> Tokenizer:
    """The tokenizer that comes with a model's files."""
    if source.is_gguf:
        return tokenizer_from_gguf(source.open().metadata)
    return tokenizer_from_directory(source.directory)


def recommended(generation: GenerationDefaults) -> SamplingParams:
    """A model's generation_config as sampling parameters."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    said: dict[str, Any] = {
        name: value for name in names if (value := getattr(generation, name)) is not None
    }
    return SamplingParams(**said)
