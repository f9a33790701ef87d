"""The vocabulary of a tokenizer, as grammars see it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import GrammarError
from octavo.grammar.shapes import grammar_of
from octavo.text.token_bytes import byte_alphabet
from octavo.text.tokenizer_files import tokenizer_from_directory
from octavo.text.vocabulary import vocabulary_of


def test_a_byte_that_no_token_has_is_not_written(tmp_path: Path) -> None:
    """Tokenizers leave its character out; a grammar that forces it must not skip it."""
    spelled = ["</s>", *(text for text, byte in byte_alphabet().items() if byte != 0xF1)]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(spelled)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_directory(tmp_path)
    size = len(spelled)
    vocabulary = vocabulary_of(tokenizer, size, {0})
    before = tokenizer.encode("a\U000e43dd", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, before)) == "a\U000e43dd".encode()
    assert vocabulary.encode("a\U000e43dd") == before
    text = "a\U000e43dd\U0005be77b"
    assert vocabulary.encode(text) == before
    shape = StructuredOutputsParams(choice=(text,))
    matcher = LLGuidanceEngine(vocabulary).compile(grammar_of(shape).text)
    forced = matcher.forced(99)
    assert forced == before[: len(forced)]
    matcher.accept(before)
    row = np.zeros(-(-size // 32), np.uint32)
    with pytest.raises(GrammarError, match="no text"):
        matcher.fill(row)
