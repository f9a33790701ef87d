"""The forms of kernels: for which arguments Triton compiles a kernel anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

_ALIGNMENT = 16  # bytes of an address, or the factor of a number, that the compiler relies on


def form_of(
    kernel: Any, tensors: Sequence[Tensor], numbers: Sequence[Any], constants: Mapping[str, Any]
) -> tuple[object, ...]:
    """Return what decides whether a launch needs code that an earlier one has not needed."""
    free = set(getattr(kernel, "kwargs", {}).get("do_not_specialize") or ())
    names = kernel.arg_names[len(tensors) :]
    of_tensors = tuple((each.dtype, each.data_ptr() % _ALIGNMENT == 0) for each in tensors)
    of_numbers = tuple(
        type(number) if isinstance(number, float) or name in free else _kind_of(number)
        for name, number in zip(names, numbers, strict=False)
    )
    return kernel.__name__, of_tensors, of_numbers, tuple(sorted(constants.items()))


def _kind_of(number: int) -> str:
    return "one" if number == 1 else "even" if number % _ALIGNMENT == 0 else "any"
