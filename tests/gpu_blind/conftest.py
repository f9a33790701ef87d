"""A run has one leg: the interpreter if TRITON_INTERPRET is 1, else the compiler.

Triton decides when it is imported whether its functions are interpreted.
"""

from __future__ import annotations

from importlib.util import find_spec

from octavo.env import interprets_kernels
from tests.backends.torch.conftest import one_thread as one_thread

_HAS_TRITON = find_spec("triton") is not None
_IS_INTERPRETED = interprets_kernels()
collect_ignore = [
    *([] if _HAS_TRITON and _IS_INTERPRETED else ["interpreted"]),
    *([] if _HAS_TRITON and not _IS_INTERPRETED else ["compiled"]),
]
