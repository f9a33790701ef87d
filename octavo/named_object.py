"""Finds what an operator names as `module:object`: trusted code, which no request can name."""

from __future__ import annotations

import importlib
from typing import Any


def find_object(name: str, form: str) -> Any:
    """Import the module and return the object; raise ValueError that says what is wrong.

    `form` is how the name should be written. A dot separates module and object where there is no
    colon, as in vLLM.
    """
    module_name, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    if not (module_name and path):
        raise ValueError(f"write it as {form}")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module's code runs, and may fail in any way
        raise ValueError(
            f"the module {module_name!r} cannot be imported ({type(error).__name__}: {error}); is "
            "its directory in PYTHONPATH?"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise ValueError(f"the module {module_name!r} has no {path!r}")
    return found
