"""Models that cannot be used: unknown, incomplete, damaged, of another kind, or behind a login."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from octavo.cli.commands import FAILED, MODEL, USAGE
from tests.damage.weights import without_tensor
from tests.failures.making import Place


class OfModel(NamedTuple):
    """A failure that concerns a model."""

    title: str
    make: Callable[[Place], list[str]]
    code: int
    subject: str
    varies: bool = False


def named(name: str) -> Callable[[Place], list[str]]:
    return lambda place: ["run", name, "hello"]


def files(**content: bytes | str | None) -> Callable[[Place], list[str]]:
    """Return a model some of whose files have other content; None: a missing one."""
    return lambda place: ["run", place.model(**content), "hello"]


def values(file: str, **given: Any) -> Callable[[Place], list[str]]:
    """Return a model with other values in one of its JSON files."""
    return lambda place: ["run", place.model_with(file, **given), "hello"]


def alone(name: str, content: bytes) -> Callable[[Place], list[str]]:
    """Return a model that is one file."""
    return lambda place: ["run", place.file(name, content), "hello"]


def weights(change: Callable[[bytes], bytes]) -> Callable[[Place], list[str]]:
    """Return a model whose weights are changed."""

    def make(place: Place) -> list[str]:
        path = Path(place.model()) / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))
        return ["run", str(path.parent), "hello"]

    return make


def _empty_directory(place: Place) -> list[str]:
    (place.path / "empty").mkdir()
    return ["run", str(place.path / "empty"), "hello"]


def _gated(place: Place) -> list[str]:
    """Pull a model of a hub that refuses to say anything about it without a login."""
    hub = ModuleType("huggingface_hub")

    def refuse(*given: Any, **options: Any) -> None:
        raise OSError("403 Client Error: access to maker/model is restricted")

    hub.__dict__.update(snapshot_download=refuse, HfApi=refuse, hf_hub_download=refuse)
    place.patch.delenv("HF_HUB_OFFLINE")
    place.patch.setitem(sys.modules, "huggingface_hub", hub)
    return ["pull", "maker/model"]


def _no_hub(place: Place) -> list[str]:
    place.patch.delenv("HF_HUB_OFFLINE")
    place.patch.setitem(sys.modules, "huggingface_hub", None)
    return ["pull", "maker/model"]


_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1000\n"
_LAYER = "model.layers.1.mlp.up_proj.weight"

MODELS = (
    OfModel("an unknown name", named("nosuch"), USAGE, "nosuch"),
    OfModel("a misspelt name", named("smolm2"), USAGE, "smollm2"),
    OfModel("a path that leads nowhere", named("/no/such/model"), USAGE, "/no/such/model"),
    OfModel("a model that needs a login", _gated, FAILED, "maker/model"),
    OfModel("a model of the hub, offline", lambda place: ["pull", "a/b"], FAILED, "a/b"),
    OfModel("a model of the hub, without its library", _no_hub, FAILED, "maker/model"),
    OfModel("an empty directory", _empty_directory, FAILED, "empty"),
    OfModel("no configuration", files(config__json=None), MODEL, "config.json"),
    OfModel("no tokenizer", files(tokenizer__json=None), MODEL, "tokenizer"),
    OfModel("a damaged configuration", files(config__json="{"), MODEL, "config.json"),
    OfModel("a damaged tokenizer", files(tokenizer__json="{}"), MODEL, "tokenizer.json"),
    OfModel("a pointer in place of weights", files(model__safetensors=_POINTER), MODEL, "pointer"),
    OfModel("a file that ends early", weights(lambda data: data[:-100]), MODEL, "safetensors"),
    OfModel("a head that is none", weights(lambda data: b"\xff" * 64), MODEL, "safetensors"),
    OfModel("a tensor is missing", weights(without_tensor(_LAYER)), MODEL, "up_proj"),
    OfModel("tensors of another shape", values("config.json", hidden_size=64), MODEL, "tensor"),
    OfModel(
        "an unknown architecture",
        values("config.json", architectures=["MagicForCausalLM"]),
        MODEL,
        "MagicForCausalLM",
        varies=True,
    ),
    OfModel(
        "an unknown quantisation",
        values("config.json", quantization_config={"quant_method": "magic"}),
        MODEL,
        "magic",
        varies=True,
    ),
    OfModel("an impossible size", values("config.json", vocab_size=-1), MODEL, "vocab_size"),
    OfModel("a pickle", alone("model.bin", b"x"), MODEL, "model.bin"),
    OfModel("a file of another kind", alone("model.onnx", b"x"), MODEL, "model.onnx"),
    OfModel("a GGUF file that is none", alone("model.gguf", b"x" * 64), MODEL, "model.gguf"),
    OfModel("a GGUF file that ends early", alone("m.gguf", b"GGUF\x03\0\0\0"), MODEL, "m.gguf"),
    OfModel(
        "a template of the model's with a mistake",
        files(chat_template__jinja="{% if %}"),
        USAGE,
        "template",
    ),
    OfModel(
        "a longer text than the model has positions for",
        lambda place: ["run", place.model(), "--max-model-len", "1M", "hello"],
        USAGE,
        "--max-model-len",
    ),
    OfModel(
        "a prompt that is too long",
        lambda place: ["run", place.model(), "--max-model-len", "16", "hello " * 60],
        USAGE,
        "16",
    ),
)
