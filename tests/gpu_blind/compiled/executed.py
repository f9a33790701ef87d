"""Homes whose launches are compiled for a card and executed by the CPU, or only looked at."""

from __future__ import annotations

from collections.abc import Callable

from tests.gpu_blind.compiled.compile import AmdFacts, Code, amd_facts_of, compile_for
from tests.gpu_blind.compiled.ptx.block import launch
from tests.gpu_blind.homes import Home, Launched

LEAST_FP8 = 89  # the capability of the first cards with eight-bit floats
Change = Callable[[Launched, str], str]


def executing(capability: int, change: Change | None = None, *, waits: bool = True) -> Home:
    """Return a home that executes the PTX of each launch, perhaps with a change of it."""

    def run(launched: Launched) -> None:
        code = compile_for(launched, capability)
        ptx = code.ptx if change is None else change(launched, code.ptx)
        launch(
            ptx,
            launched.grid,
            code.arguments,
            shared_bytes=code.shared_bytes,
            num_warps=code.num_warps,
            waits_for_copies=waits,
        )

    return _home(run, capability)


def collecting(capability: int, found: dict[str, Code], *only: str) -> Home:
    """Return a home that compiles each launch, or those of some kernels, and keeps it by name."""

    def run(launched: Launched) -> None:
        name = launched.kernel.__name__
        if not only or name in only:
            found[name] = compile_for(launched, capability)

    return _home(run, capability)


def looked_at_for_amd(target: str, found: dict[str, AmdFacts]) -> Home:
    """Return a home that compiles each launch for a card of AMD, and keeps the facts by name."""

    def run(launched: Launched) -> None:
        found[launched.kernel.__name__] = amd_facts_of(launched, target)

    return Home(run, multiplies_eight_bits=False)  # older ones have another form of them


def _home(run: Callable[[Launched], None], capability: int) -> Home:
    return Home(run, multiplies_eight_bits=capability >= LEAST_FP8)
