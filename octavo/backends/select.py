"""Chooses the backend, once, from static facts; the choice and each refusal can be printed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

Name = Literal["native", "torch"]

NATIVE_BLOCK_TOKENS = 16  # the native kernels take so many tokens of a block together


@dataclass(frozen=True, slots=True)
class Caps:
    """What a backend can do here, or why it cannot run at all."""

    name: Name
    refusal: str | None  # None: it runs


@dataclass(frozen=True, slots=True)
class Choice:
    """Which backend runs, and why."""

    name: Name
    reason: str


class NoBackendError(ValueError):
    """Nothing can run here as asked."""


def native_caps(block_size: int) -> Caps:
    """Whether the native engine can run."""
    try:
        import_module("octavo.backends.native._native")
    except ImportError as error:
        return Caps(
            "native",
            f"its extension module is not there ({error}): it is built when Octavo is installed "
            "with a C++ compiler at hand, and comes with the wheels",
        )
    if block_size % NATIVE_BLOCK_TOKENS:
        return Caps("native", f"block_size={block_size} is not a multiple of {NATIVE_BLOCK_TOKENS}")
    return Caps("native", None)


def torch_caps() -> Caps:
    """Whether the reference backend can run; torch is looked for, not imported."""
    if find_spec("torch") is None:
        return Caps("torch", "PyTorch is not installed: pip install octavo[torch]")
    return Caps("torch", None)


def select(asked: Literal["auto", "native", "torch"], *, block_size: int = 16) -> Choice:
    """The one that was asked for; else the native engine, else the reference."""
    every = (native_caps(block_size), torch_caps())
    if asked != "auto":
        (caps,) = (caps for caps in every if caps.name == asked)
        if caps.refusal is not None:
            raise NoBackendError(f"backend={asked!r} cannot run: {caps.refusal}")
        return Choice(caps.name, "asked for")
    native, torch = every
    if native.refusal is None:
        return Choice("native", "the native engine runs here")
    if torch.refusal is None:
        return Choice("torch", f"the native engine does not run: {native.refusal}")
    raise NoBackendError(f"no backend can run: native: {native.refusal}; torch: {torch.refusal}")
