"""SentencePiece vocabularies in GGUF files give the results of SentencePiece itself."""

import io
import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.text.gguf_vocabulary import (
    MAX_PIECE_CHARACTERS,
    merges_from_scores,
    tokenizer_from_gguf,
)
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer
from tests.text.texts import CORPUS, SAMPLES
from tests.text.vocabularies import USER_DEFINED, sentencepiece_metadata

pytestmark = pytest.mark.filterwarnings("ignore")
Train = Callable[..., Any]

# SentencePiece recognises no control tokens in a text, and ends a text at a null.
PLAIN = [text for text in SAMPLES if "<s>" not in text and "\x00" not in text]
REPEATED = ("=", " ", "  ", "a", "ab", "-", "\n", "ha", "0", "*", "o")


@pytest.fixture(scope="module")
def train() -> Train:
    """A function that trains a small model as the families with such a vocabulary do."""
    sentencepiece = pytest.importorskip("sentencepiece")

    def run(**options: object) -> Any:
        model = io.BytesIO()
        settings = {
            "model_type": "bpe",
            "vocab_size": 700,
            "byte_fallback": True,
            "character_coverage": 0.98,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "split_digits": True,
            "allow_whitespace_only_pieces": True,
            "minloglevel": 2,
            **options,
        }
        texts = (text.replace("\x00", "") for text in CORPUS * 3)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts, model_writer=model, **settings
        )
        return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    return run


def _texts() -> list[str]:
    """Return the samples, and repetitions in odd lengths, which make many merges compete."""
    rng = random.Random(4)
    repeated = (
        "".join(rng.choice(REPEATED) * rng.randrange(1, 9) for _ in range(rng.randrange(1, 10)))
        for _ in range(300)
    )
    return [*PLAIN, *repeated]


def _decodes_alike(ours: Tokenizer, processor: Any) -> None:
    """Compare the decoding of random ids, most of which are not valid text."""
    rng = random.Random(5)
    first_byte = processor.piece_to_id("<0x00>")
    for _ in range(500):
        ids = [
            rng.randrange(first_byte, first_byte + 256)
            if rng.random() < 0.5
            else rng.randrange(first_byte, processor.get_piece_size())
            for _ in range(rng.randrange(9))
        ]
        # The two differ on purpose if a text begins with a byte token that means a space.
        ids = [processor.piece_to_id("a"), *ids]
        assert ours.decode(ids) == processor.decode(ids)


def test_a_vocabulary_like_llama_2(train: Train) -> None:
    processor = train()
    ours = tokenizer_from_gguf(sentencepiece_metadata(processor))
    for text in _texts():
        ids = processor.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids
        assert ours.encode(text) == [processor.bos_id(), *ids]
        assert ours.decode(ids) == processor.decode(ids)
    _decodes_alike(ours, processor)


def test_a_vocabulary_like_gemma(train: Train) -> None:
    runs = ["\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁"]
    processor = train(add_dummy_prefix=False, user_defined_symbols=["<start_of_turn>", *runs])
    metadata = sentencepiece_metadata(processor, **{"tokenizer.ggml.add_space_prefix": False})
    # Files of this family write such tokens with real spaces, as text has them.
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    for symbol in ["<start_of_turn>", *runs]:
        kinds[tokens.index(symbol)] = USER_DEFINED
        tokens[tokens.index(symbol)] = symbol.replace("▁", " ")
    ours = tokenizer_from_gguf(metadata)
    for text in [*_texts(), "<start_of_turn>user\n\n\nx    y<start_of_turn>"]:
        ids = processor.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids
        assert ours.decode(ids) == text
    _decodes_alike(ours, processor)


def test_a_vocabulary_like_t5(train: Train) -> None:
    processor = train(
        model_type="unigram",
        byte_fallback=False,
        normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
        vocab_size=300,
    )
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    proto.ParseFromString(processor.serialized_model_proto())
    charsmap = proto.normalizer_spec.precompiled_charsmap
    metadata = sentencepiece_metadata(processor) | {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": list(charsmap),
        "tokenizer.ggml.add_eos_token": False,
    }
    ours = tokenizer_from_gguf(metadata)
    for text in PLAIN:
        assert ours.encode(text) == processor.encode(text)


def test_the_space_before_a_text_comes_after_a_special_token_too(train: Train) -> None:
    processor = train()
    ours = tokenizer_from_gguf(sentencepiece_metadata(processor))
    hi = processor.encode("hi there")
    ids = [processor.bos_id(), *hi, processor.eos_id(), *hi]
    assert ours.encode("<s>hi there</s>hi there", add_special_tokens=False) == ids
    assert ours.decode(ids) == "hi there hi there"


def test_the_markers_of_phi_3_include_the_spaces_after_them(train: Train) -> None:
    metadata = sentencepiece_metadata(train(control_symbols=["<|user|>", "<|end|>"]))
    ours = tokenizer_from_gguf(metadata | {"general.name": "Phi-3 mini"})
    assert ours.encode("<|user|>\n x<|end|>\n") == ours.encode("<|user|>x<|end|>")
    other = tokenizer_from_gguf(metadata | {"general.name": "Another"})
    assert other.encode("<|user|>\n x<|end|>\n") != other.encode("<|user|>x<|end|>")


def test_merges_are_ranked_by_their_result() -> None:
    tokens, scores = ["a", "b", "ab", "abab", "ba", "c"], [-9.0, -9.0, -2.0, -1.0, -3.0, 0.0]
    merges = merges_from_scores(tokens, scores, range(5))
    assert merges == [("ab", "ab"), ("a", "b"), ("b", "a")]


def test_a_piece_of_absurd_length_is_refused() -> None:
    tokens = ["a", "b" * MAX_PIECE_CHARACTERS, "c" * (MAX_PIECE_CHARACTERS + 1)]
    assert merges_from_scores(tokens, [0.0] * 3, [0, 1]) == []
    with pytest.raises(TokenizerError, match=r"tokens\[2\] has 4,097 characters, at most 4,096"):
        merges_from_scores(tokens, [0.0] * 3, [0, 1, 2])
