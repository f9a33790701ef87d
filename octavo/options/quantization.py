"""What `quantization` may name: the format of the files, under each of its names, or one to make.

vLLM calls a format also by the kernels that compute with it, so that one format has many names.
"""

from __future__ import annotations

# A name → the formats that it stands for. Others stand for the format of that name.
_FORMATS: dict[str, tuple[str, ...]] = {
    "auto-gptq": ("gptq",),
    "gptq-bitblas": ("gptq",),
    "gptq-marlin": ("gptq",),
    "gptqmodel": ("gptq",),
    "auto-awq": ("awq",),
    "awq-marlin": ("awq",),
    "awq-triton": ("awq",),
    "cpu-awq": ("awq",),
    "cpu-gptq": ("gptq",),
    "moe-wna16": ("awq", "gptq", "auto-round"),
    "inc": ("auto-round",),
    "intel/auto-round": ("auto-round",),
    "modelopt-fp4": ("modelopt",),
    "modelopt-fp8": ("modelopt",),
    "modelopt-mixed": ("modelopt",),
    "modelopt-mxfp8": ("modelopt",),
    "petit-nvfp4": ("modelopt",),
    "gpt-oss-mxfp4": ("mxfp4",),
    "deepseek-v4-fp8": ("fp8",),
    "ipex": ("awq", "gptq"),
    "w8a8-fp8": ("compressed-tensors",),
    "w8a8-int8": ("compressed-tensors",),
}

# What the native engine makes of floats, by `cpu_weights`, and the names that others have for it.
# Where a name says that more weights share a scale, fewer do here.
_MADE: dict[str, tuple[str, ...]] = {
    "int8": ("int8", "int8-per-channel-weight-only", "experts-int8", "tpu-int8", "w8a8-int8"),
    "int4": ("int4",),
    "fp8": (
        *("fp8", "fp8-per-tensor", "fp8-per-channel", "fp8-per-block", "ptpc-fp8", "w8a8-fp8"),
    ),
    "nf4": ("bitsandbytes", "nf4"),
}
_FOUR_BITS = "bitsandbytes (NF4), int4, or files that octavo quantize --to {} makes"
# A name of what is not made at load → what to choose instead.
_INSTEAD: dict[str, str] = {
    "mxfp8": "fp8",
    "modelopt-mxfp8": "fp8",
    "fbgemm-fp8": "fp8",
    "modelopt-fp8": "fp8",
    "torchao": "int8 or int4",
    "rtn": "int8 or int4",
    "online": "the format itself: fp8, int8, int4 or bitsandbytes",
    **dict.fromkeys(
        ("nvfp4", "nvfp4-per-token", "modelopt", "modelopt-fp4", "petit-nvfp4"),
        _FOUR_BITS.format("nvfp4"),
    ),
    **dict.fromkeys(("mxfp4", "gpt-oss-mxfp4"), _FOUR_BITS.format("mxfp4")),
    **dict.fromkeys(
        ("awq", "awq-marlin", "gptq", "gptq-marlin", "compressed-tensors", "auto-round", "hqq"),
        _FOUR_BITS.format("w4a16"),
    ),
}


def made_at_load(asked: str) -> str | None:
    """Return the `cpu_weights` that a name means for floats; None if it means none."""
    plain = _plain(asked)
    return next((weights for weights, names in _MADE.items() if plain in names), None)


def instead_of(asked: str) -> str:
    """Return what to choose instead of a format that floats do not become."""
    return _INSTEAD.get(_plain(asked), "one of int8, int4, fp8 and bitsandbytes")


def is_same(asked: str, found: str) -> bool:
    """Return whether a name stands for the format that the files have."""
    formats = _FORMATS.get(_plain(asked), (_plain(asked),))
    own = _plain(found)
    return own in formats or (own in _FORMATS and set(_FORMATS[own]) <= set(formats))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
