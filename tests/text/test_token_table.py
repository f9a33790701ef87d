"""The table of tokens: plain data that turns tokens into the same text as the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from octavo.text import token_table
from octavo.text.token_bytes import TokenizerError
from octavo.text.token_table import PackedTable, TokenTable, unpack
from octavo.text.tokenizer import Tokenizer
from octavo.text.tokenizer_files import load_tokenizer_at
from tests.api.tiny import make_tokenizer_files

PIECES = {"<unk>": 0, "▁a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4, "": 5}


def sent(tokenizer: Tokenizer) -> TokenTable:
    """Return the table as it arrives from another process."""
    frame = msgspec.msgpack.encode(tokenizer.pack())
    return unpack(msgspec.msgpack.decode(frame, type=PackedTable))


def word_tokenizer(vocabulary: dict[str, int], decoder: Any = None) -> Tokenizer:
    """Return a tokenizer of whole words."""
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


def pieces_decoder() -> Any:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 2, 0)])


def test_texts_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    of_bytes = load_tokenizer_at(make_tokenizer_files(tmp_path))
    of_pieces = word_tokenizer(PIECES, pieces_decoder())
    for tokenizer in (of_bytes, of_pieces, word_tokenizer(PIECES)):
        table = sent(tokenizer)
        ids = [*range(tokenizer.vocab_size + 3), *range(7), 10**6]
        for skips in (True, False):
            for cut in (ids, ids[5:], ids[3:5], []):
                options = {"skip_special_tokens": skips}
                assert table.decode(cut, **options) == tokenizer.decode(cut, **options)
        for token_id in ids:
            assert table.id_to_token(token_id) == tokenizer.id_to_token(token_id)
            assert table.token_bytes(token_id) == tokenizer.token_bytes(token_id)
        assert table.end_ids == tokenizer.end_ids
        assert table.special_ids == tokenizer.special_ids
        assert table.special_tokens == tokenizer.special_tokens


def test_the_table_knows_the_marks_of_every_text() -> None:
    tokenizer = word_tokenizer({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3})
    assert sent(tokenizer).marks == ()
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert [*sent(tokenizer).marks] == [*tokenizer.marks] == [1, 2]


def test_ids_far_apart_take_no_memory_for_those_between() -> None:
    table = sent(word_tokenizer({"<unk>": 0, "far": 4_000_000_000}))
    assert table.id_to_token(4_000_000_000) == "far"
    assert table.id_to_token(3_999_999_999) is None


def test_the_table_splits_no_text() -> None:
    with pytest.raises(TokenizerError, match="prompt workers"):
        sent(word_tokenizer(PIECES)).encode("a")


@pytest.mark.parametrize(
    "steps",
    [
        [decoders.Replace("b", "b" * 65)],
        [
            decoders.Replace("b", "bbbb"),
            decoders.Replace("b", "bbbb"),
            decoders.Replace("b", "bbbbb"),
        ],
    ],
)
def test_a_decoder_whose_texts_grow_is_refused(steps: list[Any]) -> None:
    with pytest.raises(TokenizerError, match="more than the limit of 64"):
        word_tokenizer(PIECES, decoders.Sequence(steps))


def test_a_vocabulary_of_large_texts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerError, match="the longest token would take up to 65537 bytes"):
        word_tokenizer({"<unk>": 0, "x" * 65_537: 1}).pack()
    monkeypatch.setattr(token_table, "MAX_TABLE_BYTES", 1000)
    with pytest.raises(TokenizerError, match="more than the limit of 1000"):
        word_tokenizer({"<unk>": 0, **{f"{n:0100}": n + 1 for n in range(20)}}).pack()


def test_a_panic_of_the_library_is_a_refusal(tmp_path: Path) -> None:
    """A pattern that backtracks without an end makes it panic, with a BaseException."""
    path = make_tokenizer_files(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    pattern = {"Regex": r"(a+)+\1b"}
    content["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
            content["pre_tokenizer"],
        ],
    }
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer_at(tmp_path)
    with pytest.raises(TokenizerError, match="fails on this text"):
        tokenizer.encode("a" * 40)
    assert tokenizer.encode("quick"), "it goes on"
