"""The choice of the backend: made once, from static facts, with a reason to print."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from msgspec import Struct

from octavo.backends.interface import OldModuleError

Name = Literal["native", "torch"]


class Caps(Struct, frozen=True):
    """The ability of a backend to run here."""

    name: Name
    refusal: str | None  # why it cannot run; None if it can
    is_old: bool = False  # it was built from other sources, so it must be built again


class Choice(Struct, frozen=True):
    """The chosen backend and the reason for it."""

    name: Name
    reason: str


class NoBackendError(ValueError):
    """No backend can run here as asked."""


def native_caps(block_size: int | None = None) -> Caps:
    """Find out whether the native engine can run here, with blocks of this size if one is given."""
    try:
        block_tokens = import_module("octavo.backends.native._native").BLOCK_TOKENS
    except OldModuleError as error:
        return Caps("native", str(error), is_old=True)
    except ImportError as error:
        return Caps(
            "native",
            f"its extension module is missing ({error}): install Octavo from a wheel, or where a "
            "C++ compiler can build it",
        )
    if block_size is not None and block_size % block_tokens:
        return Caps("native", f"block_size={block_size} is not a multiple of {block_tokens}")
    return Caps("native", None)


def torch_caps() -> Caps:
    """Find out whether the reference backend can run here, without importing torch."""
    if find_spec("torch") is None:
        return Caps("torch", "PyTorch is not installed: pip install octavo[torch]")
    return Caps("torch", None)


def select(asked: Literal["auto", "native", "torch"], *, block_size: int = 16) -> Choice:
    """Choose the backend that was asked for; for "auto" the native engine, else the reference."""
    every = (native_caps(block_size), torch_caps())
    if asked != "auto":
        (caps,) = (caps for caps in every if caps.name == asked)
        if caps.refusal is not None:
            raise NoBackendError(f"backend={asked!r} cannot run: {caps.refusal}")
        return Choice(caps.name, "asked for")
    native, torch = every
    if native.refusal is None:
        return Choice("native", "the native engine runs here")
    if native.is_old:  # a slower backend in its place would hide what is wrong
        raise NoBackendError(f"the native engine cannot run: {native.refusal}")
    if torch.refusal is None:
        return Choice("torch", f"the native engine does not run: {native.refusal}")
    raise NoBackendError(f"no backend can run: native: {native.refusal}; torch: {torch.refusal}")
