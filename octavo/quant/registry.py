"""The stored formats of matrices, by the quant_method that a config.json names."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.quant.methods.mxfp4 import Mxfp4
from octavo.quant.refused import NEAREST
from octavo.quant.weight_format import Settings, WeightFormat

# A method → (module of octavo.quant.methods, function from settings to a format).
METHODS: dict[str, tuple[str, str]] = {
    "mxfp4": ("mxfp4", "read_mxfp4"),
    "gptq": ("gptq", "read_gptq"),
    "awq": ("awq", "read_awq"),
    "auto-round": ("auto_round", "read_auto_round"),
    "intel/auto-round": ("auto_round", "read_auto_round"),
    "fp8": ("fp8", "read_fp8"),
    "fbgemm_fp8": ("fp8", "read_fbgemm"),
    "compressed-tensors": ("compressed_tensors", "read_compressed_tensors"),
    "modelopt": ("modelopt", "read_modelopt"),
    "bitsandbytes": ("bitsandbytes", "read_bitsandbytes"),
    "hqq": ("hqq", "read_hqq"),
    "torchao": ("torchao", "read_torchao"),
    "squeezellm": ("squeezellm", "read_squeezellm"),
}

# Formats whose names and types are unmistakable: checkpoints need not name them.
UNNAMED: tuple[WeightFormat, ...] = (Mxfp4(),)


def formats_for(settings: Settings | None) -> tuple[WeightFormat, ...]:
    """Return the formats of a checkpoint with this quantization_config, if it has one.

    Unsupported methods are refused, before a hundred tensors are reported as missing.
    """
    if settings is None or not settings.has("quant_method"):
        return UNNAMED
    method = settings.string("quant_method")
    if method not in METHODS:
        raise UnsupportedFormatError(
            f"the weights are quantised by {quote(method)}, which is not supported in "
            f"safetensors; supported are: {', '.join(METHODS)}",
            advice=NEAREST.get(method.lower(), "use the unquantised model or a GGUF file"),
        )
    module, name = METHODS[method]
    read = getattr(import_module(f"octavo.quant.methods.{module}"), name)
    found = cast(WeightFormat, read(settings))
    return UNNAMED if isinstance(found, Mxfp4) else (*UNNAMED, found)
