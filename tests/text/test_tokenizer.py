"""The tokenizer: bytes of tokens, special tokens, and strings that are not valid text."""

import pytest

from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer, frame
from tests.text.texts import SAMPLES
from tests.text.vocabularies import (
    CONTROLS,
    USER_DEFINED_TOKEN,
    byte_fallback,
    byte_level,
    spelled,
)


def _byte_level() -> Tokenizer:
    return Tokenizer(byte_level(spelled(words=True), None, ignore_merges=False))


@pytest.mark.parametrize("text", SAMPLES)
def test_the_bytes_of_tokens_make_the_text(text: str) -> None:
    tokenizer = _byte_level()
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode("utf-8")
    if "<s>" not in text:
        fallback = Tokenizer(byte_fallback())
        ids = fallback.encode(text)
        spaced = f" {text}" if text else ""
        assert b"".join(map(fallback.token_bytes, ids)) == spaced.encode("utf-8")


def test_each_byte_has_a_token() -> None:
    tokenizer = _byte_level()
    single = {tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= single
    fallback = Tokenizer(byte_fallback())
    first = fallback.token_to_id("<0x00>")
    assert first is not None
    assert [fallback.token_bytes(first + byte) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]


def test_ids_and_tokens() -> None:
    tokenizer = _byte_level()
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    assert tokenizer.id_to_token(end) == "<|im_end|>"
    assert tokenizer.token_bytes(end) == b"<|im_end|>"
    assert set(tokenizer.added_tokens.values()) == {*CONTROLS, USER_DEFINED_TOKEN}
    assert {tokenizer.id_to_token(index) for index in tokenizer.special_ids} == set(CONTROLS)
    size = tokenizer.vocab_size
    assert tokenizer.id_to_token(size - 1) is not None
    assert tokenizer.id_to_token(size) is None
    # A head may be larger than the vocabulary; ids beyond the vocabulary have no text.
    assert tokenizer.token_bytes(size) == b""
    assert tokenizer.decode([size]) == ""


def test_special_tokens_are_skipped_unless_wanted() -> None:
    tokenizer = _byte_level()
    text = "<|im_start|>user<tool_call>x<|im_end|>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == "user<tool_call>x"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_an_added_token_is_text_even_if_it_looks_like_spelled_bytes() -> None:
    backend = byte_level(spelled(), None, ignore_merges=False)
    backend = type(backend).from_str(backend.to_str())
    backend.add_tokens(["é", "ĠĠ"])
    tokenizer = Tokenizer(backend)
    ids = [tokenizer.token_to_id(token) for token in ("é", "ĠĠ")]
    assert [tokenizer.token_bytes(index) for index in ids if index] == ["é".encode(), "ĠĠ".encode()]
    assert tokenizer.decode(tokenizer.encode("café")) == "café"


@pytest.mark.parametrize(
    ("text", "text_meant"),
    [
        ("\ud83d\ude00", "😀"),
        ("a\ud83db", "a\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("x\ud83d", "x\ufffd"),
        ("\udcff", "\ufffd"),
    ],
)
def test_surrogates_are_joined_or_marked(text: str, text_meant: str) -> None:
    for tokenizer in (_byte_level(), Tokenizer(byte_fallback())):
        assert tokenizer.encode(text) == tokenizer.encode(text_meant)
        assert tokenizer.decode(tokenizer.encode(text)) == text_meant


def test_a_saved_truncation_or_padding_does_not_touch_prompts() -> None:
    backend = byte_level(spelled(words=True), None, ignore_merges=False)
    backend = type(backend).from_str(backend.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=32)
    text = "much longer than four tokens"
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_framing() -> None:
    backend = byte_level(spelled(words=True), None, ignore_merges=False)
    backend = type(backend).from_str(backend.to_str())
    plain = backend.encode("x").ids
    bos, eos = (backend.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    for arguments, expected in (
        ({"bos": "<|im_start|>", "eos": None}, [bos, *plain]),
        ({"bos": None, "eos": "<|im_end|>"}, [*plain, eos]),
        ({"bos": "<|im_start|>", "eos": "<|im_end|>"}, [bos, *plain, eos]),
        ({"bos": None, "eos": None}, plain),
    ):
        frame(backend, **arguments)
        assert Tokenizer(backend).encode("x") == expected
        assert Tokenizer(backend).encode("x", add_special_tokens=False) == plain
    with pytest.raises(TokenizerError, match="'<none>', which is not in the vocabulary"):
        frame(backend, bos="<none>", eos=None)
