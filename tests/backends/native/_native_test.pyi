"""Types of what csrc/bind/test binds: single kernels and the team, for tests and benchmarks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# team.cpp

class TestTeam:
    def __init__(
        self,
        threads: int,
        descriptor: int = ...,
        bytes: int = ...,
        rank: int = ...,
        ranks: int = ...,
    ) -> None: ...
    def post(self, rounds: int, bytes: int) -> float: ...
    def take(self, rounds: int) -> int: ...
    def time_barriers(self, barriers: int) -> float: ...
    def end(self, reason: str) -> None: ...
    def pass_barriers(self, barriers: int, failing: int = -1, before: int = 0) -> int: ...
    def count_stale_reads(self, rounds: int) -> int: ...

# tiers.cpp

def tiers() -> list[str]: ...
def wrong_products(tier: str, several_rows: str, spoiled: int = -1) -> str: ...

# attention.cpp

class TestCache:
    def __init__(
        self,
        tier: str,
        format: str,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        latent: int = 0,
    ) -> None: ...
    def write(self, *arguments: Any) -> None: ...
    def cells(self) -> NDArray[np.uint8]: ...
    def scales(self) -> NDArray[np.float32]: ...

def attend_item(cache: TestCache, *arguments: Any, **named: Any) -> None: ...
def attend(cache: TestCache, *arguments: Any, **named: Any) -> tuple[int, int, int]: ...

# gemm.cpp

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
    @property
    def panel_bytes(self) -> NDArray[np.uint8]: ...

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
    ahead: int = ...,
) -> None: ...
def unpack_row(tier: str, matrix: PackedMatrix, output: int, out: NDArray[np.float32]) -> None: ...

# activity.cpp

class TestActivity:
    def begin_step(self) -> None: ...
    def end_step(self) -> None: ...
    def is_idle(self, quiet_seconds: float) -> bool: ...
