"""The undamaged models: a directory with every file that is read, one in parts, and GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.api.tiny import SIZES, TEMPLATE, make_model, make_tokenizer_files
from tests.damage.mutants import Mutant, byte_mutants, json_mutants
from tests.damage.weights import gguf_mutants, safetensors_mutants
from tests.loader.make_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    GGUFTensor,
    f32_tensor,
    gguf_bytes,
    write_index,
    write_safetensors,
)
from tests.quant.made_up import FORMATS, write_pair

CONFIG: dict[str, Any] = {
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": [1],
    "head_dim": 8,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "torch_dtype": "float32",
}
GENERATION: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": [1],
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "max_new_tokens": 64,
}
SPECIAL_TOKENS: dict[str, Any] = {
    "bos_token": {"content": "<s>", "lstrip": False, "normalized": False},
    "eos_token": "</s>",
    "additional_special_tokens": ["<s>", {"content": "</s>"}],
}


def write_directory(directory: Path) -> Path:
    """Write a model in safetensors, with every small file that is read."""
    directory.mkdir()
    make_model(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    (directory / "special_tokens_map.json").write_text(json.dumps(SPECIAL_TOKENS))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    token = {"lstrip": False, "rstrip": False, "normalized": False, "special": True}
    settings = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", **token},
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": {
            "0": {"content": "<s>", **token},
            "1": {"content": "</s>", **token},
        },
        "chat_template": [
            {"name": "default", "template": TEMPLATE},
            {"name": "tool_use", "template": TEMPLATE},
        ],
        "model_max_length": 128,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def write_parts(directory: Path) -> Path:
    """Write the same model in two files with an index."""
    write_directory(directory)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    owners: dict[str, str] = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(directory / file, {name: tensors[name] for name in part})
        owners |= dict.fromkeys(part, file)
    write_index(directory / "model.safetensors.index.json", owners)
    return directory


def write_quantised(directory: Path, name: str) -> Path:
    """Write a model with a quantization_config."""
    directory.mkdir()
    write_pair(directory, FORMATS[name], hidden_size=64, intermediate_size=128)
    for path in (directory / "stored").iterdir():
        path.rename(directory / path.name)
    make_tokenizer_files(directory)
    return directory


BLOCK_SHAPES: dict[str, tuple[int, ...]] = {
    "attn_norm": (32,),
    "attn_q": (32, 32),
    "attn_k": (16, 32),
    "attn_v": (16, 32),
    "attn_output": (32, 32),
    "ffn_norm": (32,),
    "ffn_gate": (64, 32),
    "ffn_up": (64, 32),
    "ffn_down": (32, 64),
}


def gguf_parts(directory: Path, kind: str) -> tuple[list[tuple[str, int, Any]], list[GGUFTensor]]:
    """Return the metadata and the tensors of a GGUF file with a vocabulary of a kind."""
    directory.mkdir(exist_ok=True)
    tokens, vocabulary = _byte_level(directory) if kind == "gpt2" else _sentencepiece()
    generator = np.random.default_rng(3)
    shapes = {"token_embd.weight": (len(tokens), 32), "output_norm.weight": (32,)}
    for layer in range(2):
        for name, shape in BLOCK_SHAPES.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    tensors = [
        f32_tensor(name, generator.standard_normal(shape, np.float32) * np.float32(0.25))
        for name, shape in shapes.items()
    ]
    pairs: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, "damaged"),
        ("general.alignment", U32, 32),
        ("general.sampling.temp", F32, 0.5),
        ("general.sampling.top_k", U32, 20),
        ("general.sampling.penalty_repeat", F32, 1.1),
        ("llama.context_length", U32, 128),
        ("llama.embedding_length", U32, 32),
        ("llama.block_count", U32, 2),
        ("llama.feed_forward_length", U32, 64),
        ("llama.attention.head_count", U32, 4),
        ("llama.attention.head_count_kv", ARRAY, (U32, [2, 2])),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.attention.key_length", U32, 8),
        ("llama.rope.freq_base", F32, 10000.0),
        ("llama.rope.dimension_count", U32, 8),
        ("llama.rope.scaling.type", STRING, "yarn"),
        ("llama.rope.scaling.factor", F32, 2.0),
        ("llama.rope.scaling.original_context_length", U32, 64),
        ("tokenizer.ggml.model", STRING, kind),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.ggml.eot_token_id", U32, 2),
        ("tokenizer.ggml.add_bos_token", BOOL, True),
        ("tokenizer.chat_template", STRING, TEMPLATE),
    ]
    return [*pairs, *vocabulary], tensors


def _byte_level(directory: Path) -> tuple[list[str], list[tuple[str, int, Any]]]:
    tokenizer = Tokenizer.from_file(str(make_tokenizer_files(directory) / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokens, [
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(merge) for merge in merges])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, *[1] * (len(tokens) - 2)])),
    ]


def _sentencepiece() -> tuple[list[str], list[tuple[str, int, Any]]]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcde"]
    tokens += ["ab", "▁a", "▁ab"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    return tokens, [
        ("tokenizer.ggml.scores", ARRAY, (F32, [float(-index) for index in range(len(tokens))])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.unknown_token_id", U32, 0),
        ("tokenizer.ggml.add_space_prefix", BOOL, True),
    ]


def directory_mutants(directory: Path) -> list[Mutant]:
    """Return the mutants of a model in one safetensors file."""
    found: list[Mutant] = []
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        if path.suffix == ".json":
            found += json_mutants(path.name, content)
        if path.suffix == ".safetensors":
            found += safetensors_mutants(path.name, content)
        found += byte_mutants(path.name, content)
    return found


def index_mutants(directory: Path) -> list[Mutant]:
    """Return the mutants of what only a model in parts has."""
    name = "model.safetensors.index.json"
    content = (directory / name).read_bytes()
    part = "model-00001-of-00002.safetensors"
    more = byte_mutants(part, (directory / part).read_bytes())
    return [*json_mutants(name, content), *byte_mutants(name, content), *more]


def quantised_mutants(directory: Path) -> list[Mutant]:
    """Return the mutants of a quantised model's config.json and tensors."""
    content = (directory / "config.json").read_bytes()
    found = [each for each in json_mutants("config.json", content) if "quantization" in each.name]
    weights = (directory / "model.safetensors").read_bytes()
    tensors = list(safetensors_mutants("model.safetensors", weights))
    return [*found, *tensors[:: len(tensors) // 60]]


def write_gguf_model(directory: Path, kind: str) -> tuple[Path, list[Mutant]]:
    """Write a GGUF file, and return its path with its mutants."""
    pairs, tensors = gguf_parts(directory, kind)
    path = directory / "model.gguf"
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path, [
        *gguf_mutants(path.name, pairs, tensors),
        *byte_mutants(path.name, path.read_bytes()),
    ]
