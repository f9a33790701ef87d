"""Saves the interpreter work that it repeats for each operation or call; numbers stay the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_ADDRESS = np.dtype(np.uint64)
_patched: set[int] = set()  # the modules of the language that are, for the launch that runs


def install() -> None:
    """Patch the language once for each launch, and find types only where they are read."""
    executor, look_up = interpreter.GridExecutor, cache(interpreter._get_np_dtype)
    run, patch = executor.__call__, interpreter._patch_lang

    def run_once(self: Any, *given: Any, **named: Any) -> None:
        _patched.clear()
        run(self, *given, **named)

    def patch_once(function: Any) -> Any:
        """Patch what a kernel sees of the language, and not again for functions that it calls."""
        seen = {id(each) for each in function.__globals__.values() if each is tl or each is tl.core}
        if seen <= _patched:
            return interpreter._LangPatchScope()
        _patched.update(seen)
        return patch(function)

    def form_of(kind: Any) -> Any:
        if isinstance(kind, tl.block_type):
            kind = kind.element_ty
        return _ADDRESS if isinstance(kind, tl.pointer_type) else look_up(kind)

    executor.__call__, interpreter._patch_lang = run_once, patch_once
    interpreter._get_np_dtype = form_of
    _find_types_late()


def _find_types_late() -> None:
    """Find the type of a tuple, such as each tensor's shape, when it is first asked for."""
    kind = tl.core.tuple
    begin, field = kind.__init__, kind.__getattr__

    def begun(self: Any, values: Any, type: Any = None) -> None:
        if type is None:
            self.values = [*values]
        else:
            begin(self, values, type)

    def found(self: Any, name: str) -> Any:
        if name != "type":
            return field(self, name)
        self.type = tl.core._type_for_tuple_values(self.values)
        return self.type

    kind.__init__, kind.__getattr__ = begun, found
