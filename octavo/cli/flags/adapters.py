"""The flags of other servers that name adapters: llama-server's and SGLang's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.options.named_adapters import (
    NamedAdapter,
    read_adapter_path,
    read_default_adapter,
    read_scale,
    read_scaled_adapter,
)

_SETTING = "lora_modules"


class _Scaled(argparse.Action):
    """A flag with a file and its scale, as two words or as one with a colon between them."""

    def __call__(self, parser: Any, found: Any, values: Any, option: str | None = None) -> None:
        if len(values) > 2:
            raise argparse.ArgumentError(self, "expected a FILE and a SCALE")
        try:
            adapter = read_scaled_adapter(values[0]) if len(values) == 1 else _scaled(*values)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(found, _SETTING, [*(getattr(found, _SETTING, None) or ()), adapter])


def _scaled(path: str, scale: str) -> NamedAdapter:
    return replace(read_default_adapter(path), scale=read_scale(scale))


def add_adapter_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags, hidden; each adds to the adapters that --lora-modules names."""
    hidden: dict[str, Any] = {
        "dest": _SETTING,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS,
    }
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    group.add_argument("--lora-paths", type=read_adapter_path, **several, **hidden)
    group.add_argument("--lora", type=read_default_adapter, action="append", **hidden)
    group.add_argument("--lora-scaled", nargs="+", action=_Scaled, **hidden)
    group.add_argument(
        "--lora-init-without-apply",
        action="store_true",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def applied(
    adapters: Sequence[NamedAdapter], arguments: argparse.Namespace
) -> tuple[NamedAdapter, ...]:
    """Return the adapters; with llama-server's flag for it, requests must name them."""
    if getattr(arguments, "lora_init_without_apply", False):
        return tuple([replace(each, is_default=False) for each in adapters])
    return tuple(adapters)
