"""Reads the PTX of one kernel."""

from __future__ import annotations

import re
from typing import NamedTuple


class UnknownError(NotImplementedError):
    """An instruction that the executor does not have."""


class Instruction(NamedTuple):
    """One instruction, with the predicate that it depends on."""

    opcode: str
    parts: tuple[str, ...]  # of the opcode, which dots separate
    operands: tuple[str, ...]
    predicate: str  # empty: none
    is_negated: bool
    text: str

    type: str  # the last of the parts
    moves: bool  # a thread goes on elsewhere, waits for others, or ends


class Program(NamedTuple):
    """The instructions of a kernel, where its labels are, and its parameters."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: tuple[tuple[str, str], ...]  # type and name


_PARAMETER = re.compile(r"\.param \.(\w+)(?: \.ptr[^,\n]*?)? (\w+_param_\d+)")
_LABEL = re.compile(r"^(\$?[\w$]+):$")
_STATEMENT = re.compile(r"^(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_DECLARED = re.compile(r"^\.reg \.(\w+) (\w+)(?:<(\d+)>)?;$")
_MOVES = ("ret", "bar.sync", "barrier.sync")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


def parse(ptx: str) -> Program:
    """Read a module with one kernel."""
    body = re.sub(r"//.*", "", ptx[ptx.index("{", ptx.index(".reqntid")) :])
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    local: dict[str, str] = {}  # the registers of a scope, as those of the kernel are named
    for line in body.splitlines():
        stripped = line.strip()
        if stripped in ("{", "}"):
            local = {}
        elif (found := _DECLARED.match(stripped)) is not None:
            local |= _names(*found.groups())
        for name in local:
            stripped = re.sub(rf"(?<![%\w.]){name}(?!\w)", local[name], stripped)
        label = _LABEL.match(stripped)
        if label is not None:
            labels[label[1]] = len(instructions)
            continue
        instructions.extend(map(_instruction, _statements(stripped)))
    return Program(tuple(instructions), labels, tuple(_PARAMETER.findall(ptx)))


def _names(kind: str, name: str, count: str | None) -> dict[str, str]:
    """Return names from which the types of a scope's registers are seen."""
    size = int(re.sub(r"\D", "", kind))
    head = {16: "%rs", 64: "%rd"}.get(size, "%r")
    names = [name] if count is None else [f"{name}{number}" for number in range(int(count))]
    return {each: f"{head}_{each}" for each in names}


def _statements(line: str) -> list[str]:
    """Return the instructions of a line, which may be a scope with registers of its own."""
    if line.startswith("{ .reg"):
        line = line[1:].removesuffix("}")
    found = (each.strip() for each in line.split(";"))
    return [each for each in found if each and each[0] not in "{}."]


def _instruction(statement: str) -> Instruction:
    found = _STATEMENT.match(statement)
    if found is None:
        raise UnknownError(statement)
    opcode = found[3]
    return Instruction(
        opcode,
        tuple(opcode.split(".")),
        tuple(_OPERAND.findall(found[4])),
        found[2] or "",
        found[1] == "!",
        statement,
        opcode.rpartition(".")[2],
        opcode in _MOVES or opcode.startswith("bra"),
    )
