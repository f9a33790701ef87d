"""The grammar engine for a model's vocabulary, prepared at the start and made when it is needed.

The process of an engine can neither import modules nor open files when it has loaded. So both
happen before, while the weights load; the tokenizer is read at the first request with a shape.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from octavo.engine_arguments import EngineArguments
from octavo.grammar.protocol import GrammarEngine
from octavo.loader import ModelFiles
from octavo.loader import resolve as resolve_source
from octavo.models.load import OpenedModel


def prepare_grammars(
    arguments: EngineArguments, source: ModelFiles, opened: OpenedModel
) -> Callable[[], GrammarEngine]:
    """Return the maker of the grammar engine for a model, or for the tokenizer of another one.

    Threads may call it at once; it makes one engine.
    """
    from octavo.grammar.llguidance_engine import LLGuidanceEngine
    from octavo.text.gguf_vocabulary import tokenizer_from_gguf
    from octavo.text.texts_beside import OpenTexts
    from octavo.text.tokenizer_files import tokenizer_without_templates
    from octavo.text.vocabulary import vocabulary_of

    files, metadata = source, opened.checkpoint.metadata
    if arguments.tokenizer is not None:
        files = resolve_source(arguments.tokenizer)
        if files.is_gguf:
            metadata = files.open().metadata
    texts = None if files.is_gguf else OpenTexts(files.directory)
    size, eos_ids = opened.spec.vocabulary, opened.generation.eos_ids  # and nothing else of it

    lock, made = Lock(), list[GrammarEngine]()

    def make() -> GrammarEngine:
        with lock:
            if not made:
                made.append(_make())
            return made[0]

    def _make() -> GrammarEngine:
        if texts is None:
            tokenizer = tokenizer_from_gguf(metadata)
        else:
            tokenizer = tokenizer_without_templates(texts)
        vocabulary = vocabulary_of(tokenizer, size, {*eos_ids, *tokenizer.end_ids})
        return LLGuidanceEngine(vocabulary, forcing=arguments.forced_tokens)

    return make
