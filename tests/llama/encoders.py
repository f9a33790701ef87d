"""Encoders of random weights, with the vocabulary of llama.cpp's own tests of tokenisers.

So counts of tokens are those of the model that they stand in for; vectors and scores are noise.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from octavo.loader.gguf.reader import open_gguf

Array = NDArray[np.float32]
HIDDEN, NUM_LAYERS, HEADS, FFN, CONTEXT = 64, 2, 4, 128, 512
_SPACE, _INNER = "▁", "##"


def make_encoders(folder: Path, vocabulary: Path) -> None:
    """Write a model for vectors and one for scores, unless they are there or nothing to read is."""
    if not vocabulary.is_file():
        return
    for name, has_scores in (("vectors", False), ("scores", True)):
        if not (folder / name / "config.json").is_file():
            write_encoder(folder / name, pieces_in(vocabulary), has_scores=has_scores)


def pieces_in(vocabulary: Path) -> list[str]:
    """Return the pieces of a GGUF file as WordPiece has them: the inner ones are marked."""
    listed = open_gguf(vocabulary).metadata.strings("tokenizer.ggml.tokens")
    return [*map(_piece, listed)]


def _piece(text: str) -> str:
    if text.startswith(_SPACE):
        return text[1:]
    return text if text[:1] == "[" and text[-1:] == "]" and len(text) > 2 else _INNER + text


def write_encoder(directory: Path, pieces: list[str], *, has_scores: bool) -> None:
    """Write the files of a model; the configuration is the last."""
    directory.mkdir(parents=True, exist_ok=True)
    _tokenizer(pieces).save(str(directory / "tokenizer.json"))
    save_file(dict(_weights(len(pieces), has_scores=has_scores)), directory / "model.safetensors")
    config = {
        "architectures": ["BertForSequenceClassification" if has_scores else "BertModel"],
        "model_type": "bert",
        "hidden_size": HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FFN,
        "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2,
        "vocab_size": len(pieces),
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        **({"num_labels": 1, "id2label": {"0": "LABEL_0"}} if has_scores else {}),
    }
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "config.json").write_text(json.dumps(config))


def _tokenizer(pieces: list[str]) -> Tokenizer:
    ids = {piece: number for number, piece in reversed([*enumerate(pieces)])}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(each, ids[each]) for each in ("[CLS]", "[SEP]")],
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return made


def _weights(num_pieces: int, *, has_scores: bool) -> dict[str, Array]:
    random = np.random.default_rng(7)

    def matrix(*shape: int) -> Array:
        return (random.standard_normal(shape) * 0.3).astype(np.float32)

    made: dict[str, Array] = {}

    def linear(name: str, num_out: int, num_in: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = matrix(num_out, num_in), matrix(num_out)

    def norm(name: str) -> None:
        made[f"{name}.weight"] = np.ones(HIDDEN, np.float32)
        made[f"{name}.bias"] = np.zeros(HIDDEN, np.float32)

    start = "bert." if has_scores else ""
    for name, size in (("word", num_pieces), ("position", CONTEXT), ("token_type", 2)):
        made[f"{start}embeddings.{name}_embeddings.weight"] = matrix(size, HIDDEN)
    norm(f"{start}embeddings.LayerNorm")
    for layer in range(NUM_LAYERS):
        block = f"{start}encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            linear(f"{block}.attention.self.{name}", HIDDEN, HIDDEN)
        linear(f"{block}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{block}.attention.output.LayerNorm")
        linear(f"{block}.intermediate.dense", FFN, HIDDEN)
        linear(f"{block}.output.dense", HIDDEN, FFN)
        norm(f"{block}.output.LayerNorm")
    linear(f"{start}pooler.dense", HIDDEN, HIDDEN)
    if has_scores:
        linear("classifier", 1, HIDDEN)
    return made
