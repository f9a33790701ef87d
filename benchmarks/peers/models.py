"""The models of the comparison, created so that every engine reads the same weights.

smollm2      SmolLM2-135M-Instruct as published: a GGUF file of four-bit weights
smollm2-bf16 the same weights, dequantised to bf16: safetensors, and a BF16 GGUF file
smollm2-q8_0 the same in eight bits: a GGUF file
smollm2-openvino  the bf16 weights as OpenVINO reads them, in fp16, computed in bf16
llama-1b     the shape of a 1B Llama with random weights in bf16, in both forms
llama-1b-q4_k     the same with all matrices in Q4_K: a GGUF file
llama-1b-0.1, llama-1b-first  the same with all layers but the first scaled, and that one alone
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.api.text_model import load_tokenizer
from octavo.loader import ModelFiles, resolve
from octavo.models.load import open_model

Array = NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)

ONE_BILLION: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, slots=True)
class Weights:
    """One model in the formats that the engines read."""

    directory: Path | None  # safetensors
    gguf: Path


def smollm2() -> Weights:
    """Return the four-bit file as published."""
    return Weights(None, _gguf(resolve("smollm2")))


def smollm2_bf16(to: Path, quantize: Path | None) -> Weights:
    """Write the weights in bf16; llama.cpp's own tool writes the GGUF file, if present."""
    source = resolve("smollm2")
    directory, gguf = to / "smollm2-bf16", to / "smollm2-bf16.gguf"
    if not (directory / "config.json").exists():
        _write_directory(source, directory)
    if not (directory / "tokenizer.json").exists():
        _write_tokenizer(source, directory)
    if quantize is not None and not gguf.exists():
        _quantize(quantize, _gguf(source), gguf, "BF16")
    return Weights(directory, gguf)


def smollm2_q8(to: Path, quantize: Path) -> Path:
    """Write the weights in eight bits."""
    gguf = to / "smollm2-q8_0.gguf"
    if not gguf.exists():
        _quantize(quantize, _gguf(resolve("smollm2")), gguf, "Q8_0")
    return gguf


def openvino(directory: Path, made: Path, python: Path, weights: str = "fp16") -> Path:
    """Export `directory` for OpenVINO to `made`; `python` has its exporter."""
    if not (made / "openvino_model.bin").exists():
        command = [str(python), "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        asked = ["--task", "text-generation-with-past", "--weight-format", weights]
        done = subprocess.run(
            [*command, "--model", str(directory), *asked, str(made)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(f"OpenVINO's exporter failed: {done.stderr[-800:]}")
    return made


def _quantize(quantize: Path, source: Path, target: Path, type_name: str, *more: str) -> None:
    command = [str(quantize), "--allow-requantize", *more, str(source), str(target), type_name]
    subprocess.run(command, check=True, capture_output=True)


def llama_1b(to: Path) -> Weights:
    """Write random weights, small enough that nothing overflows."""
    directory, gguf = to / "llama-1b", to / "llama-1b.gguf"
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        tensors = _random_tensors()
        _write_tensors(tensors, directory)
        _write_gguf(tensors, gguf)
        (directory / "config.json").write_text(json.dumps(ONE_BILLION, indent=1))
    return Weights(directory, gguf)


def drafting_pair(to: Path, share: float = 0.1) -> tuple[Path, Path]:
    """Write random weights whose later layers add little, and their first layer as a drafter.

    What the layers behind the first one add is scaled by `share`: the less, the more often both
    models choose the same token. Both files have the same embedding and the same tokens.
    """
    model, drafter = to / f"llama-1b-{share:g}.gguf", to / "llama-1b-first.gguf"
    if not (model.exists() and drafter.exists()):
        to.mkdir(parents=True, exist_ok=True)
        tensors = _random_tensors()
        first = {n: t for n, t in tensors.items() if _layer(n) in (None, 0)}
        _write_gguf(first, drafter, {**ONE_BILLION, "num_hidden_layers": 1})
        for name, tensor in tensors.items():
            if _layer(name) and name.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[name] = (tensor.astype(np.float32) * share).astype(BF16)
        _write_gguf(tensors, model)
    return model, drafter


def _layer(name: str) -> int | None:
    _, has_layer, inner = name.partition(".layers.")
    return int(inner.partition(".")[0]) if has_layer else None


def make_random_1b(directory: Path, **changed: int) -> None:
    """Write the random weights in bf16 alone, with a tokenizer of a few hundred tokens.

    `changed` has sizes that are others than those of 1B.
    """
    from tests.api.tiny import make_tokenizer_files

    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        make_tokenizer_files(directory)
        config = {**ONE_BILLION, **changed}
        _write_tensors(_random_tensors(config), directory)
        (directory / "config.json").write_text(json.dumps(config, indent=1))


def llama_1b_q4_k(to: Path, quantize: Path) -> Path:
    """Quantise the random weights, the embeddings too, without a mixture of types."""
    gguf = to / "llama-1b-q4_k.gguf"
    if not gguf.exists():
        _quantize(quantize, llama_1b(to).gguf, gguf, "Q4_K_S", "--pure")
    return gguf


def _gguf(source: ModelFiles) -> Path:
    path = source.open().path
    assert path is not None
    return Path(path)


def _write_directory(source: ModelFiles, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    opened = open_model(source)
    weights = opened.weights
    tensors = {
        name: weights.rows(name).floats().reshape(shape) for name, shape in weights.shapes().items()
    }
    _write_tensors(tensors, directory)
    spec = opened.spec
    rope = spec.ropes[0]
    assert rope is not None
    theta = rope.frequencies[1] ** (-rope.num_dimensions / 2)
    config = {
        **ONE_BILLION,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocabulary,
        "max_position_embeddings": spec.max_len,
        "rms_norm_eps": spec.eps,
        "rope_theta": round(theta),
        "tie_word_embeddings": spec.tied,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def _write_tokenizer(source: ModelFiles, directory: Path) -> None:
    """Write the tokenizer in the form that other libraries read."""
    tokenizer = load_tokenizer(source)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    if "default" in tokenizer.chat_templates:
        config["chat_template"] = tokenizer.chat_templates["default"]
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    tokenizer.backend.save(str(directory / "tokenizer.json"))


def _write_tensors(tensors: dict[str, Array], directory: Path) -> None:
    from safetensors.numpy import save_file

    narrow = {name: np.ascontiguousarray(tensor.astype(BF16)) for name, tensor in tensors.items()}
    save_file(narrow, directory / "model.safetensors", metadata={"format": "pt"})


def _random_tensors(config: dict[str, Any] = ONE_BILLION) -> dict[str, Array]:
    random = np.random.default_rng(1)
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def matrix(rows: int, columns: int) -> Array:
        return (random.standard_normal((rows, columns), np.float32) * 0.02).astype(BF16)

    ones = np.ones(hidden, BF16)
    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": ones,
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = ones.copy()
        tensors[at + "post_attention_layernorm.weight"] = ones.copy()
        tensors[at + "self_attn.q_proj.weight"] = matrix(heads * dim, hidden)
        tensors[at + "self_attn.k_proj.weight"] = matrix(kv_heads * dim, hidden)
        tensors[at + "self_attn.v_proj.weight"] = matrix(kv_heads * dim, hidden)
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, heads * dim)
        tensors[at + "mlp.gate_proj.weight"] = matrix(ffn, hidden)
        tensors[at + "mlp.up_proj.weight"] = matrix(ffn, hidden)
        tensors[at + "mlp.down_proj.weight"] = matrix(hidden, ffn)
    return tensors


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _write_gguf(
    tensors: dict[str, Array], path: Path, config: dict[str, Any] = ONE_BILLION
) -> None:
    """Write a GGUF file; the order of rotary pairs does not matter for random weights."""
    import gguf

    beside = path.with_suffix(".new")
    writer = gguf.GGUFWriter(beside, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{index}".encode() for index in range(config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    writer.add_token_types([1] * config["vocab_size"])
    for name, tensor in tensors.items():
        if name in ("model.embed_tokens.weight", "model.norm.weight"):
            ours = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
            stored = ours[name] + ".weight"
        else:
            _, _, layer, rest = name.split(".", 3)
            stored = f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"
        if tensor.ndim == 1:
            writer.add_tensor(stored, tensor.astype(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(stored, tensor.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)  # whole, or not there
