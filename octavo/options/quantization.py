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
    "modelopt-mixed": ("modelopt",),
    "modelopt-mxfp8": ("modelopt",),
    "petit-nvfp4": ("modelopt",),
    "gpt-oss-mxfp4": ("mxfp4",),
    "deepseek-v4-fp8": ("fp8",),
}

# What the native engine makes of floats, by `cpu_weights`.
AT_LOAD = ("int8", "int4")


def is_same(asked: str, found: str) -> bool:
    """Return whether a name stands for the format that the files have."""
    formats = _FORMATS.get(_plain(asked), (_plain(asked),))
    own = _plain(found)
    return own in formats or (own in _FORMATS and set(_FORMATS[own]) <= set(formats))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
