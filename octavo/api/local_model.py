"""A model and its engine in this process, made from the model's name."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.api.text_model import TextModel, named_tokenizer
from octavo.core.sampling_params import LogitsProcessor
from octavo.engine.build import BuiltEngine, build_engine
from octavo.engine.holds import Holds
from octavo.engine.own_files import own_files
from octavo.loader import ModelFiles
from octavo.models.load import OpenedModel
from octavo.options.engine import EngineArguments
from octavo.text.tokenizer import Tokenizer


class LocalModel(TextModel):
    """An engine in this process and the text side of its model."""

    def __init__(
        self, arguments: EngineArguments, processors: Mapping[str, LogitsProcessor] | None = None
    ) -> None:
        tokenizers: list[Tokenizer] = []

        def load(opened: OpenedModel, source: ModelFiles) -> None:
            tokenizers.append(named_tokenizer(arguments, source, opened.checkpoint))

        self.engine: BuiltEngine = build_engine(arguments, processors=processors, meanwhile=load)
        self.core = self.engine.core
        adapters = self.engine.adapters
        self.files = own_files(self.engine, arguments.adapter_directory)
        self.holds = Holds([] if adapters is None else [adapters], None)
        super().__init__(self.engine.facts, arguments, tuple(processors or ()), tokenizers[0])

    def release(self) -> None:
        """Free the engine, with the weights and the cache. The tokenizer stays."""
        if hasattr(self, "engine"):
            del self.engine, self.core, self.files, self.holds
