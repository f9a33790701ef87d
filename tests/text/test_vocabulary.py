"""The vocabulary of a tokenizer, as grammars see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.llguidance_engine import LLGuidanceEngine
from octavo.grammar.protocol import GrammarError
from octavo.grammar.shapes import grammar_of
from octavo.text.token_bytes import byte_alphabet
from octavo.text.tokenizer import Tokenizer as Ours
from octavo.text.tokenizer_files import tokenizer_from_directory
from octavo.text.vocabulary import vocabulary_of
from tests.grammar.tiny import allowed
from tests.text.vocabularies import byte_fallback, byte_level


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


def _metaspace(scheme: str) -> Tokenizer:
    """Return the vocabulary of `byte_fallback` with spaces put before words by another step."""
    made = Tokenizer.from_str(byte_fallback().to_str())
    made.normalizer = normalizers.Sequence([])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return made


def _merged() -> Tokenizer:
    """Return the vocabulary of `byte_fallback` with two of its pieces as added tokens."""
    made = Tokenizer.from_str(byte_fallback().to_str())
    made.add_tokens([AddedToken(each, normalized=False) for each in ("▁the", "au")])
    return made


def _prefixed(normalizer: object = None) -> Tokenizer:
    """Return bytes spelled as characters, with a space before each text."""
    rule = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return byte_level(rule, normalizer, ignore_merges=False)


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "SentencePiece's prefix": byte_fallback,
    "Metaspace before each stretch": lambda: _metaspace("always"),
    "Metaspace before the first": lambda: _metaspace("first"),
    "Metaspace without a prefix": lambda: _metaspace("never"),
    "added tokens that merges give": _merged,
    "a prefix of bytes": _prefixed,
    "composed characters": lambda: _prefixed({"type": "NFC"}),
}
TEXTS = (
    "the the house",
    "42 Haus",
    " with a space",
    "e\u0301le\u0300ve",
    "<|im_end|> and </s> and <unk>",
    "a    b\n\n我能",
    "▁ the▁house",
)
OBJECT = {
    "type": "object",
    "properties": {"name": {"const": 7}, "the the": {"const": "with this"}},
    "required": ["name", "the the"],
    "additionalProperties": False,
}
# Each with the values of which its text is one, as JSON or as it is.
SHAPES = [
    *((StructuredOutputsParams(json={"const": text}), (text,)) for text in TEXTS),
    *((StructuredOutputsParams(choice=(text, "that")), (text, "that")) for text in TEXTS),
    (StructuredOutputsParams(json=OBJECT), ({"name": 7, "the the": "with this"},)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_forced_text_is_that_of_the_shape_whatever_the_tokenizer_puts_before_a_text(
    kind: str,
) -> None:
    """No space of the tokenizer's own, no added token, and no other form of a character."""
    tokenizer = Ours(KINDS[kind]())
    size, random = tokenizer.vocab_size, Random(3)
    end = tokenizer.token_to_id("</s>") or tokenizer.token_to_id("<|endoftext|>")
    assert end
    vocabulary = vocabulary_of(tokenizer, size, {end})
    engine = LLGuidanceEngine(vocabulary)
    num_forced = 0
    for shape, values in SHAPES:
        matcher, written = engine.compile(grammar_of(shape).text), b""
        row = np.zeros(-(-size // 32), np.uint32)
        for _ in range(300):
            forced = matcher.forced(99)
            matcher.fill(row)
            free = allowed(row, size)
            if end in free:
                break
            if forced:
                assert free == {forced[0]}
            taken = forced or [random.choice(sorted(free))]
            matcher.accept(taken)
            num_forced += len(forced)
            written += b"".join(vocabulary.tokens[token] for token in taken)
        else:
            pytest.fail(f"no end: {written!r}")
        text = written.decode()
        assert (text if shape.choice else json.loads(text)) in values
    assert num_forced > len(SHAPES)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_tokenised_as_it_would_be_within_another(kind: str) -> None:
    """A space that is written is the one that the tokenizer puts before a text."""
    tokenizer = Ours(KINDS[kind]())
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size, {2})
    has_prefix = kind != "Metaspace without a prefix"
    for text in ("that dog", "42", "we don't"):
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert vocabulary.encode(f" {text}" if has_prefix else text) == whole
        within = vocabulary.encode(text)
        assert b"".join(vocabulary.tokens[token] for token in within) == text.encode()
