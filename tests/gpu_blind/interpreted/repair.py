"""Repairs Triton's interpreter, which computes with the bits of bfloat16 as if they were integers.

The interpreter keeps short floats as integers of their size. Here each operation on them is
computed in float32 and rounded to the nearest, as cards do, and 8-bit floats keep to their range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_SHORT = {
    tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
    tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
}
_LARGEST = {tl.float8e5: 57344.0, tl.float8e4nv: 448.0}
_COMPARISONS = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}


def _type(kind: Any) -> Any:
    return kind.scalar if hasattr(kind, "scalar") else kind


def _is_short(handle: Any) -> bool:
    return _type(handle.dtype) in _SHORT


def _wide(handle: Any) -> Any:
    """Return the numbers of a handle as float32, which has all of them."""
    if not _is_short(handle):
        return handle.data
    return handle.data.view(_SHORT[_type(handle.dtype)]).astype(np.float32)


def _made(values: Any, kind: Any) -> Any:
    """Return a handle of a type with these numbers, rounded to the nearest."""
    kind = _type(kind)
    if kind not in _SHORT:
        return interpreter.TensorHandle(values.astype(interpreter._get_np_dtype(kind)), kind)
    values = np.asarray(values, np.float32)
    if kind in _LARGEST:
        values = np.clip(values, -_LARGEST[kind], _LARGEST[kind])
    bits = values.astype(_SHORT[kind]).view(interpreter._get_np_dtype(kind))
    return interpreter.TensorHandle(bits, kind)


def install() -> None:
    """Replace the interpreter's operations on short floats, for this process."""
    builder = interpreter.InterpreterBuilder
    old_binary, old_unary = builder.binary_op, builder.unary_op
    old_cast, old_float_cast = builder.cast_impl, builder.create_fp_to_fp

    def binary(self: Any, left: Any, right: Any, operation: Callable[..., Any]) -> Any:
        if not _is_short(left):
            return old_binary(self, left, right, operation)
        result = operation(_wide(left), _wide(right))
        if operation in _COMPARISONS:
            return interpreter.TensorHandle(result, tl.int1)
        return _made(result, left.dtype)

    def unary(self: Any, value: Any, operation: Callable[..., Any]) -> Any:
        if not _is_short(value):
            return old_unary(self, value, operation)
        return _made(operation(_wide(value)), value.dtype)

    def cast(self: Any, value: Any, kind: Any) -> Any:
        if _is_short(value) or _type(kind) in _SHORT:
            return _made(_wide(value), kind)
        return old_cast(self, value, kind)

    def float_cast(self: Any, value: Any, kind: Any, rounding: Any) -> Any:
        if _is_short(value) or _type(kind) in _SHORT:
            return _made(_wide(value), kind)
        return old_float_cast(self, value, kind, rounding)

    def dot(self: Any, left: Any, right: Any, added: Any, *rest: Any) -> Any:
        # A library would add up a row in an order that the number of rows decides.
        product = np.einsum("ik,kj->ij", _wide(left), _wide(right))
        return interpreter.TensorHandle(product + added.data, _type(added.dtype))

    builder.binary_op, builder.unary_op, builder.create_dot = binary, unary, dot
    builder.cast_impl, builder.create_fp_to_fp = cast, float_cast
    old_patch = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any, *rest: Any) -> None:
        old_patch(tensor, scope, *rest)
        # Numbers are arrays of one element, which newer numpy does not take for an index.
        scope.set_attr(tensor, "__index__", lambda it: int(it.handle.data.item()))

    interpreter._patch_lang_tensor = patch
