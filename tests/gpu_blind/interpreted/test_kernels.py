"""What the kernels compute in the interpreter is what the operations mean."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.cuda.kernels import paged
from tests.gpu_blind.case import Case
from tests.gpu_blind.cases import (
    BF16,
    FP32,
    Attention,
    chunks_case,
    same_row_twice,
)
from tests.gpu_blind.homes import Home, interpret
from tests.gpu_blind.near import assert_near
from tests.gpu_blind.rounded_cases import all_cases

CASES = all_cases()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_computes_what_its_operation_means(case: Case) -> None:
    assert_near(case.compute(Home(interpret)), case)


SHORT = [case for case in CASES if "eight bits" in case.name]


@pytest.mark.slow
@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_cards_without_eight_bit_floats_read_them_by_their_bits(case: Case) -> None:
    assert_near(case.compute(Home(interpret, multiplies_eight_bits=False)), case)


@pytest.mark.slow
def test_a_program_computes_one_chunk_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of a graph are as many for any number of chunks."""
    monkeypatch.setattr(paged, "_MOST_PROGRAMS", 1)
    case = chunks_case()
    assert_near(case.compute(Home(interpret)), case)


@pytest.mark.slow
@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_row_has_the_same_bits_alone_in_its_step_and_among_others(
    dtype: torch.dtype, is_short: bool
) -> None:
    one, other = same_row_twice(dtype, Home(interpret), Attention(is_short=is_short))
    assert torch.equal(one, other)
