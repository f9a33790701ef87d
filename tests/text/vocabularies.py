"""Small vocabularies in the formats of the large ones, trained when a test needs them."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from tests.text.texts import CORPUS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED_TOKEN = "<tool_call>"


def byte_level(pre_tokenizer: object, normalizer: object, *, ignore_merges: bool) -> Tokenizer:
    """Build a byte-level vocabulary whose `tokenizer.json` has these parts."""
    parts = {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer}
    return _byte_level(json.dumps(parts, sort_keys=True), ignore_merges)


@cache
def _byte_level(parts: str, ignore_merges: bool) -> Tokenizer:
    content = json.loads(parts) | {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": None,
        "decoder": _step("ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        "model": {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": ignore_merges},
    }
    tokenizer = Tokenizer.from_str(json.dumps(content))
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROLS])
    tokenizer.add_tokens([AddedToken(USER_DEFINED_TOKEN, normalized=False)])
    return tokenizer


def byte_level_metadata(tokenizer: Tokenizer, pre: str) -> dict[str, object]:
    """Return the GGUF metadata of a tokenizer made by `byte_level`."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = dict.fromkeys(CONTROLS, CONTROL) | {USER_DEFINED_TOKEN: USER_DEFINED}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, NORMAL) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
    }


@cache
def byte_fallback() -> Tokenizer:
    """Build a vocabulary like that of Llama 2: `▁` for a space, a token for each byte."""
    trained = Tokenizer(BPE())
    trained.normalizer = _normalizers()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, show_progress=False, limit_alphabet=80)
    )
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(model["vocab"], key=model["vocab"].__getitem__)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = _normalizers()
    tokenizer.decoder = _decoder()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def sentencepiece_metadata(processor: Any, **more: object) -> dict[str, object]:
    """Return the GGUF metadata of a SentencePiece model."""
    ids = range(processor.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [processor.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [_kind(processor, index) for index in ids],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
        **more,
    }


def _kind(processor: Any, index: int) -> int:
    tests: Mapping[int, Any] = {
        UNKNOWN: processor.is_unknown,
        CONTROL: processor.is_control,
        UNUSED: processor.is_unused,
        BYTE: processor.is_byte,
    }
    return next((kind for kind, test in tests.items() if test(index)), NORMAL)


def _step(kind: str, **more: object) -> dict[str, object]:
    return {"type": kind, **more}


def sequence(kind: str, *steps: Mapping[str, object]) -> dict[str, object]:
    """Return a sequence of steps in the format of `tokenizer.json`."""
    return _step("Sequence", **{kind: list(steps)})


def split(pattern: str) -> dict[str, object]:
    """Return a split at the matches of `pattern`, in the format of `tokenizer.json`."""
    return _step("Split", pattern={"Regex": pattern}, behavior="Isolated", invert=False)


def spelled(*, words: bool = False) -> dict[str, object]:
    """Return the step to the byte alphabet, with or without GPT-2's splitting into words."""
    return _step("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=words)


def digits(*, single: bool) -> dict[str, object]:
    """Return the step that splits digits from the text around them."""
    return _step("Digits", individual_digits=single)


def _normalizers() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def _decoder() -> decoders.Decoder:
    replace = decoders.Replace("▁", " ")
    strip = decoders.Strip(" ", 1, 0)
    return decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])


def ids_up_to(tokenizer: Tokenizer) -> Sequence[int]:
    """Return all ids of `tokenizer` and two more, as a padded head has them."""
    return range(tokenizer.get_vocab_size(with_added_tokens=True) + 2)
