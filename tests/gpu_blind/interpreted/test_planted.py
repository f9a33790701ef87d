"""Bugs that are planted into kernels are found by the leg that is there to find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from octavo.backends.cuda.kernels import paged
from tests.gpu_blind.cases import chunks_case
from tests.gpu_blind.homes import Home, interpret
from tests.gpu_blind.interpreted.sanitizer import BoundsError, RaceError
from tests.gpu_blind.near import error_of
from tests.gpu_blind.planted import ALONE, BOUNDS, RACES, WRONG, Bug, planted
from tests.gpu_blind.rounded_cases import all_cases

# Modules whose bugs show in the cases of other kernels.
_OTHERS = {
    "adapter_slots": ("adapters",),
    "place": ("attention",),
    "paged": ("attention to codes",),
    "eight_bits": ("rounding",),
    "rounding": ("rounding", "norm to codes", "gate to codes"),
}

_CASES = all_cases()  # what they expect is torch's, and has no bugs


def _names(bugs: list[Bug]) -> list[str]:
    return [bug.name for bug in bugs]


def _cause_of(found: BaseException) -> BaseException | None:
    """Return what went wrong in a function of a kernel, or in one that it calls."""
    cause = found.__cause__
    return _cause_of(cause) if isinstance(cause, InterpreterError) else cause


def _first_finding(bug: Bug, directory: Path) -> BaseException | str | None:
    """Return how the first case that notices a bug does so; those of its name come first."""
    kernel = bug.module.__name__.rpartition(".")[2]
    kernels = _OTHERS.get(kernel, (kernel,))
    cases = [case for case in _CASES if case.name.startswith(kernels)]
    cases.sort(key=lambda case: not bug.shows_in or bug.shows_in not in case.name)
    with planted(bug, directory):
        for case in cases:
            try:
                error = error_of(case.compute(Home(interpret)), case)
            except InterpreterError as found:
                return _cause_of(found)
            if not error <= case.tolerance:
                return f"wrong in {case.name}"
    return None


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("bug", WRONG, ids=_names(WRONG))
def test_the_comparison_finds_wrong_numbers(bug: Bug, tmp_path: Path) -> None:
    assert isinstance(_first_finding(bug, tmp_path), str)


@pytest.mark.slow
def test_the_comparison_finds_chunks_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "_MOST_PROGRAMS", 1)
    case = chunks_case()
    with planted(ALONE, tmp_path):
        try:
            error = error_of(case.compute(Home(interpret)), case)
        except InterpreterError:
            return  # numbers that were never written may overflow
        assert not error <= case.tolerance


@pytest.mark.slow
@pytest.mark.parametrize("bug", RACES, ids=_names(RACES))
def test_the_watch_finds_races(bug: Bug, tmp_path: Path) -> None:
    assert isinstance(_first_finding(bug, tmp_path), RaceError)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BOUNDS, ids=_names(BOUNDS))
def test_the_watch_finds_accesses_outside_of_the_arguments(bug: Bug, tmp_path: Path) -> None:
    assert isinstance(_first_finding(bug, tmp_path), BoundsError)


@triton.jit
def _running_sum(x: Any, out: Any) -> None:
    """Add what the program before has written, as only programs one after the other can."""
    place = tl.program_id(0)
    before = tl.load(out + place - 1, mask=place > 0, other=0.0)
    tl.store(out + place, before + tl.load(x + place))


def test_programs_that_wait_for_each_other_are_a_race() -> None:
    """The sums are right without the watch, since the interpreter runs programs in order."""
    with pytest.raises(InterpreterError) as raised:
        _running_sum[(4,)](torch.ones(4), torch.zeros(4))
    assert isinstance(raised.value.__cause__, RaceError)


@triton.jit
def _number_and_byte(out: Any) -> None:
    """Write a number by one program, and one of its bytes by another."""
    if tl.program_id(0) == 0:
        tl.store(out + 1, 7)
    else:
        tl.store(out.to(tl.pointer_type(tl.uint8), bitcast=True) + 6, tl.cast(3, tl.uint8))


def test_a_number_and_one_of_its_bytes_are_the_same_memory() -> None:
    with pytest.raises(InterpreterError) as raised:
        _number_and_byte[(2,)](torch.zeros(4, dtype=torch.int32))
    assert isinstance(raised.value.__cause__, RaceError)


@triton.jit
def _each_type(x: Any, y: Any, out: Any, block: tl.constexpr) -> None:
    """Add, multiply and compare in the type of the arguments."""
    at = tl.arange(0, block)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.where(a < b, a + b, a * b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_repaired_interpreter_rounds_as_torch_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 512, generator=generator).mul(10).to(dtype)
    out = torch.empty_like(x)
    _each_type[(1,)](x, y, out, block=512)
    torch.testing.assert_close(out, torch.where(x < y, x + y, x * y), rtol=0, atol=0)


@triton.jit
def _narrowed(x: Any, out: Any, block: tl.constexpr) -> None:
    at = tl.arange(0, block)
    tl.store(out + at, tl.load(x + at).to(tl.float8e4nv).to(tl.float32))


def test_eight_bits_are_rounded_and_keep_to_their_range() -> None:
    x = torch.cat((torch.linspace(-440, 440, 254), torch.tensor([1e4, -1e9])))
    out = torch.empty_like(x)
    _narrowed[(1,)](x, out, block=256)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
