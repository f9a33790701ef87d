"""What csrc/bind binds, for the type checker; enumerations and plain structs as far as used."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

def __getattr__(name: str) -> Any: ...  # kernels bound for tests, and enumerations' values

class Format(Enum):
    F32 = ...
    U8 = ...

class Stored(Enum):
    F32 = ...

class Matrix:
    outputs: int
    inputs: int
    format: Format
    num_bytes: int
    def row(self, row: int, tier: str = "") -> NDArray[np.float32]: ...

class Team:
    size: int
    def __init__(self, size: int, pinned: bool) -> None: ...

class Store:
    num_bytes: int
    def __init__(self) -> None: ...
    def vector(self, values: NDArray[np.float32]) -> int: ...
    def pack(
        self, team: Team, type: Stored, format: Format, inputs: int, rows: NDArray[np.uint64]
    ) -> Matrix: ...

class Ref:
    def __init__(self, *fields: Any) -> None: ...

class Prepared:
    def __init__(self, *fields: Any) -> None: ...

class Piece:
    def __init__(self, matrix: Matrix, first: int, bias: int, gated: bool) -> None: ...

class NormShape:
    weight: int
    bias: int
    eps: float
    offset: float
    heads: int
    is_rms: bool
    weight_a_head: bool

class Instruction:
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

class Program:
    seconds: list[float]
    threads: int
    scratch_bytes: int
    logits_stride: int
    hidden_stride: int
    def __init__(self, tier: str, team: Team) -> None: ...
    def append(self, instruction: Instruction) -> None: ...
    def add_rope(
        self, frequencies: Sequence[float], interleaved: bool, magnitude: float
    ) -> int: ...
    def set_scratch(self, space: Any, row_bytes: int, prepared_row_bytes: int) -> None: ...
    def make_caches(
        self,
        format: Any,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
    ) -> None: ...
    def copy_block(self, source: int, destination: int) -> None: ...
    def run(self, *arrays: Any) -> None: ...
    def set_profiling(self, on: bool) -> None: ...

def tiers() -> list[str]: ...
def physical_cores() -> list[int]: ...
@overload
def own_format(type: Stored) -> Format: ...
@overload
def own_format(type: int) -> str: ...
def can_pack(type: Stored, format: Format) -> bool: ...
def panel_bytes(format: Format, inputs: int) -> int: ...
def stored_row_bytes(type: Stored, inputs: int) -> int: ...
def prepared_bytes(tier: str, format: Format, inputs: int) -> int: ...
def release_file_pages(address: int, bytes: int) -> None: ...

# kernels_gemm.cpp

class PackedMatrix:
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def panels(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...

def pack(
    format: str,
    stored_type: int,
    rows: Sequence[NDArray[np.uint8] | None],
    inputs: int,
) -> PackedMatrix: ...
def prepare(tier: str, format: str, x: NDArray[np.float32]) -> NDArray[np.uint8]: ...
def gemm(
    tier: str,
    matrix: PackedMatrix,
    prepared: NDArray[np.uint8],
    out: NDArray[np.float32],
    first_panel: int = 0,
    end_panel: int = -1,
    first_output: int = 0,
    bias: NDArray[np.float32] | None = None,
    residual: NDArray[np.float32] | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    activation: str = "none",
    gated: bool = False,
    out_rows: NDArray[np.int32] | None = None,
    row_weights: NDArray[np.float32] | None = None,
) -> None: ...
def unpack_row(tier: str, matrix: PackedMatrix, output: int, out: NDArray[np.float32]) -> None: ...
