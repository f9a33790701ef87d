"""Small models of random weights under the names that the pages use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.api.tiny import SIZES, make_model, make_tokenizer_files
from tests.damage.models import gguf_parts
from tests.loader.make_files import gguf_bytes

POSITIONS = 4096
WIDTH = int(SIZES["hidden_size"])


def make_chat_model(directory: Path) -> None:
    """Write a model that chats, in safetensors."""
    directory.mkdir(parents=True)
    make_model(directory)
    config = json.loads((directory / "config.json").read_text())
    _dump(directory / "config.json", {**config, "max_position_embeddings": POSITIONS})


def make_gguf_model(path: Path) -> None:
    """Write a model as a GGUF file, with its vocabulary and its chat template."""
    path.parent.mkdir(parents=True)
    pairs, tensors = gguf_parts(path.parent, "gpt2")
    longer = {"llama.context_length": POSITIONS, "llama.rope.scaling.original_context_length": 2048}
    path.write_bytes(
        gguf_bytes([(name, kind, longer.get(name, value)) for name, kind, value in pairs], tensors)
    )


def make_embedding_model(directory: Path) -> None:
    """Write an encoder of BERT's kind, with sentence-transformers' file of its pooling."""
    directory.mkdir(parents=True)
    make_tokenizer_files(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ends = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ends
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": SIZES["vocab_size"],
        "hidden_size": WIDTH,
        "intermediate_size": SIZES["intermediate_size"],
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }
    _dump(directory / "config.json", config)
    parts = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    parts += [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    _dump(directory / "modules.json", parts)
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    _dump(directory / "1_Pooling" / "config.json", pooling)
    save_file(_encoder_weights(config), str(directory / "model.safetensors"))


def make_adapter(directory: Path) -> None:
    """Write an adapter of the chat model, as PEFT saves one."""
    directory.mkdir(parents=True)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    _dump(directory / "adapter_config.json", settings)
    generator = np.random.default_rng(5)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    pairs = {
        f"{name}.lora_A.weight": generator.standard_normal((4, WIDTH), np.float32),
        f"{name}.lora_B.weight": generator.standard_normal((WIDTH, 4), np.float32),
    }
    save_file(pairs, str(directory / "adapter_model.safetensors"))


def _encoder_weights(config: dict[str, Any]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(11)
    inner = config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], WIDTH),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    layer = "encoder.layer.0."
    for name, rows, columns in (
        *((f"{layer}attention.self.{each}", WIDTH, WIDTH) for each in ("query", "key", "value")),
        (f"{layer}attention.output.dense", WIDTH, WIDTH),
        (f"{layer}intermediate.dense", inner, WIDTH),
        (f"{layer}output.dense", WIDTH, inner),
    ):
        shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    weights = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for norm in ("embeddings", f"{layer}attention.output", f"{layer}output"):
        weights[f"{norm}.LayerNorm.weight"] = np.ones(WIDTH, np.float32)
        weights[f"{norm}.LayerNorm.bias"] = np.zeros(WIDTH, np.float32)
    return weights


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), "utf-8")
