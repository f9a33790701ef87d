"""What the extension module offers: csrc/bind/*.cpp, each part under the name of its file."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# module.cpp

def tiers() -> list[str]: ...

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

def own_format(stored_type: int) -> str: ...
def pack(
    format: str,
    stored_type: int,
    rows: Sequence[npt.NDArray[np.uint8] | None],
    inputs: int,
) -> PackedMatrix: ...
def prepare(tier: str, format: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]: ...
def gemm(
    tier: str,
    matrix: PackedMatrix,
    prepared: npt.NDArray[np.uint8],
    out: npt.NDArray[np.float32],
    first_panel: int = 0,
    end_panel: int = -1,
    first_output: int = 0,
    bias: npt.NDArray[np.float32] | None = None,
    residual: npt.NDArray[np.float32] | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    activation: str = "none",
    gated: bool = False,
    out_rows: npt.NDArray[np.int32] | None = None,
    row_weights: npt.NDArray[np.float32] | None = None,
) -> None: ...
def unpack_row(
    tier: str, matrix: PackedMatrix, output: int, out: npt.NDArray[np.float32]
) -> None: ...
