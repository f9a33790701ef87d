"""Compiles a launch for a card that is not here, as Triton's launcher would have it compiled."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.gpu_blind.homes import Launched

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.bool: "i1",
}
_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
_ALIGNMENT = 16  # bytes of an address, or the factor of a number, that the compiler may rely on


class Code(NamedTuple):
    """The code of a launch, and the arguments that it takes."""

    ptx: str
    cubin: bytes
    shared_bytes: int
    num_warps: int
    arguments: tuple[Any, ...]  # those that are not constants


class AmdFacts(NamedTuple):
    """Figures of the code for a card of AMD."""

    spilled_registers: int
    shared_bytes: int
    has_products: bool


class Facts(NamedTuple):
    """Figures of a binary, as NVIDIA's tools read them."""

    registers: int
    stack: int  # bytes, where registers are spilled to
    shared_bytes: int
    opcodes: Counter[str]  # of the instructions, with their parts up to the width


def compile_for(launched: Launched, capability: int) -> Code:
    """Compile a launch for cards of a compute capability, such as 90."""
    source, arguments = _source_of(launched)
    made = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options=_options_of(launched)
    )
    return Code(
        made.asm["ptx"],
        made.asm["cubin"],
        made.metadata.shared,
        made.metadata.num_warps,
        arguments,
    )


def amd_facts_of(launched: Launched, target: str) -> AmdFacts:
    """Compile a launch for an AMD card of a target, such as gfx942."""
    source, _ = _source_of(launched)
    made = triton.compile(
        source, target=GPUTarget("hip", target, 64), options=_options_of(launched)
    )
    text = made.asm["amdgcn"]
    spilled = re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", text)
    assert spilled, "the code does not say how many registers are spilled"
    return AmdFacts(sum(map(int, spilled)), made.metadata.shared, "v_mfma" in text)


def _options_of(launched: Launched) -> dict[str, Any]:
    return {k: launched.constants[k] for k in _OPTIONS if k in launched.constants}


def _source_of(launched: Launched) -> tuple[ASTSource, tuple[Any, ...]]:
    """Return what is compiled, and the arguments that are not constants of it."""
    names = launched.kernel.arg_names
    given = dict(zip(names, (*launched.tensors, *launched.numbers), strict=False))
    constants = {k: v for k, v in launched.constants.items() if k not in _OPTIONS}
    free = {names[i] for i in _unspecialised(launched.kernel)}
    signature: dict[str, str] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value = given[name]
        aligned = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if isinstance(value, float):
            signature[name] = "fp32"
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
        elif value == 1 and name not in free:
            signature[name], constants[name] = "constexpr", 1
            continue
        else:
            signature[name] = "i32"
        if aligned % _ALIGNMENT == 0 and name not in free:
            attributes[place,] = [["tt.divisibility", _ALIGNMENT]]
    source = ASTSource(
        fn=launched.kernel, signature=signature, constexprs=constants, attrs=attributes
    )
    return source, tuple(given[name] for name in names if signature[name] != "constexpr")


def _unspecialised(kernel: Any) -> set[int]:
    """Return the places of the arguments for whose values nothing is compiled anew."""
    return {each.num for each in kernel.params if each.do_not_specialize}


@cache
def facts_of(cubin: bytes) -> Facts:
    """Read a binary by the tools that Triton brings."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _output("cuobjdump", "--dump-resource-usage", file.name)
        listing = _output("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    assert found is not None, usage
    opcodes = re.findall(
        r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P[T\d]+ +)?([A-Z][A-Z0-9_.]*)", listing, re.MULTILINE
    )
    registers, stack, shared = map(int, found.groups())
    return Facts(registers, stack, shared, Counter(opcodes))


def _output(tool: str, *arguments: str) -> str:
    return subprocess.run(
        [_TOOLS / tool, *arguments], capture_output=True, text=True, check=True
    ).stdout
