"""A recorded forward pass: values, instructions, and the list of them.

A value is a range of a buffer's columns; the number of rows is known only when a step runs.
A backend allocates the buffers and translates the instructions into its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.layers import Rope, Routing
from octavo.program.operands import Adapters, Experts, Matrix, Vector

# The rows of a buffer: all tokens of the step (Tokens); the tokens for which an output is requested
# (Wanted); the requested logits or hidden states, in the order of the request (Logits, Hidden);
# pairs of a token and one of its experts (Pairs).
Space = Literal["Tokens", "Wanted", "Logits", "Hidden", "Pairs"]
IdsOf = Literal["Tokens", "Positions", "Types"]
Place = Literal["Scratch", "LogitsOut", "HiddenOut", "KeptOut", "StateOut"]
# All operations; octavo/backends/torch/interpreter.py defines the meaning of each but Relay, whose
# result is what the further stages make of x.
Op = Literal[
    # recorded from a model's layers
    "Embed",
    "Select",
    "Norm",
    "Gemm",
    "HeadGemm",
    "Rope",
    "Attention",
    "Convolve",
    "Activate",
    "Gate",
    "Add",
    "Multiply",
    "Scale",
    "SoftCap",
    "Route",
    "Experts",
    "Keep",
    "KeepKV",
    "Recall",
    "Spread",
    "Given",
    # inserted by passes
    "RopeTables",
    "Prepare",
    "SortPairs",
    "ExpertsIn",
    "ExpertsOut",
    "AddExperts",
    "AllReduce",
    "AllGather",
    "Columns",
    "Shrink",
    "WholeGemm",
    "AddNorm",
    "Relay",
]


# Operations that read other rows than their own, of the step or kept before.
ACROSS_ROWS: tuple[Op, ...] = ("Attention", "Convolve")


class RecordingError(ValueError):
    """A forward pass that no listing can express."""

    def __init__(self, what: str) -> None:
        super().__init__(f"no operation computes {what}, which the model's forward pass has")


class UnsupportedError(NotImplementedError):
    """A listing with something that a backend other than the reference cannot run."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this backend cannot run the model, which needs {what}; use backend='torch'"
        )


class Buffer(Struct, eq=False):
    """Memory for rows of `width` floats each."""

    space: Space
    width: int
    place: Place = "Scratch"


class Arithmetic(Protocol):
    """A recorder of the operators + and *, and a factory of new values."""

    def add(self, x: Value, y: Value) -> Value: ...
    def multiply(self, x: Value, y: Value | float) -> Value: ...
    def new_like(self, x: Value) -> Value: ...


class Value(Struct, eq=False):
    """A range of a buffer's columns, which layers pass on while a forward pass is recorded."""

    buffer: Buffer
    first: int
    width: int
    recorder: Arithmetic

    @property
    def key(self) -> tuple[Buffer, int, int]:
        """The place of the value, equal for two values that are the same columns."""
        return self.buffer, self.first, self.width

    @property
    def is_whole(self) -> bool:
        return self.width == self.buffer.width

    def __add__(self, other: Value) -> Value:
        return self.recorder.add(self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.recorder.multiply(self, other)


class Norm(Struct, frozen=True):
    """A normalisation of rows, or of each head's part of them."""

    weight: Vector
    bias: Vector | None
    eps: float
    offset: float
    is_rms: bool
    heads: int = 1
    weight_a_head: bool = False  # each head has weights of its own


class Distances(Struct, frozen=True):
    """Addends of scores by the distance from the query to the position.

    `buckets` has the bucket of each distance from -reach to reach. A distance beyond that has the
    bucket of the nearest one.
    """

    weight: Vector  # [buckets, heads]
    buckets: tuple[int, ...]

    @property
    def reach(self) -> int:
        return len(self.buckets) // 2


class Attend(Struct, frozen=True):
    """The parameters of an attention instruction."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float
    window: int
    sinks: Vector | None
    place: tuple[int, int]
    rope: Rope | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    both_ways: bool = False  # later positions are seen as well
    # How many numbers at the end of a key are its value: `values` has these, y those before
    # them. 0: values are stored apart from keys.
    latent: int = 0
    distances: Distances | None = None
    skipped: int = 0  # leading positions that no later one sees

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim


class Convolve(Struct, frozen=True):
    """The parameters of a short convolution."""

    weight: Vector  # [channels, 1, kernel]
    bias: Vector | None
    kernel: int
    place: tuple[int, int]


class Mixture(Struct, frozen=True):
    """The gated MLPs of all experts."""

    gate_up: Experts
    down: Experts
    gate_up_bias: Vector | None
    down_bias: Vector | None
    activation: str


class Prepared(Struct, eq=False):
    """Rows in the form in which a kind of matrix reads its input."""

    space: Space
    inputs: int
    kind: str


class Instruction(Struct, eq=False):
    """One instruction; `op` determines which of the fields are used."""

    op: Op
    x: Value | None = None
    y: Value | None = None
    out: Value | None = None
    values: Value | None = None  # Attention, KeepKV: those of the keys in y
    total: Value | None = None  # AddNorm: the sum itself, beside its norm in `out`
    # Route writes it, Experts and SortPairs read it, and ExpertsOut if it leaves pairs apart.
    chosen: Value | None = None
    norm: Norm | None = None
    matrix: Matrix | None = None
    mixture: Mixture | None = None  # Experts
    experts: Experts | None = None  # HeadGemm: a matrix for each head
    passed: int = 0  # HeadGemm: the first numbers of a head that stay as they are
    bias: Vector | None = None
    activation: str | None = None
    factor: float = 1.0
    cap: float = 0.0
    ids: IdsOf = "Tokens"  # Embed: what the table is looked up by
    first_row: int | None = None  # Embed: the table's first row, if this rank has only some rows
    # Shrink, the Gemm that reads what it makes, WholeGemm; Embed, if adapters change the table.
    adapters: Adapters | None = None
    low: Value | None = None  # Gemm: of rows with adapters, what makes their addends to the sums
    # Columns: those of x that `out` consists of; Spread: those of `out` that x becomes.
    columns: NDArray[np.int64] | None = None
    # Keep: where the layer's rows are; Recall: … of which each gets the one of the position before.
    place: tuple[int, int] = (0, 0)
    gated: bool = False
    attend: Attend | None = None
    convolve: Convolve | None = None
    rope: Rope | None = None
    head_dim: int = 0
    routing: Routing | None = None
    # Prepare writes it, Gemm and experts read it; what makes rows may write it beside `out`, or in
    # its place, for the product with `matrix`.
    prepared: Prepared | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        chosen = None if self.op == "Route" else self.chosen
        read = (self.x, self.y, self.values, chosen, self.low)
        return tuple(value for value in read if value is not None)

    @property
    def writes(self) -> tuple[Value, ...]:
        written = (self.out, self.total, self.chosen if self.op == "Route" else None)
        return tuple(value for value in written if value is not None)

    @property
    def space(self) -> Space:
        """The kind of rows that the instruction processes."""
        if self.op in ("RopeTables", "Relay", *ACROSS_ROWS):  # every token is kept for others
            return "Tokens"
        if self.op in ("SortPairs", "ExpertsIn", "Keep"):
            assert self.x is not None
            return self.x.buffer.space
        if self.op == "ExpertsOut" and self.chosen is not None:
            return self.chosen.buffer.space
        if self.op == "KeepKV":
            assert self.y is not None
            return self.y.buffer.space
        return self.made_space

    @property
    def made_space(self) -> Space:
        """The kind of rows that the instruction makes."""
        if self.out is not None:
            return self.out.buffer.space
        assert self.prepared is not None, self.op
        return self.prepared.space


class Listing:
    """Instructions in order, with an index of the readers and writers of each buffer.

    Every change of an instruction's values must go through `change`, which updates the index.
    """

    def __init__(self, instructions: Iterable[Instruction]) -> None:
        self.instructions: list[Instruction] = []
        self._readers: dict[Buffer, list[Instruction]] = {}
        self._makers: dict[Buffer, list[Instruction]] = {}
        for instruction in instructions:
            self.instructions.append(instruction)
            self._note(instruction)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def readers(self, buffer: Buffer) -> list[Instruction]:
        """Return every instruction that reads some of a buffer."""
        return list(self._readers.get(buffer, ()))

    def maker(self, value: Value) -> Instruction | None:
        """Return the instruction that wrote a value, if it wrote exactly this value."""
        for instruction in self._makers.get(value.buffer, ()):
            for written in instruction.writes:
                if written.buffer is value.buffer:
                    return instruction if written.width == value.width else None
        return None

    def sole_reader(self, instruction: Instruction) -> Instruction | None:
        """Return the only reader of an instruction's output, if it reads all of it."""
        out = instruction.out
        if out is None or out.buffer.place != "Scratch":
            return None
        readers = self._readers.get(out.buffer, ())
        if len(readers) != 1 or sum(v.buffer is out.buffer for v in readers[0].reads) != 1:
            return None
        (value,) = (value for value in readers[0].reads if value.buffer is out.buffer)
        return readers[0] if value.width == out.width else None

    def index(self, instruction: Instruction) -> int:
        return self.instructions.index(instruction)

    def change(self, instruction: Instruction, **values: Value | None) -> None:
        """Set fields of an instruction that hold values, and update the index."""
        self._forget(instruction)
        for name, value in values.items():
            setattr(instruction, name, value)
        self._note(instruction)

    def insert(self, index: int, instruction: Instruction) -> None:
        self.instructions.insert(index, instruction)
        self._note(instruction)

    def remove(self, instruction: Instruction) -> None:
        self.instructions.remove(instruction)
        self._forget(instruction)

    def _note(self, instruction: Instruction) -> None:
        for buffer in _buffers(instruction.reads):
            self._readers.setdefault(buffer, []).append(instruction)
        for buffer in _buffers(instruction.writes):
            self._makers.setdefault(buffer, []).append(instruction)

    def _forget(self, instruction: Instruction) -> None:
        for buffer in _buffers(instruction.reads):
            self._readers[buffer].remove(instruction)
        for buffer in _buffers(instruction.writes):
            self._makers[buffer].remove(instruction)


def _buffers(values: Iterable[Value]) -> Iterable[Buffer]:
    """Return each buffer once, in order."""
    return dict.fromkeys(value.buffer for value in values)
