"""Compares a kernel's result with its meaning."""

from __future__ import annotations

from torch import Tensor

from tests.gpu_blind.case import Case
from tests.gpu_blind.homes import Home
from tests.gpu_blind.rounded_cases import all_cases


def error_of(found: Tensor, case: Case) -> float:
    """Return the largest difference, as a part of the largest number expected; NaN if one is."""
    expected = case.expected.double()
    return float((found.double() - expected).abs().max() / expected.abs().max())


def assert_near(found: Tensor, case: Case) -> None:
    """Refuse a result that is further from its meaning than rounding takes it."""
    assert found.dtype == case.expected.dtype
    assert found.shape == case.expected.shape
    assert error_of(found, case) <= case.tolerance


def wrong_cases(home: Home) -> dict[str, float]:
    """Return the error of each small case that is too far from its meaning."""
    errors = {case.name: (error_of(case.compute(home), case), case) for case in all_cases()}
    return {name: error for name, (error, case) in errors.items() if not error <= case.tolerance}
