"""Matrices that are packed only if their stage computes with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from octavo.backends.native.packing import Experts, Matrix, Packer
from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Module
from octavo.program.listing import Instruction, Listing


class Unpacked(Struct, eq=False):
    """A matrix as it is recorded: its sizes, and the stored rows from which it is packed."""

    parts: tuple[StoredRows, ...]  # none, once the stage has packed what it needs
    module: Module
    outputs: int
    inputs: int
    num_bytes: int  # as it is stored
    formats: str  # in which it is stored

    @property
    def gated(self) -> bool:
        return isinstance(self.module, GateUpLinear)

    @property
    def kind(self) -> str:
        """Stored types, since no product reads it before it is packed."""
        return self.formats


class UnpackedExperts(Struct, frozen=True, eq=False):
    """A matrix for each expert, or for each head, as they are recorded."""

    matrices: tuple[Unpacked, ...]
    module: Module

    @property
    def inputs(self) -> int:
        return self.matrices[0].inputs

    @property
    def num_bytes(self) -> int:
        return sum(matrix.num_bytes for matrix in self.matrices)

    @property
    def kind(self) -> str:
        return self.matrices[0].kind


def unpacked(parts: Sequence[StoredRows], module: Module) -> Unpacked:
    """Keep a matrix as it is stored."""
    return Unpacked(
        tuple(parts),
        module,
        outputs=sum(map(len, parts)),
        inputs=parts[0].inputs,
        num_bytes=sum(part.num_bytes for part in parts),
        formats="+".join(dict.fromkeys(part.type for part in parts)),
    )


def unpacked_experts(matrices: Sequence[Sequence[StoredRows]], module: Module) -> UnpackedExperts:
    """Keep the matrices of experts as they are stored."""
    return UnpackedExperts(tuple(unpacked(parts, module) for parts in matrices), module)


def sizes_of(instruction: Instruction) -> Iterable[tuple[object, int]]:
    """Yield the matrices that an instruction reads, with their bytes."""
    for each in (instruction.matrix, instruction.experts):
        if isinstance(each, Unpacked | UnpackedExperts):
            yield each, each.num_bytes


def pack_all(listing: Listing, packer: Packer) -> None:
    """Pack what the instructions of a listing read, each matrix once."""
    matrices: dict[int, Matrix] = {}
    experts: dict[int, Experts] = {}
    for instruction in listing:
        matrix, several = instruction.matrix, instruction.experts
        if isinstance(matrix, Unpacked):
            if id(matrix) not in matrices:
                matrices[id(matrix)] = packer.matrix(matrix.parts, matrix.module)
            instruction.matrix = matrices[id(matrix)]
        if isinstance(several, UnpackedExperts):
            if id(several) not in experts:
                parts = [each.parts for each in several.matrices]
                experts[id(several)] = packer.experts(parts, several.module)
            instruction.experts = experts[id(several)]
