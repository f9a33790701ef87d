"""The grammars for a model's vocabulary: prepared at the start, the engine made when it is needed.

The process of an engine can neither import modules nor open files when it has loaded. So both
happen before, while the weights load. The tokenizer is read when the engine is idle for the first
time, or at the first request with a shape. In a program that uses the engine as a library, nothing
happens before such a request.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from octavo.grammar.protocol import GrammarEngine
from octavo.grammar.supply import GrammarSupply
from octavo.loader import ModelFiles
from octavo.loader import resolve as resolve_source
from octavo.models.load import OpenedModel
from octavo.observe.heap import heap_gauge
from octavo.observe.machine import give_back_freed, num_cores
from octavo.options.engine import EngineArguments

if TYPE_CHECKING:
    from octavo.text.texts_beside import OpenTexts

# Modules for the first shape, which takes longer to import than a text without one to begin.
_IMPORTS = (
    "octavo.grammar.llguidance_engine",
    "octavo.text.gguf_vocabulary",
    "octavo.text.tokenizer_files",
    "octavo.text.vocabulary",
)
MOST_THREADS = 4  # that compute the masks of a step; each has its own copies of grammars


def prepare_grammars(
    arguments: EngineArguments, source: ModelFiles, opened: OpenedModel, *, is_bounded: bool
) -> GrammarSupply:
    """Return the grammars for a model, or for the tokenizer of another one.

    Their memory can be bounded in a process that does little else.
    """
    size, eos_ids = opened.spec.vocabulary, opened.generation.eos_ids  # and nothing else of it
    files, metadata = source, opened.checkpoint.metadata
    if arguments.tokenizer is not None:
        files = resolve_source(arguments.tokenizer)
        if files.is_gguf:
            metadata = files.open().metadata
    texts: OpenTexts | None = None
    if is_bounded:
        for name in _IMPORTS:
            importlib.import_module(name)
        texts = None if files.is_gguf else _open_texts(files)

    def make() -> GrammarEngine:
        from octavo.grammar.llguidance_engine import LLGuidanceEngine
        from octavo.text.gguf_vocabulary import tokenizer_from_gguf
        from octavo.text.tokenizer_files import tokenizer_without_templates
        from octavo.text.vocabulary import vocabulary_of

        if files.is_gguf:
            tokenizer = tokenizer_from_gguf(metadata)
        else:
            tokenizer = tokenizer_without_templates(texts or _open_texts(files))
        vocabulary = vocabulary_of(tokenizer, size, {*eos_ids, *tokenizer.end_ids})
        num_threads = min(num_cores()[0], MOST_THREADS)
        engine = LLGuidanceEngine(
            vocabulary, forcing=arguments.forced_tokens, num_threads=num_threads
        )
        give_back_freed()  # of the tokenizer's files: in JSON, as much again as is kept
        return engine

    if not is_bounded:
        return GrammarSupply(make)
    limit_bytes = arguments.grammar_memory_bytes
    return GrammarSupply(make, limit_bytes=limit_bytes, heap_bytes=heap_gauge())


def _open_texts(files: ModelFiles) -> OpenTexts:
    from octavo.text.texts_beside import OpenTexts

    return OpenTexts(files.directory)
