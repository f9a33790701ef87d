"""The corpus: every mutant of every undamaged model, in an order that mixes all kinds."""

from __future__ import annotations

import random
from pathlib import Path

from tests.damage.models import (
    directory_mutants,
    index_mutants,
    quantised_mutants,
    write_directory,
    write_gguf_model,
    write_parts,
    write_quantised,
)
from tests.damage.mutants import Mutant

MODELS = (
    "a directory",
    "parts",
    "GGUF, gpt2",
    "GGUF, llama",
    "GPTQ, 4 bits",
    "GPTQ, 8 bits, symmetric",
    "bitsandbytes, NF4",
    "HQQ, 4 bits",
    "SqueezeLLM",
    "torchao, integers",
    "FP8 blocks",
    "FP8, a scale for a row",
    "packed, 4 bits, zero points",
    "NVFP4",
    "mixed groups",
)


def write_model(name: str, directory: Path) -> tuple[Path, list[Mutant]]:
    """Write an undamaged model; return its path and all its mutants."""
    path = directory / "model"
    if name.startswith("GGUF, "):
        path, mutants = write_gguf_model(path, name.removeprefix("GGUF, "))
    elif name == "a directory":
        mutants = directory_mutants(write_directory(path))
    elif name == "parts":
        mutants = index_mutants(write_parts(path))
    else:
        mutants = quantised_mutants(write_quantised(path, name))
    random.Random(0).shuffle(mutants)
    return path, mutants
