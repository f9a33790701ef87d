"""The run of a plan: matrix by matrix, in blocks of rows, which several threads pack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError
from octavo.quant.plain import tensor_rows
from octavo.quantize.calibration import Calibration
from octavo.quantize.directory import ResultDirectory, shards_of
from octavo.quantize.factors import choose_factors
from octavo.quantize.gptq import corrected_codes
from octavo.quantize.integers import Integers
from octavo.quantize.kept_factors import KeptFactors
from octavo.quantize.methods import METHODS
from octavo.quantize.moving import MovedFactors
from octavo.quantize.packer import BLOCK_VALUES, Floats
from octavo.quantize.plan import Matrix, Output, Plan
from octavo.quantize.scales import peaks
from octavo.quantize.shards import ShardFile
from octavo.quantize.sites import Site

_COPIED_AT_ONCE = 16 << 20


class Progress(Protocol):
    """A receiver of the progress: in bytes of the result, or in places where factors move."""

    def show(self, done: int, total: int) -> None: ...


def quantize(
    plan: Plan,
    path: Path,
    threads: int,
    progress: Progress,
    calibrate: Callable[[], Calibration] | None = None,
    moving: Progress | None = None,
) -> int:
    """Write the result, or the rest of it; return the size of the files that were there already.

    `calibrate` makes what a method reads inputs from, if it needs any.
    """
    shards = shards_of(plan)
    with ResultDirectory(path, plan) as directory, ThreadPoolExecutor(threads) as pool:
        directory.check_space(shards)
        is_left = not all(each.is_in(path) for each in shards)
        chosen = directory.factors.read(_sizes_of_sites(plan)) if is_left else []
        reads = len(chosen) < len(plan.sites) or METHODS[plan.method].corrects
        calibration = calibrate() if is_left and reads and calibrate is not None else None
        worker = _Worker(plan, pool, calibration)
        if is_left:
            worker.move(chosen, directory.factors, moving)
        kept = done = 0
        for shard, outputs in zip(shards, plan.shards, strict=True):
            if shard.is_in(path):
                kept += shard.num_bytes
                done += sum(each.num_bytes for each in outputs)
                continue
            with ShardFile(shard, path) as file:
                for output in outputs:
                    worker.write(output, file)
                    done += output.num_bytes
                    progress.show(done, plan.num_bytes)
        directory.finish(plan, shards)
    return kept


def _sizes_of_sites(plan: Plan) -> list[int]:
    """Return how many factors each site has: one for each input of its readers."""
    inputs = {matrix.name: matrix.shape[1] for matrix in plan.matrices}
    return [inputs[site.readers[0]] for site in plan.sites]


class _Worker:
    """The packing of a plan's tensors in threads."""

    def __init__(
        self, plan: Plan, pool: ThreadPoolExecutor, calibration: Calibration | None
    ) -> None:
        self._plan = plan
        self._calibration = calibration
        self._pool = pool
        self._peers = plan.peers()
        self._peak = cache(self._find_peak)
        self._written: Matrix | None = None
        self._moved = MovedFactors(plan.checkpoint)
        self._corrects = METHODS[plan.method].corrects

    def move(self, chosen: Sequence[Floats], kept: KeptFactors, progress: Progress | None) -> None:
        """Move the factors of the plan's sites, which only some methods have.

        Those of the first sites were chosen by the run that this one continues.
        """
        for number, site in enumerate(self._plan.sites, 1):
            if number <= len(chosen):
                factors = chosen[number - 1]
            else:
                factors = self._factors(site)
                kept.add(factors)
            self._moved.move(site, factors)
            if progress is not None:
                progress.show(number, len(self._plan.sites))

    def _factors(self, site: Site) -> Floats:
        packer, family = self._plan.packer, METHODS[self._plan.method].family
        assert isinstance(packer, Integers), "the method is checked with the plan"
        assert family is not None
        assert self._calibration is not None
        readers = [matrix for matrix in self._plan.matrices if matrix.name in site.readers]
        weights = [
            self._values(each, self._rows(each), slice(0, each.shape[0])) for each in readers
        ]
        kind = readers[0].scale_type
        inputs = self._calibration.sample(readers[0].name)
        return choose_factors(family, inputs, weights, lambda rows: packer.rounded(rows, kind))

    def write(self, output: Output, file: ShardFile) -> None:
        """Write a tensor; the first part of a matrix brings all its parts."""
        if isinstance(output.source, str):
            moved = self._moved.vector(output.name)
            if moved is None:
                _copy(self._plan.checkpoint, output, file)
            else:
                file.put(output.name, moved)
        elif output.source != self._written:
            self._written = output.source
            if self._corrects and self._calibration is not None:
                self._pack_corrected(output.source, self._calibration, file)
            else:
                self._pack(output.source, file)

    def _pack(self, matrix: Matrix, file: ShardFile) -> None:
        packer, rows = self._plan.packer, self._rows(matrix)
        peak = self._peak(matrix.parent) if packer.needs_peak else 0.0

        def pack(block: slice) -> None:
            values = self._values(matrix, rows, block)
            found = packer.pack(values, matrix.scale_type, peak)
            for ending, array in found.items():
                file.put(f"{matrix.module}.{ending}", array, block.start)

        self._each(matrix, pack)
        for ending, array in packer.whole(matrix.shape, peak).items():
            file.put(f"{matrix.module}.{ending}", array)

    def _pack_corrected(self, matrix: Matrix, calibration: Calibration, file: ShardFile) -> None:
        packer = self._plan.packer
        assert isinstance(packer, Integers), "the method is checked with the plan"
        values = self._values(matrix, self._rows(matrix), slice(0, matrix.shape[0]))
        sums = calibration.sums(matrix.name)
        columns = self._moved.columns(matrix.name)
        if columns is not None:
            sums = sums / np.outer(columns, columns)
        codes, scales = corrected_codes(values, sums, packer, matrix.scale_type)
        parts = {
            **packer.stored(codes, scales, matrix.scale_type),
            **packer.whole(matrix.shape, 0.0),
        }
        for ending, array in parts.items():
            file.put(f"{matrix.module}.{ending}", array)

    def _find_peak(self, parent: str) -> float:
        """Return the largest magnitude in the matrices of one parent."""
        largest: list[float] = []
        for matrix in self._peers[parent]:
            rows = self._rows(matrix)

            def find(block: slice, matrix: Matrix = matrix, rows: StoredRows = rows) -> None:
                largest.append(float(peaks(self._values(matrix, rows, block)).max()))

            self._each(matrix, find)
        return max(largest)

    def _rows(self, matrix: Matrix) -> StoredRows:
        return tensor_rows(self._plan.checkpoint, matrix.name)

    def _each(self, matrix: Matrix, work: Callable[[slice], None]) -> None:
        """Run some work for all blocks of rows; the first error ends it."""
        for _ in self._pool.map(work, _blocks(matrix)):
            pass

    def _values(
        self, matrix: Matrix, rows: StoredRows, block: slice
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        values = rows.cut(block.start, block.stop).floats()
        if not np.isfinite(values).all():
            raise CorruptFileError(
                "has values that are not finite (NaN or infinity)",
                path=self._plan.checkpoint.info(matrix.name).path,
                tensor=matrix.name,
                advice="fetch the model again",
            )
        return self._moved.matrix(matrix.name, values, block.start)


def _blocks(matrix: Matrix) -> Iterator[slice]:
    outputs, inputs = matrix.shape
    step = max(1, BLOCK_VALUES // inputs)
    for start in range(0, outputs, step):
        yield slice(start, min(start + step, outputs))


def _copy(checkpoint: Checkpoint, output: Output, file: ShardFile) -> None:
    """Copy a tensor that stays as it is."""
    info = checkpoint.info(output.name)
    for start in range(0, info.num_bytes, _COPIED_AT_ONCE):
        stop = min(start + _COPIED_AT_ONCE, info.num_bytes)
        data = memoryview(info.file.buffer)[info.offset + start : info.offset + stop]
        file.put_bytes(output.name, data, start)
