"""Weights as the native engine keeps them: packed matrices, vectors, and how formats are chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from itertools import groupby
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.base import FLOAT_TYPES
from octavo.backends.native import _native
from octavo.backends.native.eight_bits import GROUP
from octavo.backends.native.panels import FreshPanels, Held, MatrixRows, Panels, can_pack
from octavo.backends.stored_rows import StoredRows
from octavo.layers import DownLinear, Embedding, GateUpLinear, Linear, Module, QKVLinear
from octavo.options.cpu_types import CpuActivations, CpuWeights

log = logging.getLogger(__name__)

# float32 and bfloat16 are those of `dtype`, for all weights and for those that are wider.
KeptWeights = Literal["float32", "bfloat16"] | CpuWeights

MakePanels = Callable[[_native.Store, _native.Team], Panels]

# Outputs of a panel; if gates and ups lie side by side, the first half are gates.
PANEL = _native.PANEL
_HALF = PANEL // 2
_WANTED = {
    "float32": "F32",
    "bfloat16": "BF16",
    "bf16": "BF16",
    "int8": "U8",
    "int8-64": "U8By64",
    "int8-128": "U8By128",
    "int8-wide": "U8Wide",
    "int4": "U4",
    "int4-64": "U4By64",
    "int4-128": "U4By128",
}
# Formats of the settings whose groups depend on the inputs, the largest first.
_CODED = {"fp8": ((128, "F8By128"), (32, "F8By32")), "nf4": ((64, "NF4By64"),)}
# FP8 takes as much memory as int8, whose prompts are faster; four bits take half.
_AS_SMALL = 1.1


class Vector(Struct, frozen=True):
    """A few floats: a norm's weights, a bias."""

    values: NDArray[np.float32]
    address: int


class InputOrder(Struct, frozen=True):
    """An order of a product's inputs; equal ones of a model are one object."""

    number: int
    inputs: NDArray[np.int32]  # of the row, in the order in which panels have them


class Piece(Struct, frozen=True):
    """A packed run of a matrix's outputs."""

    native: _native.Matrix
    first: int  # output
    order: InputOrder | None = None  # None: that of the rows

    @property
    def kind(self) -> str:
        """The kind of rows that its products read; matrices of one kind may share them."""
        format_ = self.native.format
        if _native.multiplies_bf16(format_):
            return "bf16"
        kinds = {"F32": "float", "F16": "float", "U8Wide": "int8 by 128"}
        kind = kinds.get(format_.name, "int8")
        return kind if self.order is None else f"{kind} in order {self.order.number}"


class Matrix(Struct, frozen=True):
    """A weight [outputs, inputs], in one piece or in several side by side."""

    pieces: tuple[Piece, ...]
    outputs: int
    inputs: int
    gated: bool = False  # gates and ups are side by side, sixteen of each

    @property
    def kind(self) -> str:
        return self.pieces[0].kind

    def by_kind(self) -> list[Matrix]:
        """Split the matrix into one for each run of pieces of one kind."""
        runs = groupby(self.pieces, lambda piece: piece.kind)
        return [replace(self, pieces=tuple(run)) for _, run in runs]

    @property
    def num_bytes(self) -> int:
        return sum(piece.native.num_bytes for piece in self.pieces)

    @property
    def formats(self) -> str:
        """The names of its formats, for people."""
        return "+".join(dict.fromkeys(piece.native.format.name for piece in self.pieces))


class Experts(Struct, frozen=True):
    """A matrix for each expert, all of one format.

    If they are whole, this rank has all of some experts, and matrices without data in place of the
    others'; if not, it has its share of each.
    """

    matrices: tuple[Matrix, ...]
    are_whole: bool = False
    redundant: int = 0  # that are in two ranks, of those of a mixture

    @property
    def kind(self) -> str:
        return self.matrices[0].kind

    @property
    def inputs(self) -> int:
        return self.matrices[0].inputs


class ExpertOwners(Struct, frozen=True):
    """The division of whole experts among ranks, as `csrc/experts/balance.h` has it."""

    rank: int
    ranks: int
    redundant: int = 0  # experts of each mixture that are in two ranks
    step_interval: int = 0  # steps between two choices of these

    def held(self, experts: int) -> list[Held]:
        """Return what this rank has of each expert."""
        first, end = (experts * each // self.ranks for each in (self.rank, self.rank + 1))
        return ["whole" if first <= each < end else "nothing" for each in range(experts)]


class Packer:
    """Packs stored rows, each matrix in the requested format or in the nearest one.

    Panels may be incomplete until `finish`: `begin` starts threads that make them. A rank packs
    its share of each matrix, unless matrices are to be whole, or experts have owners.
    """

    def __init__(
        self,
        team: _native.Team,
        weights: KeptWeights,
        make_panels: MakePanels = FreshPanels,
        activations: CpuActivations = "auto",
        *,
        is_whole: bool = False,
        owners: ExpertOwners | None = None,
    ) -> None:
        self._weights, self._activations, self._owners = weights, activations, owners
        self._store = _native.Store(team, is_whole)
        self._panels = make_panels(self._store, team)
        self._converted: set[str] = set()
        self._orders: dict[bytes, InputOrder] = {}

    @property
    def num_bytes(self) -> int:
        return int(self._store.num_bytes)

    def begin(self) -> None:
        """Start packing the queued matrices in threads, while the caller does other things."""
        self._panels.begin()

    def finish(self) -> None:
        """Return when everything is packed."""
        self._panels.finish()

    def with_floats_as(self, weights: KeptWeights) -> Packer:
        """Return a packer of the same store that makes another format of floats."""
        other = copy(self)
        other._weights = weights
        return other

    def parameter(self, values: NDArray[np.float32]) -> Vector:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        return Vector(flat, self._store.vector(flat))

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Matrix:
        """Pack one matrix that has the rows of all parts, in order."""
        # Rows of tables are looked up as they are.
        together = [parts] if isinstance(module, Linear) else _decoded([parts])
        return self._matrix(together[0], module)

    def _matrix(self, parts: Sequence[StoredRows], module: Module, held: Held = "share") -> Matrix:
        inputs = parts[0].inputs
        # Rows whose inputs have different orders are in pieces of their own.
        runs = [list(run) for _, run in groupby(parts, lambda part: (part.type, _digest(part)))]
        if isinstance(module, GateUpLinear) and len(runs) == 1:
            return self._gated(parts, inputs, held)
        pieces, first = [], 0
        for together in runs:
            format_, order = self._format(together[0], module)
            rows = MatrixRows(_fitting(together, format_), format_, inputs, held=held)
            native = self._panels.matrix(rows)
            pieces.append(Piece(native, first, order))
            first += sum(map(len, together))
        return Matrix(tuple(pieces), first, inputs)

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Experts:
        """Pack a matrix for each expert; gates and ups of one matrix are interleaved."""
        # All experts read the same prepared rows, whose inputs have one order.
        owners = self._owners if isinstance(module, GateUpLinear | DownLinear) else None
        held: list[Held] = ["share"] * len(matrices)
        if owners is not None:
            held = owners.held(len(matrices))
        made = tuple(
            self._matrix(parts, module, each)
            for parts, each in zip(_decoded(matrices), held, strict=True)
        )
        formats = {piece.native.format for matrix in made for piece in matrix.pieces}
        if len(formats) > 1 or any(len(matrix.pieces) > 1 for matrix in made):
            raise ValueError(
                "experts whose matrices are of several types cannot be run by the native engine; "
                "use backend='torch'"
            )
        if owners is None:
            return Experts(made)
        return Experts(made, True, owners.redundant)

    def _gated(self, parts: Sequence[StoredRows], inputs: int, held: Held) -> Matrix:
        ffn = len(parts[0])
        format_, order = self._format(parts[0], None)
        rows = MatrixRows(parts, format_, inputs, interleaved(ffn), held)
        native = self._panels.matrix(rows)
        return Matrix((Piece(native, 0, order),), 2 * ffn, inputs, gated=True)

    def _format(
        self, part: StoredRows, module: Module | None
    ) -> tuple[_native.Format, InputOrder | None]:
        """Choose the packed format of some rows, and the order that panels then have of inputs."""
        type_ = part.type
        format_ = choose_format(
            type_,
            part.inputs,
            self._weights,
            self._activations,
            is_embedding=isinstance(module, Embedding),
            is_qkv=isinstance(module, QKVLinear),
        )
        order = None
        if part.columns is not None and can_pack(type_, format_):
            order = self._order(part.columns)
        if type_ not in self._converted and type_ != format_.name:
            self._converted.add(type_)
            log.info("weights stored as %s are kept as %s", type_, format_.name)
        return format_, order

    def _order(self, columns: NDArray[np.int64]) -> InputOrder:
        inputs = columns.astype(np.int32)
        order = InputOrder(len(self._orders), inputs)
        return self._orders.setdefault(inputs.tobytes(), order)


def _digest(part: StoredRows) -> bytes:
    """Return the order of the inputs of rows; nothing if only their values can be packed."""
    if part.columns is None or _own_format(part.type) is None:
        return b""
    return part.columns.tobytes()


def _fitting(parts: Sequence[StoredRows], format_: _native.Format) -> Sequence[StoredRows]:
    """Return rows for wide groups of activations as those for groups of 32, if these are packed.

    Both lie alike, and differ in their meaning alone.
    """
    if format_ != _native.Format.U8 or parts[0].type != "I8Wide":
        return parts
    return [_renamed(part, "I8By32") for part in parts]


def _decoded(matrices: Sequence[Sequence[StoredRows]]) -> Sequence[Sequence[StoredRows]]:
    """Return the same rows, so that types in which some are in act-order are packed by values.

    Each input then has its own place, where codes would be packed in the order in which they are
    stored. All rows of a type stay of one format, whatever their orders.
    """
    types = {part.type for parts in matrices for part in parts if part.columns is not None}
    return [
        [_renamed(part, in_act_order(part.type)) if part.type in types else part for part in parts]
        for parts in matrices
    ]


def in_act_order(type_: str) -> str:
    """Return a name for rows of a type in act-order, under which no format keeps their codes."""
    return f"{type_} in act-order"


def _renamed(part: StoredRows, name: str) -> StoredRows:
    return replace(part, layout=replace(part.layout, name=name))


def choose_format(
    type_: str,
    inputs: int,
    weights: KeptWeights,
    activations: CpuActivations = "auto",
    *,
    is_embedding: bool,
    is_qkv: bool = False,
) -> _native.Format:
    """Choose the packed format for a stored type: the requested one, its own, or the nearest.

    Queries, keys and values of a file for int8 activations have no wide groups of these: behind a
    norm, a few are many times as large as the others, and half of what wide groups cost is lost
    there.
    """
    if weights == "float32" or type_ in FLOAT_TYPES:
        name = _format_of_floats(type_, inputs, weights, is_embedding=is_embedding)
    else:
        name = _format_of_codes(type_, inputs, activations)
        if name == "U8Wide" and is_qkv:
            name = "U8"
    format_: _native.Format = getattr(_native.Format, name)
    return format_


def _format_of_floats(type_: str, inputs: int, weights: KeptWeights, *, is_embedding: bool) -> str:
    """Return the format that `weights` names, or the type's own if that is not possible."""
    if weights == "bfloat16" and type_ != "F32":
        return type_  # has no more than 16 bits
    if weights in _CODED:
        sizes = () if is_embedding else _CODED[weights]
        return next((name for size, name in sizes if inputs % size == 0), type_)
    wanted = _WANTED.get(weights, type_)
    if is_embedding:
        wanted = wanted.replace("U4", "U8")  # used for every token twice: 4 bits are too few
    if wanted.startswith("U") and inputs % GROUP:
        return type_  # rows that do not divide into groups keep their type
    return wanted


def _format_of_codes(type_: str, inputs: int, activations: CpuActivations) -> str:
    """Return the type's own format if it takes such activations, or the nearest that does.

    By default activations are int8, which is faster, unless the weights would grow by that.
    """
    own = _own_format(type_)
    takes_bf16 = own is not None and _native.multiplies_bf16(own)
    if activations == "bf16" and not takes_bf16:
        return "BF16"
    if own is not None:
        wants_int8 = activations == "int8" or (activations == "auto" and _is_large(own, inputs))
        if not takes_bf16 or not wants_int8:
            return str(own.name)
    return "U8" if inputs % GROUP == 0 else "F32"


def _own_format(type_: str) -> _native.Format | None:
    """Return the format that keeps a stored type's codes, if there is one."""
    if not hasattr(_native.Stored, type_):
        return None
    own: _native.Format = _native.own_format(getattr(_native.Stored, type_))
    return own if can_pack(type_, own) else None


def _is_large(format_: _native.Format, inputs: int) -> bool:
    """Return whether int8 takes no more memory than a format, or hardly more."""
    if inputs % GROUP:
        return False
    made, own = (_native.panel_bytes(each, inputs) for each in (_native.Format.U8, format_))
    return bool(made <= _AS_SMALL * own)


def interleaved(ffn: int) -> NDArray[np.int64]:
    """Return the order of a panel's rows, for gates stacked above ups: 16 gates, then their ups.

    -1 pads the gates of the last panel, which ends after its last up.
    """
    columns = np.arange(-(-ffn // _HALF) * _HALF).reshape(-1, 1, _HALF)
    both = np.concatenate((columns, columns + ffn), axis=1)
    order = np.where(np.broadcast_to(columns < ffn, both.shape), both, -1).reshape(-1)
    return order[: len(order) + -(-ffn // _HALF) * -_HALF + ffn]
