"""The choice of the backend: made once, from static facts, with a reason to print."""

from __future__ import annotations

from msgspec import Struct

from octavo.backends.kind import BackendKind, Caps, kind_of
from octavo.options import backends
from octavo.options.backends import Entry


class Choice(Struct, frozen=True):
    """The chosen backend and the reason for it."""

    entry: Entry
    kind: BackendKind
    reason: str
    is_fallback: bool = False  # one that should have computed on this device cannot


class NoBackendError(ValueError):
    """No backend can run here as asked."""


def select(asked: str = "auto", *, device: str = "auto", block_size: int | None = None) -> Choice:
    """Choose the backend that was asked for; for "auto" the first one that can run here.

    A device that is asked for leaves the backends that compute there. Some backends are chosen only
    if they, or their device, are named.
    """
    refused: list[tuple[Entry, Caps]] = []
    for entry in backends.BACKENDS:
        if asked not in ("auto", entry.name):
            continue
        if device != "auto" and not backends.computes_on(entry, device):
            continue
        if entry.only_asked and (asked, device) == ("auto", "auto"):
            continue
        kind = kind_of(entry, device)
        caps = kind.caps(block_size)
        if not caps.refusal:
            return _choose(entry, kind, asked, refused)
        if asked != "auto":
            raise NoBackendError(f"backend={asked!r} cannot run: {caps.why}")
        if caps.is_old:  # a slower backend in its place would hide what is wrong
            raise NoBackendError(f"the {entry.name} backend cannot run: {caps.why}")
        refused.append((entry, caps))
    where = "" if device == "auto" else f" on device={device!r}"
    raise NoBackendError(f"no backend can run{where}: {_reasons(refused)}")


def _choose(
    entry: Entry, kind: BackendKind, asked: str, refused: list[tuple[Entry, Caps]]
) -> Choice:
    """Return the choice of a backend before which these were refused."""
    if asked != "auto":
        return Choice(entry, kind, "asked for")
    if not refused:
        return Choice(entry, kind, "the first that runs here")
    is_fallback = any(other.device == entry.device for other, _ in refused)
    return Choice(entry, kind, f"others do not run: {_reasons(refused)}", is_fallback)


def _reasons(refused: list[tuple[Entry, Caps]]) -> str:
    return "; ".join(f"{entry.name}: {caps.why}" for entry, caps in refused)
