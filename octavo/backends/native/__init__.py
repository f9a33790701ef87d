"""The native CPU engine."""

from __future__ import annotations

from octavo.backends.interface import check_interface

try:
    from octavo.backends.native import _native
except ImportError:  # whatever needs the module says that it is missing
    pass
else:
    check_interface(getattr(_native, "INTERFACE", None), str(_native.__file__))
