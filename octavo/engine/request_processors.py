"""Makes the logits processors that `--logits-processors` names, before the model is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from octavo.core.config import ConfigError
from octavo.named_object import find_object
from octavo.runner.request_processors import RequestProcessor


def make_processors(names: Sequence[str]) -> dict[str, RequestProcessor]:
    """Return an object of each class, by its name; raise ConfigError that says what is wrong."""
    return {name: _make(name) for name in names}


def _make(name: str) -> RequestProcessor:
    try:
        found = find_object(name, "module:Class")
    except ValueError as error:
        raise _wrong(name, str(error)) from error
    if not inspect.isclass(found):
        raise _wrong(name, f"it is a {type(found).__name__}, not a class")
    for method in ("validate", "make"):
        if not callable(getattr(found, method, None)):
            raise _wrong(
                name,
                f"the class has no {method}(arguments); docs/operations.md describes the two "
                "methods, which are not those of vLLM's processors",
            )
    try:
        made: Any = found()
    except Exception as error:
        raise _wrong(name, f"its call failed with {type(error).__name__}: {error}") from error
    processor: RequestProcessor = made
    try:
        processor.validate({})
    except Exception as error:
        raise _wrong(
            name,
            f"validate({{}}) failed with {type(error).__name__}: {error}; it must accept requests "
            "without arguments, such as the server's own check of its engine",
        ) from error
    return processor


def _wrong(name: str, why: str) -> ConfigError:
    return ConfigError(f"logits_processors={name!r} cannot be used: {why}")
