"""What is claimed of the code for each card: no spills, enough memory, wide and early loads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from octavo.layers import Rope
from octavo.layers.rope import plain
from tests.gpu_blind.adapter_cases import Adapted, adapter_case
from tests.gpu_blind.case import Case
from tests.gpu_blind.cases import (
    BF16,
    FP32,
    Attention,
    add_norm_case,
    attention_case,
    changes_case,
    copies_case,
    draw_case,
    gate_case,
    norm_case,
    rounding_case,
)
from tests.gpu_blind.compiled.compile import AmdFacts, Code, facts_of
from tests.gpu_blind.compiled.executed import collecting, looked_at_for_amd
from tests.gpu_blind.expert_cases import Mixed, mixture_case
from tests.gpu_blind.planted import SLOW, Bug, planted
from tests.gpu_blind.rounded_cases import rounded_gate_case, rounded_norm_case

# Of a block on the cards of a compute capability, as NVIDIA's programming guide has it.
SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
AMD_SHARED_BYTES = 65_536  # of a work group on every card since CDNA
# Registers that are spilled on AMD's cards, at most. Attention keeps sets of sums.
AMD_SPILLS = {"attend_rows": 420, "attend_chunks": 30}
SHORT_AMD_SPILLS = {"attend_rows": 820, "attend_chunks": 15}
# Bytes that NVIDIA's assembler spills, at most: there it prefers two blocks at once.
SPILLS = {("attend_rows", 120): 64}
SHORT_SPILLS = {("attend_chunks", 90): 16, ("attend_chunks", 100): 8}
# Instructions that multiply tiles: of a warp, of four warps on Hopper, of a block on Blackwell.
PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA")
# The shape of a model of 8B: 32 heads, 8 of KV, of 128 numbers.
SHAPE = Attention(
    heads=32,
    kv_heads=8,
    dim=128,
    rope=Rope(plain(128, 5e5)),
    norm_offset=0.0,
    sequences=((600, 1), (40, 40)),
)


# A model of 30B with 128 experts has these widths; how many experts there are changes no code.
MIXED = Mixed(64, 8, 2, 2048, 768)
ADAPTED = Adapted(4096, (4096, 1024, 1024), ((16, 16, 16),), (0,) * 20, 16)


class Claim(NamedTuple):
    """Bounds of a kernel's code that hold on every card."""

    registers: int  # of a thread, at most
    has_products: bool = False  # by tensor cores
    loads_early: bool = False  # by copies that the threads do not wait for
    loads_wide: bool = True  # 16 bytes at a time
    loads_halves: bool = True  # some numbers one by one


CLAIMS = {
    "normalise": Claim(64),
    "add_and_normalise": Claim(64),
    "gate_rows": Claim(48),
    "copy_blocks": Claim(48),
    "best_of_part": Claim(96),
    "best_of_row": Claim(40, loads_wide=False),
    "edge_of_row": Claim(128),
    "change_numbers": Claim(40, loads_wide=False),
    "place_heads": Claim(48, loads_wide=False),
    "attend_rows": Claim(160, has_products=True, loads_early=True),
    "attend_chunks": Claim(168, has_products=True, loads_early=True),
    "merge_chunks": Claim(64),
    "round_rows": Claim(96),
    "shrink_rows": Claim(80, has_products=True, loads_early=True, loads_halves=False),
    "expand_rows": Claim(96, has_products=True, loads_halves=False),
    "sort_pairs": Claim(104, loads_wide=False),
    "gate_pairs": Claim(112, has_products=True, loads_early=True, loads_halves=False),
    "weigh_pairs": Claim(144, has_products=True, loads_early=True),
    "add_pairs": Claim(40),
}
# Of the same kernels where keys and values have eight bits.
SHORT_CLAIMS = {
    "place_heads": Claim(48, loads_wide=False),
    "attend_rows": Claim(200, has_products=True, loads_early=True),
    "attend_chunks": Claim(200, has_products=True, loads_early=True),
    "merge_chunks": CLAIMS["merge_chunks"],
}


# Of the kernels that leave rows as codes.
ROUNDED_CLAIMS = {
    "normalise": Claim(64),
    "add_and_normalise": Claim(64),
    "gate_rows": Claim(64),
    "merge_chunks": Claim(64),
}


def large_cases() -> list[Case]:
    """Return the sizes of a model of 8B, and of the experts of another one."""
    return [
        norm_case(BF16, "rms", width=4096),
        add_norm_case(BF16, "rms", width=4096),
        gate_case(BF16, "Silu", width=14336),
        draw_case("filtered", 128_256, filtered=True),
        changes_case("many", 4096, 128_256),
        copies_case("of blocks", 65_536),
        rounding_case(BF16, "of each row", 4096),
        attention_case(BF16, "full", SHAPE),
        adapter_case(BF16, "of queries, keys and values", ADAPTED),
        mixture_case(BF16, "of a model of 30B", MIXED),
    ]


@cache
def code_for(capability: int) -> dict[str, Code]:
    """Compile all kernels for a card; nothing is computed."""
    found: dict[str, Code] = {}
    for case in large_cases():
        case.compute(collecting(capability, found))
    return found


@cache
def short_code_for(capability: int) -> dict[str, Code]:
    """Compile attention for a card whose cache has eight bits of a number."""
    found: dict[str, Code] = {}
    shape = SHAPE._replace(is_short=True)
    attention_case(BF16, "of eight bits", shape).compute(collecting(capability, found))
    return found


def rounded_cases() -> list[Case]:
    """Return the sizes of a model of 8B whose products read codes, and a wide gate."""
    return [
        rounded_norm_case(BF16, "rms", 4096),
        rounded_norm_case(BF16, "rms", 4096, adds=True),
        attention_case(BF16, "alone", SHAPE._replace(rounds=True, sequences=((600, 1),))),
        rounded_gate_case(BF16, width=14336),
    ]


def broken(
    name: str,
    code: Code,
    capability: int,
    claims: Mapping[str, Claim] = CLAIMS,
    spills: Mapping[tuple[str, int], int] = SPILLS,
) -> list[str]:
    """Return what of a kernel's claim does not hold."""
    facts, claim = facts_of(code.cubin), claims[name]
    found = {each.split(".")[0] for each in facts.opcodes}
    is_wide = any(each.startswith(("LDG", "LDGSTS")) and "128" in each for each in facts.opcodes)
    said = {
        f"{facts.registers} registers": facts.registers > claim.registers,
        f"{facts.stack} bytes are spilled": facts.stack > spills.get((name, capability), 0),
        f"{code.shared_bytes} bytes of shared memory": code.shared_bytes > SHARED_BYTES[capability],
        "no product by tensor cores": claim.has_products and found.isdisjoint(PRODUCTS),
        "no load is early": claim.loads_early and "LDGSTS" not in found,
        "no load has 16 bytes": claim.loads_wide and not is_wide,
        "numbers are loaded one by one": not claim.loads_halves and "LDG.E.U16" in facts.opcodes,
    }
    return [what for what, is_broken in said.items() if is_broken]


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_claim_holds(capability: int) -> None:
    code = code_for(capability)
    assert set(code) == set(CLAIMS)
    found = {name: broken(name, code[name], capability) for name in CLAIMS}
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_claim_holds_for_eight_bits(capability: int) -> None:
    code = short_code_for(capability)
    found = {
        name: broken(name, code[name], capability, SHORT_CLAIMS, SHORT_SPILLS)
        for name in SHORT_CLAIMS
    }
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_claim_holds_where_rows_become_codes(capability: int) -> None:
    code: dict[str, Code] = {}
    for case in rounded_cases():
        case.compute(collecting(capability, code))
    found = {name: broken(name, code[name], capability, ROUNDED_CLAIMS) for name in ROUNDED_CLAIMS}
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize(("dtype", "dim"), [(BF16, 256), (BF16, 512), (FP32, 128), (FP32, 256)])
def test_wide_heads_fit_a_card(dtype: torch.dtype, dim: int, capability: int) -> None:
    """A launch that asks for more shared memory than there is fails."""
    shape = Attention(heads=8, kv_heads=4, dim=dim, sequences=((600, 1), (40, 40)))
    found: dict[str, Code] = {}
    home = collecting(capability, found, "attend_rows", "attend_chunks")  # the others keep no tiles
    attention_case(dtype, "wide", shape).compute(home)
    assert len(found) == 2
    assert max(code.shared_bytes for code in found.values()) <= SHARED_BYTES[capability]


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_the_highest_ranks_fit_a_card(dtype: torch.dtype, capability: int) -> None:
    shape = Adapted(4096, (1024,), ((256,),), (0,) * 20, 256)
    found: dict[str, Code] = {}
    adapter_case(dtype, "of high ranks", shape).compute(collecting(capability, found))
    for code in found.values():
        assert code.shared_bytes <= SHARED_BYTES[capability]
        assert facts_of(code.cubin).stack <= (0 if dtype == BF16 else 8)


@pytest.mark.slow
def test_experts_of_float32_fit_the_smallest_card() -> None:
    found: dict[str, Code] = {}
    mixture_case(FP32, "of a model of 30B", MIXED).compute(collecting(89, found))
    assert {"gate_pairs", "weigh_pairs"} <= found.keys()
    for code in found.values():
        assert code.shared_bytes <= SHARED_BYTES[89]
        assert facts_of(code.cubin).stack == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_the_code_for_amd_fits(target: str) -> None:
    found: dict[str, AmdFacts] = {}
    for case in large_cases():
        case.compute(looked_at_for_amd(target, found))
    for name, claim in CLAIMS.items():
        assert found[name].spilled_registers <= AMD_SPILLS.get(name, 0), name
        assert found[name].shared_bytes <= AMD_SHARED_BYTES, name
        assert found[name].has_products or not claim.has_products, name


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_the_code_for_amd_fits_where_rows_become_codes(target: str) -> None:
    found: dict[str, AmdFacts] = {}
    for case in rounded_cases():
        case.compute(looked_at_for_amd(target, found))
    for name in ROUNDED_CLAIMS:
        assert found[name].spilled_registers == 0, name
        assert found[name].shared_bytes <= AMD_SHARED_BYTES, name


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_the_code_for_amd_fits_with_eight_bits(target: str) -> None:
    found: dict[str, AmdFacts] = {}
    shape = SHAPE._replace(is_short=True)
    attention_case(BF16, "of eight bits", shape).compute(looked_at_for_amd(target, found))
    for name, claim in SHORT_CLAIMS.items():
        assert found[name].spilled_registers <= SHORT_AMD_SPILLS.get(name, 0), name
        assert found[name].shared_bytes <= AMD_SHARED_BYTES, name
        assert found[name].has_products or not claim.has_products, name


@pytest.mark.slow
@pytest.mark.parametrize("bug", SLOW, ids=[bug.name for bug in SLOW])
def test_a_slow_kernel_breaks_a_claim(bug: Bug, tmp_path: Path) -> None:
    found: dict[str, Code] = {}
    with planted(bug, tmp_path):
        for case in large_cases():
            case.compute(collecting(80, found))
    assert any(broken(name, found[name], 80) for name in CLAIMS)
