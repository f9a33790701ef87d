"""What the compiled code computes is what the operations mean; its barriers are enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from octavo.backends.cuda.kernels import paged
from tests.gpu_blind.adapter_cases import Adapted, adapter_case, alone_and_among_others
from tests.gpu_blind.case import Case
from tests.gpu_blind.cases import (
    BF16,
    FP32,
    Attention,
    add_norm_case,
    attention_case,
    chunks_case,
    draw_case,
    edges_case,
    norm_case,
    same_row_twice,
)
from tests.gpu_blind.compiled.executed import executing
from tests.gpu_blind.compiled.ptx.memory import BoundsError, SharedRaceError
from tests.gpu_blind.expert_cases import Mixed, mixture_case, one_row_in_batches
from tests.gpu_blind.homes import Launched
from tests.gpu_blind.near import assert_near, error_of
from tests.gpu_blind.planted import OTHER_ORDER, planted
from tests.gpu_blind.rounded_cases import ALONE, all_cases, rounded_norm_case

CASES = all_cases()
SHAPES = [(4, 2, 32), (1, 1, 64), (8, 1, 64), (2, 1, 96), (2, 1, 256)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_code_for_ampere_computes_what_the_operation_means(case: Case) -> None:
    assert_near(case.compute(executing(80)), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_code_for_hopper_computes_what_the_operation_means(case: Case) -> None:
    assert_near(case.compute(executing(90)), case)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_a_program_computes_one_chunk_after_the_other(
    capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "_MOST_PROGRAMS", 1)
    case = chunks_case()
    assert_near(case.compute(executing(capability)), case)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_row_has_the_same_bits_alone_in_its_step_and_among_others(
    dtype: torch.dtype, shape: tuple[int, int, int], capability: int
) -> None:
    """Shapes divide a tile's sums among threads; one of them shows that chunks have an order."""
    chunks = 3 if shape == SHAPES[0] else 2
    one, other = same_row_twice(dtype, executing(capability), Attention(*shape), chunks)
    assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_what_an_adapter_adds_has_the_same_bits_at_every_place(
    dtype: torch.dtype, capability: int
) -> None:
    first, *others = alone_and_among_others(dtype, executing(capability))
    assert all(torch.equal(first, each) for each in others)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_what_experts_make_of_a_row_has_the_same_bits_at_every_place(
    dtype: torch.dtype, capability: int
) -> None:
    first, *others = one_row_in_batches(dtype, executing(capability))
    assert all(torch.equal(first, each) for each in others)


def _without_barrier(kernel: str, number: int, ptx: str) -> str:
    """Return code without one of its barriers."""
    places = [found.span() for found in re.finditer(r"bar\.sync[^;]*;", ptx)]
    begin, end = places[number]
    return ptx[:begin] + ptx[end:]


def _outcomes(case: Case, kernel: str, count: int) -> list[str]:
    """Take out each of a kernel's barriers in turn; return how that shows."""
    outcomes = []
    for number in range(count):

        def change(launched: Launched, ptx: str, number: int = number) -> str:
            if launched.kernel.__name__ != kernel:
                return ptx
            return _without_barrier(kernel, number, ptx)

        try:
            error = error_of(case.compute(executing(80, change)), case)
        except (SharedRaceError, BoundsError) as found:
            outcomes.append(type(found).__name__)
        else:
            outcomes.append("nothing" if error <= case.tolerance else "wrong")
    return outcomes


def _barriers(case: Case, kernel: str) -> int:
    """Return how many barriers a kernel's code has."""
    counts: list[int] = []

    def change(launched: Launched, ptx: str) -> str:
        if launched.kernel.__name__ == kernel:
            counts.append(len(re.findall(r"bar\.sync", ptx)))
        return ptx

    case.compute(executing(80, change))
    return counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        ("normalise", norm_case(BF16, "rms")),
        ("add_and_normalise", add_norm_case(BF16, "rms")),
        ("add_and_normalise", rounded_norm_case(BF16, "rms", adds=True)),
        ("merge_chunks", attention_case(BF16, "to codes", ALONE)),
        ("shrink_rows", adapter_case(BF16, "of parts")),
        ("expand_rows", adapter_case(BF16, "of parts")),
        ("sort_pairs", mixture_case(BF16, "of few rows", Mixed(experts=2, hidden=16, ffn=8))),
        ("gate_pairs", mixture_case(BF16, "of few rows", Mixed(experts=2, hidden=160))),
        ("weigh_pairs", mixture_case(BF16, "of few rows", Mixed(experts=2, ffn=160))),
        ("best_of_part", draw_case("plain")),
        ("edge_of_row", edges_case("plain", 500)),
        ("attend_chunks", attention_case(BF16, "decode", Attention(sequences=((200, 1),)))),
        ("attend_rows", attention_case(BF16, "prompt", Attention(sequences=((200, 9),)))),
    ],
    ids=[
        "norm",
        "sum",
        "sum to codes",
        "merge to codes",
        "shrink",
        "expand",
        "sort",
        "gates of experts",
        "outputs of experts",
        "draw",
        "edges",
        "decode",
        "prompt",
    ],
)
def test_a_missing_barrier_shows(kernel: str, case: Case) -> None:
    """Most barriers are needed; a few stand before anything is shared, or before another one."""
    outcomes = _outcomes(case, kernel, _barriers(case, kernel))
    needed = [each for each in outcomes if each != "nothing"]
    assert 3 * len(needed) >= 2 * len(outcomes) > 0, outcomes


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        attention_case(BF16, "decode", Attention(sequences=((200, 1),))),
        adapter_case(BF16, "of many inputs", Adapted(inputs=1120)),
        mixture_case(BF16, "of many inputs", Mixed(rows=3, experts=2, hidden=320)),
    ],
    ids=["decode", "adapters", "experts"],
)
def test_copies_that_are_not_waited_for_show(case: Case) -> None:
    try:
        error = error_of(case.compute(executing(80, waits=False)), case)
    except BoundsError:
        return
    assert not error <= case.tolerance


@pytest.mark.slow
def test_sums_in_another_order_show(tmp_path: Path) -> None:
    """A thread that has more numbers side by side, to write their codes at once, adds up others."""
    case = rounded_norm_case(FP32, "wide", 2048, has_floats=True)
    assert_near(case.compute(executing(90)), case)
    with planted(OTHER_ORDER, tmp_path):
        assert not error_of(case.compute(executing(90)), case) <= case.tolerance
