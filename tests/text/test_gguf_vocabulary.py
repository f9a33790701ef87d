"""GGUF vocabularies give the tokens of the tokenizer.json they were made from."""

import logging

import pytest

from octavo.text.gguf_pre_tokenizers import PRE_TOKENIZERS
from octavo.text.gguf_vocabulary import tokenizer_from_gguf
from octavo.text.token_bytes import TokenizerError
from tests.text.texts import SAMPLES
from tests.text.vocabularies import (
    CONTROLS,
    byte_level,
    byte_level_metadata,
    digits,
    sequence,
    spelled,
    split,
)

NFC = {"type": "NFC"}

# The patterns of the models' own tokenizer.json.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
WORDS = spelled(words=True)
STARCODER = sequence("pretokenizers", digits(single=True), WORDS)
FALCON = sequence(
    "pretokenizers",
    {"type": "Punctuation", "behavior": "Contiguous"},
    WORDS,
    digits(single=False),
    split("[0-9][0-9][0-9]"),
)


def _splits(*patterns: str) -> dict[str, object]:
    return sequence("pretokenizers", *map(split, patterns), spelled())


# By the name in the GGUF file: pre-tokenizer, normaliser, ignore_merges.
ORIGINALS: dict[str, tuple[dict[str, object], dict[str, str] | None, bool]] = {
    "gpt-2": (WORDS, None, False),
    "olmo": (WORDS, NFC, False),
    "smollm": (STARCODER, None, False),
    "refact": (STARCODER, None, False),
    "command-r": (STARCODER, NFC, False),
    "falcon": (FALCON, None, False),
    "default": (FALCON, None, False),
    "llama-bpe": (_splits(LLAMA_3), None, True),
    "falcon3": (_splits(LLAMA_3), None, True),
    "dbrx": (_splits(LLAMA_3), None, False),
    "glm4": (_splits(LLAMA_3), None, False),
    "qwen2": (_splits(QWEN_2), NFC, False),
    "stablelm2": (_splits(QWEN_2), NFC, False),
    "qwen35": (_splits(QWEN_3_5), NFC, False),
    "gpt-4o": (_splits(GPT_4O), None, False),
    "llama4": (_splits(GPT_4O), None, False),
    "tekken": (_splits(TEKKEN), None, True),
    "deepseek-coder": (_splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"), None, False),
    "deepseek-v3": (
        _splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK_V3),
        None,
        False,
    ),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_vocabularies_equal_their_originals(pre: str) -> None:
    pre_tokenizer, normalizer, ignore_merges = ORIGINALS[pre]
    original = byte_level(pre_tokenizer, normalizer, ignore_merges=ignore_merges)
    ours = tokenizer_from_gguf(byte_level_metadata(original, pre))
    for text in SAMPLES:
        ids = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == ids
        for skip in (False, True):
            decoded = original.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == decoded


def test_every_rule_is_compared_with_an_original() -> None:
    tested = {PRE_TOKENIZERS[pre].build().__getstate__() for pre in ORIGINALS}
    untested = {
        name for name, rule in PRE_TOKENIZERS.items() if rule.build().__getstate__() not in tested
    }
    assert untested == {"deepseek-llm"}  # has a test of its own


def test_the_letters_of_the_first_deepseek() -> None:
    rule = PRE_TOKENIZERS["deepseek-llm"].build()

    def pieces(text: str) -> list[str]:
        return [text[start:end] for _, (start, end) in rule.pre_tokenize_str(text)]

    assert pieces("Üñï ſß Ωψ Жж") == ["Üñï", " ſß", " Ωψ", " Жж"]
    # Its punctuation has the range from colon to tilde, which contains the ASCII letters.
    assert pieces("naïve! x") == ["na", "ï", "ve", "!", " x"]
    assert pieces("abc 12345你好ª\r\n") == ["abc", " ", "12345", "你好", "ª", "\r", "\n"]
    assert pieces("שלום \t") == ["שלום", " \t"]


@pytest.mark.parametrize(
    ("pre", "ids"), [("llama-bpe", [3]), ("tekken", [3]), ("gpt-2", [0, 1, 2])]
)
def test_some_families_take_a_whole_token_without_merges(pre: str, ids: list[int]) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "c", "abc"],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.add_bos_token": False,
    }
    assert tokenizer_from_gguf(metadata).encode("abc") == ids


def test_bos_follows_the_file_or_else_the_family() -> None:
    original = byte_level(WORDS, None, ignore_merges=False)
    bos, eos = (original.token_to_id(token) for token in ("<|im_start|>", "<|endoftext|>"))
    text = "Hello"
    plain = original.encode(text, add_special_tokens=False).ids
    for pre, said, framed in (
        ("gpt-2", {}, plain),
        ("gpt-2", {"tokenizer.ggml.add_bos_token": True}, [bos, *plain]),
        ("gpt-2", {"tokenizer.ggml.add_eos_token": True}, [*plain, eos]),
        ("llama-bpe", {}, None),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, plain),
    ):
        ours = tokenizer_from_gguf(byte_level_metadata(original, pre) | said)
        expected = framed or [bos, *ours.encode(text, add_special_tokens=False)]
        assert ours.encode(text) == expected
        assert ours.encode(text, add_special_tokens=False) == plain


def test_special_tokens_and_ends() -> None:
    original = byte_level(WORDS, None, ignore_merges=False)
    metadata = byte_level_metadata(original, "gpt-2")
    ours = tokenizer_from_gguf(metadata | {"tokenizer.ggml.eot_token_id": 7})
    ids = [original.token_to_id(token) for token in CONTROLS]
    assert (ours.eos_id, ours.bos_id, ours.unknown_id) == (ids[0], ids[1], None)
    assert ours.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}
    assert ours.end_ids == {ids[0], ids[2], 7}
    assert ours.special_ids == set(ids)
    assert ours.vocab_size == original.get_vocab_size()


def test_an_end_of_turn_is_special_even_if_the_file_marks_it_normal() -> None:
    original = byte_level(WORDS, None, ignore_merges=False)
    metadata = byte_level_metadata(original, "gpt-2")
    metadata["tokenizer.ggml.token_type"] = [1] * original.get_vocab_size()
    end = original.token_to_id("<|im_end|>")
    ours = tokenizer_from_gguf(metadata)
    assert ours.encode("x<|im_end|>")[-1] == end
    assert end in ours.end_ids & ours.special_ids


def test_harmony_messages_do_not_end_generation() -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-4o",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
    }
    assert tokenizer_from_gguf(metadata).end_ids == {2, 3}
    metadata["tokenizer.ggml.tokens"] = tokens[:2]
    assert tokenizer_from_gguf(metadata).end_ids == {1}


def test_padding_of_a_vocabulary_is_not_matched_in_texts() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*"[PAD0123456789]", "[PAD15]", "[PAD99]", ""],
        "tokenizer.ggml.token_type": [1] * 15 + [4, 4, 5],
        "tokenizer.ggml.merges": [],
    }
    ours = tokenizer_from_gguf(metadata)
    assert len(ours.encode("[PAD15]")) == len("[PAD15]")
    assert ours.encode("[PAD99]") == [16]
    assert ours.id_to_token(17) == "[EMPTY_17]"


def test_chat_templates_by_name() -> None:
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2") | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "with tools",
        "tokenizer.chat_templates": ["tool_use"],
    }
    assert tokenizer_from_gguf(metadata).chat_templates == {
        "default": "plain",
        "tool_use": "with tools",
    }


def test_a_file_without_a_rule_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2")
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING):
        tokenizer_from_gguf(metadata)
    assert "does not name its rule" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "supported are gemma4, gpt2, llama, t5"),
        ({"model": None}, "supported are"),
        ({"pre": "from-the-future"}, "'from-the-future', an unknown rule for splitting text"),
        ({"pre": 7}, "must be str, but is int"),
        ({"tokens": []}, "missing or empty"),
        ({"tokens": "abc"}, "must be a list of str"),
        ({"tokens": ["a", "b", "a"]}, "holds 'a' twice, as 0 and as 2"),
        ({"token_type": [1]}, "has 1 entries for"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["no such"]}, "tokens contradicts .*merges .*out of vocabulary"),
        ({"merges": ["nospace"]}, "tokens contradicts .*merges .*out of vocabulary"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000, but there are"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"model": "llama"}, "scores is missing"),
        ({"model": "llama", "scores": [0.5]}, "has 1 entries for"),
        ({"model": "llama", "scores": [float("nan")] * 2000}, "not a finite number"),
    ],
)
def test_an_invalid_file_is_rejected(change: dict[str, object], message: str) -> None:
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2")
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(metadata)
