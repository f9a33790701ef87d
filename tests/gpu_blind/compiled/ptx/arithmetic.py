"""The instructions that compute one value of each thread from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.gpu_blind.compiled.ptx.parse import Instruction, UnknownError
from tests.gpu_blind.compiled.ptx.values import SHORT, TYPES, Mask, Registers, Values

_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
_WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def compute(i: Instruction, registers: Registers, where: Mask) -> None:
    """Compute an instruction, and write what it gives in some threads."""
    head = i.parts[0]
    if head == "setp":
        results = [_compared(i, part) for part in operand_parts(i, registers)]
        for name, result in zip(i.operands[0].split("|"), results, strict=True):
            registers.put(name, result, where)
        return
    if head in _PLAIN or (head == "mul" and i.type.removesuffix("x2") in SHORT):
        operation = _PLAIN.get(head, np.multiply)
        results = [operation(*part) for part in operand_parts(i, registers)]
        registers.put(i.operands[0], joined(i.type, results), where)
        return
    if head not in _SPECIAL:
        raise UnknownError(i.text)
    registers.put(i.operands[0], _SPECIAL[head](i, registers), where)


def operand_parts(i: Instruction, registers: Registers) -> list[list[Values]]:
    """Return the operands as numbers: once, or for each half where a register has two."""
    operands = i.operands[1:]
    if i.type in ("bf16", "f16"):
        return [[SHORT[i.type].wide(registers.value(each, "b16")) for each in operands]]
    if i.type in ("bf16x2", "f16x2"):
        wide, both = SHORT[i.type[:-2]].wide, [registers.value(each, "b32") for each in operands]
        return [
            [wide((each & 0xFFFF).astype(np.uint16)) for each in both],
            [wide((each >> 16).astype(np.uint16)) for each in both],
        ]
    return [[registers.value(each, i.type) for each in operands]]


def joined(kind: str, results: list[Values]) -> Values:
    """Return results as the bits of a register of a type."""
    if kind in ("bf16", "f16"):
        return SHORT[kind].bits(results[0])
    if kind in ("bf16x2", "f16x2"):
        low, high = (SHORT[kind[:-2]].bits(each).astype(np.uint32) for each in results)
        return low | (high << 16)
    return results[0]


def _fused(a: Values, b: Values, c: Values) -> Values:
    """Return a · b + c, rounded once (float64: through the longest type there is)."""
    wide: Any = np.float64 if a.dtype == np.float32 else np.longdouble
    result: Values = (a.astype(wide) * b.astype(wide) + c).astype(a.dtype)
    return result


def _quotient(a: Values, b: Values) -> Values:
    """Return a / b; integers are cut towards zero, and nothing depends on those by zero."""
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient: Values = (np.abs(a) // np.abs(safe)) * np.sign(a) * np.sign(safe)
    return quotient.astype(a.dtype)


def _rest(a: Values, b: Values) -> Values:
    rest: Values = a - _quotient(a, b) * b
    return rest


def _larger(a: Values, b: Values) -> Values:
    return np.fmax(a, b) if a.dtype.kind == "f" else np.maximum(a, b)


def _smaller(a: Values, b: Values) -> Values:
    return np.fmin(a, b) if a.dtype.kind == "f" else np.minimum(a, b)


_PLAIN: dict[str, Callable[..., Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "div": _quotient,
    "rem": _rest,
    "max": _larger,
    "min": _smaller,
    "fma": _fused,
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "not": np.invert,
}


def _product(i: Instruction, registers: Registers) -> Values:
    kind = _WIDER[i.type] if "wide" in i.parts else i.type
    a, b = (registers.value(each, i.type).astype(TYPES[kind]) for each in i.operands[1:3])
    if "hi" in i.parts:
        wide = TYPES[_WIDER[i.type]]
        product: Values = (a.astype(wide) * b.astype(wide)) >> (8 * a.dtype.itemsize)
        return product.astype(a.dtype)
    return a * b


def _sum_of_product(i: Instruction, registers: Registers) -> Values:
    kind = _WIDER[i.type] if "wide" in i.parts else i.type
    return _product(i, registers) + registers.value(i.operands[3], kind)


def _converted(i: Instruction, registers: Registers) -> Values:
    target, source = i.parts[-2:]
    values = i.operands[1:]
    if source == "e4m3x2":  # two bytes become two halves
        both = registers.value(values[0], "b16")
        halves = [_E4M3[each & 0xFF] for each in (both, both >> 8)]
        return joined(target, halves)
    if target in ("bf16x2", "f16x2"):  # the first operand becomes the high half
        high, low = (registers.value(each, source) for each in values)
        return joined(target, [low, high])
    if target in SHORT and source in SHORT:
        return SHORT[target].bits(SHORT[source].wide(registers.value(values[0], "b16")))
    if target in SHORT:
        return SHORT[target].bits(registers.value(values[0], source))
    if source in SHORT:
        return SHORT[source].wide(registers.get(values[0])).astype(TYPES[target])
    given = registers.value(values[0], source)
    wanted = np.dtype(TYPES[target])
    if given.dtype.kind != "f" or wanted.kind == "f":
        return given.astype(wanted)
    rounded = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}[i.parts[1]](given)
    limits = np.iinfo(wanted)  # cards saturate, and turn NaN into zero
    whole = np.clip(np.nan_to_num(rounded), float(limits.min), float(limits.max))
    result: Values = whole.astype(wanted)
    return result


def _compared(i: Instruction, operands: list[Values]) -> Values:
    (a, b), name = operands, i.parts[1]
    if name in ("nan", "num"):  # whether one of them is none, or both are numbers
        either: Values = np.isnan(a) | np.isnan(b)
        return either if name == "nan" else ~either
    compare = {
        "lt": np.less,
        "gt": np.greater,
        "le": np.less_equal,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "lo": np.less,
        "hi": np.greater,
        "ls": np.less_equal,
        "hs": np.greater_equal,
    }[name[:2]]
    result: Values = compare(a, b)
    if a.dtype.kind == "f":
        is_nan = np.isnan(a) | np.isnan(b)
        # Comparisons with NaN are false, but for those whose names end with "u".
        result = result | is_nan if len(name) == 3 and name[2] == "u" else result & ~is_nan
    return result


def _selected(i: Instruction, registers: Registers) -> Values:
    first, second = (registers.value(each, i.type) for each in i.operands[1:3])
    return np.where(registers.get(i.operands[3]), first, second)


def _shifted(i: Instruction, registers: Registers) -> Values:
    values = registers.value(i.operands[1], i.type)
    by = registers.value(i.operands[2], "u32")
    bits = 8 * values.dtype.itemsize
    some = np.minimum(by, bits - 1).astype(values.dtype)
    if i.parts[0] == "shl":
        return np.where(by >= bits, 0, values << some).astype(values.dtype)
    beyond = values >> (bits - 1) if values.dtype.kind == "i" else np.zeros_like(values)
    return np.where(by >= bits, beyond, values >> some).astype(values.dtype)


def _extracted(i: Instruction, registers: Registers) -> Values:
    """Return some bits of a number, with their sign if the type has one."""
    values = registers.value(i.operands[1], i.type).astype(np.int64)
    first, count = int(i.operands[2]), int(i.operands[3])
    bits = (values >> first) & ((1 << count) - 1)
    if i.type == "s32":
        bits = np.where((bits >> (count - 1)) & 1, bits - (1 << count), bits)
    return bits.astype(TYPES[i.type])


def _copied_sign(i: Instruction, registers: Registers) -> Values:
    sign, size = (registers.value(each, i.type) for each in i.operands[1:3])
    return np.copysign(size, sign)


def _tested(i: Instruction, registers: Registers) -> Values:
    values = registers.value(i.operands[1], i.type)
    tests = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan}
    result: Values = tests[i.parts[1]](values)
    return result


def _permuted(i: Instruction, registers: Registers) -> Values:
    """Return four bytes of two registers, each named by four bits."""
    low, high, chosen = (registers.value(each, "b32") for each in i.operands[1:4])
    both = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    result = np.zeros_like(low)
    for place in range(4):
        number = (chosen >> (4 * place)) & 15
        byte = (both >> (8 * (number & 7)).astype(np.uint64)) & np.uint64(0xFF)
        sign = np.where(byte & np.uint64(0x80), 0xFF, 0).astype(np.uint64)
        found = np.where(number & 8, sign, byte).astype(np.uint32)
        result |= found << (8 * place)
    return result


_SPECIAL: dict[str, Callable[[Instruction, Registers], Values]] = {
    "mul": _product,
    "mad": _sum_of_product,
    "cvt": _converted,
    "selp": _selected,
    "shl": _shifted,
    "shr": _shifted,
    "bfe": _extracted,
    "prmt": _permuted,
    "copysign": _copied_sign,
    "testp": _tested,
}
