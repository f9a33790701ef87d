"""The adapters that an operator names: each a name, a path, and how it is used."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_NAME_CHARACTERS = 512  # of a model or an adapter
# vLLM's keys and SGLang's; the pinned ones of SGLang are those used last here too.
_NAMES, _PATHS, _BASE = ("name", "lora_name"), ("path", "lora_path"), "base_model_name"
_IGNORED = ("pinned", "is_3d_lora_weight")
MAX_SCALE = 1e4


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter as an operator names it."""

    name: str
    path: str  # of a directory or a GGUF file
    base_model_name: str | None = None  # shown as its parent, in place of the model's name
    scale: float = 1.0
    is_default: bool = False  # requests that name the model itself have it too, as in llama.cpp


def read_adapter(text: str) -> NamedAdapter:
    """Read `name=path`, or a JSON object as vLLM and SGLang write it."""
    if text.lstrip().startswith("{"):
        return _of_json(text)
    name, equals, path = text.partition("=")
    if not (equals and name and path):
        raise argparse.ArgumentTypeError(
            f"{text[:200]!r} must be NAME=PATH, as in sql=/adapters/sql, or a JSON object with the "
            "keys name and path"
        )
    return named_adapter(name, path)


def read_adapter_path(text: str) -> NamedAdapter:
    """Read what SGLang takes: as above, or a path alone, which is its own name."""
    is_path = "=" not in text and not text.lstrip().startswith("{")
    return named_adapter(text, text) if is_path else read_adapter(text)


def read_default_adapter(text: str) -> NamedAdapter:
    """Read what llama.cpp takes: a file, whose name without its ending is the adapter's."""
    return _default(text, 1.0)


def read_scaled_adapter(text: str) -> NamedAdapter:
    """Read what newer versions of llama.cpp take: a file, a colon and a scale."""
    path, colon, scale = text.rpartition(":")
    if not (colon and path):
        raise argparse.ArgumentTypeError(f"{text[:200]!r} must be FILE:SCALE, as in a.gguf:0.5")
    return _default(path, read_scale(scale))


def read_scale(given: Any) -> float:
    """Return a scale as a number; raise ArgumentTypeError for one that is none, or too large."""
    try:
        scale = float(given)
    except (TypeError, ValueError):
        scale = math.nan
    if not abs(scale) <= MAX_SCALE:
        raise argparse.ArgumentTypeError(
            f"the scale {str(given)[:50]!r} must be a number within ±{MAX_SCALE:g}"
        )
    return scale


def named_adapter(name: str, path: str, **parts: Any) -> NamedAdapter:
    """Return an adapter with a checked name."""
    if why := wrong_name(name):
        raise argparse.ArgumentTypeError(why)
    return NamedAdapter(name, path, **parts)


def wrong_name(name: str) -> str:
    """Say what is wrong with the name of an adapter; return an empty text if nothing is."""
    if 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and name == name.strip():
        return ""
    return (
        f"an adapter's name must have 1 to {MAX_NAME_CHARACTERS} printable characters, without "
        f"spaces at its ends, so that requests can contain it; {name[:64]!r} does not"
    )


def _default(path: str, scale: float) -> NamedAdapter:
    return named_adapter(Path(path).stem or path, path, scale=scale, is_default=True)


def _of_json(text: str) -> NamedAdapter:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text[:200]!r} is not valid JSON: {error}") from None
    known = (*_NAMES, *_PATHS, _BASE, *_IGNORED)
    for key in given:
        if key not in known:
            raise argparse.ArgumentTypeError(
                f"{text[:200]!r}: there is no key {str(key)[:50]!r}; the keys are name, path and "
                f"{_BASE}"
            )
    name, path = _first(given, _NAMES), _first(given, _PATHS)
    base = given.get(_BASE)
    if not (name and path) or not (base is None or isinstance(base, str)):
        raise argparse.ArgumentTypeError(
            f"{text[:200]!r} must have texts as name and path, and as {_BASE} if that is there"
        )
    return named_adapter(name, path, base_model_name=base)


def _first(given: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the text under the first of these keys that is there; an empty one if it is none."""
    value = next((given[key] for key in keys if key in given), "")
    return value if isinstance(value, str) else ""
