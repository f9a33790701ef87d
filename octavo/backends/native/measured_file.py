"""The file that keeps what was measured on this machine: one line of JSON for each result.

Lines are appended in one write, so that an engine which may open no files any more can still add
one, and several may write at once. A line counts for one processor, microcode and build; the last
of its kind is valid, and one that cannot be read is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo.backends.native import _native
from octavo.backends.native.kernel_choice import ROWS, Choice, Trial, has_order
from octavo.observe.machine import ROOT, microcode, processor

_MOST_BYTES = 1 << 20  # of a file that is read


def machine_key(root: Path = ROOT, module: str | None = None) -> str:
    """Return what results depend on, in short: the processor, its microcode, and the build."""
    path = module or _native.__file__
    built = os.stat(path) if path else None
    build = (built.st_size, built.st_mtime_ns) if built else ()
    text = repr((processor(root), microcode(root), build))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MeasuredFile:
    """The results of this machine, read once; new ones are appended."""

    def __init__(self, path: Path, key: str, *, is_kept: bool = True) -> None:
        self._key = key
        self.order: str | None = None
        self.order_seconds: dict[str, float] = {}  # that decided the order, by tier and rows
        self._products: dict[tuple[str, str], list[Choice]] = {}
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # without a place to keep them, they are measured again
            self._descriptor = _open(path, is_kept=is_kept)
            self._close = weakref.finalize(self, os.close, self._descriptor)
            first = max(0, os.fstat(self._descriptor).st_size - _MOST_BYTES)
            self._read(os.pread(self._descriptor, _MOST_BYTES, first))

    def close(self) -> None:
        """Close the file; results are then kept no more."""
        if self._descriptor is not None:
            self._descriptor = None
            self._close()

    def products(self, base: str, order_of: Mapping[str, str]) -> dict[str, list[Choice]]:
        """Return the choices of each format that were measured with this tier as the default.

        Choices that no measurement makes are left out: of a tier that is not here, or that adds
        bf16 products up in another order.
        """

        def is_possible(format_: str, choice: Choice) -> bool:
            order = order_of.get(choice.tier)
            return order is not None and (not has_order(format_) or order == order_of.get(base))

        return {
            format_: choices
            for (tier, format_), choices in self._products.items()
            if tier == base and all(is_possible(format_, choice) for choice in choices)
        }

    def all_products(self) -> dict[tuple[str, str], list[Choice]]:
        """Return all choices, by the tier that is the default and the format."""
        return dict(self._products)

    def describe(self) -> list[str]:
        """Return a line for the order of sums and one for each format, with the times."""
        lines = []
        if self.order is not None:
            times = ", ".join(
                f"{name} rows {in_us(time)}" for name, time in self.order_seconds.items()
            )
            lines.append(f"bf16 sums in the order {self.order}: a warm panel takes {times}")
        for (base, format_), choices in sorted(self._products.items()):
            lines.append(f"{format_} beside {base}: {describe_choices(base, choices)}")
        return lines

    def note_order(self, order: str, seconds: Mapping[Trial, float]) -> None:
        """Keep the order of sums, with the times that decided it."""
        self.order = order
        self.order_seconds = {f"{trial.tier} {trial.rows}": seconds[trial] for trial in seconds}
        self._append({"order": order, "seconds": self.order_seconds})

    def note_products(self, base: str, format_: str, choices: list[Choice]) -> None:
        """Keep the choices of one format."""
        self._products[base, format_] = choices
        self._append({"base": base, "format": format_, "choices": choices})

    def _append(self, result: dict[str, Any]) -> None:
        if self._descriptor is not None:
            line = json.dumps({"key": self._key, **result}) + "\n"
            with contextlib.suppress(OSError):  # a full disk: measured again at the next start
                os.write(self._descriptor, line.encode())

    def _read(self, data: bytes) -> None:
        for line in data.splitlines():
            with contextlib.suppress(
                ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError
            ):
                result = json.loads(line)
                if result["key"] != self._key:
                    continue
                if "order" in result:
                    times = {str(name): float(time) for name, time in result["seconds"].items()}
                    self.order, self.order_seconds = str(result["order"]), times
                else:
                    choices = [_choice(*each) for each in result["choices"]]
                    self._products[str(result["base"]), str(result["format"])] = choices


def _open(path: Path, *, is_kept: bool) -> int:
    """Open the file to append to it, or to read it where it may only be read."""
    if is_kept:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o600)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def describe_choices(base: str, choices: Iterable[Choice]) -> str:
    """Describe what computes each class of rows, and how long a cold panel takes."""
    ends = (*map(str, _native.ROW_CLASS_ENDS), "more")
    parts = []
    for choice in choices:
        what = "default"
        if (choice.tier, choice.ahead) != (base, _native.DEFAULT_AHEAD):
            what = f"{choice.ahead:,} bytes ahead" if choice.tier == base else choice.tier
            what = f"{what}, {in_us(choice.default_seconds)} by default"
        parts.append(f"to {ends[choice.row_class]} rows {in_us(choice.seconds)} ({what})")
    return "; ".join(parts)


def in_us(seconds: float) -> str:
    """Write a measured time; it is infinite for a trial that no time was left for."""
    return f"{1e6 * seconds:.1f} µs" if math.isfinite(seconds) else "not measured"


def _choice(row_class: Any, tier: Any, ahead: Any, default: Any, seconds: Any) -> Choice:
    """Return a choice from a line's values; raise ValueError for what no measurement gives."""
    is_distance = isinstance(ahead, int) and 0 <= ahead <= 1 << 20
    if not (isinstance(row_class, int) and 0 <= row_class < len(ROWS) and is_distance):
        raise ValueError(f"no choice: {row_class!r}, {ahead!r}")
    return Choice(row_class, str(tier), ahead, float(default), float(seconds))
