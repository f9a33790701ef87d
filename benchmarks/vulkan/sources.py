"""The sources of shaders: a file, with the sizes of a launch as constants in front of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

Constant = int | float | bool
_SHADERS = Path(__file__).parent / "shaders"
ROW_FORMATS = ("F32", "BF16", "F16", "Q4_1", "Q8_0")  # rows_*.wgsl decode them


@cache
def text(name: str) -> str:
    """Return a shader's text as its file has it."""
    return (_SHADERS / f"{name}.wgsl").read_text()


def shader(name: str, **constants: Constant) -> str:
    """Return a shader with its constants."""
    declared = [_declared(key, value) for key, value in constants.items()]
    return "\n".join((*declared, text(name)))


def shader_of_rows(name: str, rows: str, **constants: Constant) -> str:
    """Return a shader that reads rows of a format, with their decoder."""
    return "\n".join((shader(name, **constants), text(f"rows_{rows.lower()}")))


def shader_of_noise(name: str, **constants: Constant) -> str:
    """Return a shader that needs random bits, with what makes them."""
    return "\n".join((shader(name, **constants), text("hash")))


def _declared(key: str, value: Constant) -> str:
    """Return a constant's declaration; floats to the bit."""
    if isinstance(value, bool):
        return f"const {key} = {str(value).lower()};"
    if isinstance(value, int):
        return f"const {key} = {value}u;"
    return f"const {key} = {float(np.float32(value)).hex()}f;"
