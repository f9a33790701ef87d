"""Measures each phase of a step on the native engine, next to the machine's peak rates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.backends.base import VectorSize
from octavo.backends.kind import kind_of
from octavo.backends.native.backend import NativeBackend, PeakRates
from octavo.backends.native.kind import KIND as NATIVE
from octavo.backends.native.measured_file import describe_choices
from octavo.backends.native.work import SequenceSize, work_of
from octavo.backends.select import select
from octavo.backends.step import Copies, HostBatch
from octavo.core.config import ConfigError
from octavo.loader import resolve as resolve_source
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.observe.machine import huge_page_bytes, own_bytes
from octavo.options.backends import BACKENDS
from octavo.options.engine import EngineArguments
from octavo.program.describe import describe_one
from octavo.program.listing import Instruction
from octavo.resolve import resolve
from octavo.runner.kv_cache import readable
from octavo.usable import chosen_sizes

MOST_ROWS = 1 << 20  # of a step of the native engine
FILL_ROWS = 256  # of a chunk, while the cache is filled
# Memory that other machines share changes its speed within seconds, so it is measured between the
# steps that read it.
_READ_TURNS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction of a step, summed over all layers that have the same phase."""

    phase: int  # from 1; there is a barrier between two
    text: str
    kernel: str
    format: str  # "" where no weights are read
    numbers: str  # what is multiplied: "int8", "bf16", "float", or ""
    calls: int
    seconds: float  # at work
    waits: float  # for other threads, before it
    bytes_read: int
    operations: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The timings of a step, and the peak rates of the machine that it ran on."""

    tier: str
    threads: int
    rows: int
    step_seconds: float  # as Python sees it; the median
    outside_seconds: float  # of a step, in no instruction; the median of the steps' own differences
    peak_rates: PeakRates
    kernels: tuple[str, ...]  # the kernel of each format, if kernels were measured
    weight_bytes: int
    own_bytes: int  # of this process; mapped weights are not among them
    huge_page_bytes: int | None  # of these; None if the system does not say
    lines: tuple[Line, ...]

    @property
    def waited_seconds(self) -> float:
        """The part of the step that was spent waiting for other threads."""
        return sum(line.waits for line in self.lines)

    @property
    def native_seconds(self) -> float:
        """The sum of all lines."""
        return sum(line.seconds + line.waits for line in self.lines)


def profile(
    arguments: EngineArguments, sequences: Sequence[SequenceSize], steps: int, peak_seconds: float
) -> Profile:
    """Load the model, fill the cache and run the step so many times."""
    rows = sum(each.rows for each in sequences)
    _check(arguments, rows)
    source = resolve_source(arguments.model, has_weights=arguments.has_weights)
    opened = open_model(source, arguments.max_model_len, arguments.hf_overrides)
    layout = place_layers(opened.model)
    size = chosen_sizes(arguments, NATIVE).block_size
    longest = max(each.first + each.rows for each in sequences)
    if longest > opened.spec.max_len:
        raise ConfigError(f"{longest} positions are more than the model's {opened.spec.max_len}")
    width = -(-longest // size)
    blocks = 1 + width * len(sequences) * len(layout.windows)
    asked = replace(arguments, num_gpu_blocks_override=max(2, blocks))
    config = resolve(asked, opened, layout)
    needed = config.bill.with_blocks(config.core.num_blocks)
    free = config.kind.memory().available
    if needed > free:
        raise ConfigError(
            f"a step of {rows:,} rows, in sequences of up to {longest:,} positions, needs "
            f"{readable(needed)} with the model, and {readable(free)} are free; "
            "measure a smaller step or a smaller model"
        )
    backend = config.kind.make(asked, opened.checkpoint.files)
    assert isinstance(backend, NativeBackend)
    bind(opened.model, backend, opened.weights)
    backend.prepare(opened.model, layout, size)
    backend.make_cache(max(2, blocks))
    backend.calibrate()
    numbers = np.arange(1, blocks, dtype=np.int32)
    # Each block is the first of a page of its own.
    per_page = np.array(config.bill.blocks_per_page, np.int32)[:, None, None]
    tables = numbers.reshape(len(layout.windows), len(sequences), width) * per_page
    copies = _fill(backend, tables, sequences)
    batch = _batch(tables, sequences)
    backend.forward(batch._replace(copies=copies))
    walls, outside, timings, reads = [], [], [], []
    for index in range(steps):
        if index * _READ_TURNS % steps < _READ_TURNS:
            reads.append(backend.read_rate(peak_seconds / _READ_TURNS))
        backend.profile(True)
        began = time.perf_counter()
        backend.forward(batch)
        walls.append(time.perf_counter() - began)
        timings.append(backend.timings())
        outside.append(walls[-1] - float(np.sum(timings[-1])))
    # Medians of each instruction: a disturbance of one step is no property of an instruction.
    times, waits = np.median(timings, axis=0)
    kv_bytes = config.bill.block_bytes / layout.pages(size, lambda spec: VectorSize(8)).page_bytes
    return Profile(
        backend.tier,
        backend.threads,
        len(batch.token_ids),
        statistics.median(walls),
        statistics.median(outside),
        backend.peak_rates(statistics.median(reads), peak_seconds),
        tuple(
            f"{format_}: {describe_choices(backend.tier, choices)}"
            for format_, choices in backend.choices.items()
        ),
        backend.weight_bytes,
        own_bytes(),
        huge_page_bytes(),
        tuple(lines_of(backend.instructions, backend.barriers, times, waits, sequences, kv_bytes)),
    )


def _check(arguments: EngineArguments, rows: int) -> None:
    """Refuse another backend, several processes, and too large a step."""
    if arguments.needs_processes:
        raise ConfigError(
            "a step is one engine's: leave data_parallel_size, data_parallel_backend and "
            "distributed_executor_backend out"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(arguments, name) > 1:
            raise ConfigError(f"one process is profiled: leave {name} out")
    asked = [kind_of(each) for each in BACKENDS if each.name == arguments.backend]
    kind = asked[0] if asked else select(block_size=arguments.block_size).kind
    if kind is not NATIVE:
        raise ConfigError(
            "only the native engine can be profiled, and another one computes here: leave out "
            f"backend={arguments.backend!r}, or see `octavo doctor`"
        )
    if rows > MOST_ROWS:
        raise ConfigError(f"a step has at most {MOST_ROWS:,} rows, and {rows:,} are asked for")


def lines_of(
    instructions: Sequence[Instruction],
    barriers: Container[int],
    times: Iterable[float],
    waits: Iterable[float],
    sequences: Sequence[SequenceSize],
    kv_bytes: float,
) -> list[Line]:
    """Return the lines of all phases in order of first appearance; equal phases are summed."""
    top_k = max((i.routing.top_k for i in instructions if i.routing is not None), default=0)
    phases: list[list[Line]] = []
    timed = zip(instructions, times, waits, strict=True)
    for number, (i, seconds, waited) in enumerate(timed):
        if number in barriers or not phases:
            phases.append([])
        work = work_of(i, sequences, kv_bytes, top_k)
        what = (0, describe_one(i), i.op, *_weights(i), 1)
        line = Line(*what, float(seconds), float(waited), work.bytes_read, work.operations)
        phases[-1].append(line)
    alike: dict[tuple[str, ...], list[Line]] = {}
    for phase in phases:
        texts = tuple(line.text for line in phase)
        number = len(alike) + 1
        before = alike.get(texts)
        if before is None:
            alike[texts] = [replace(line, phase=number) for line in phase]
        else:
            alike[texts] = [_sum(*pair) for pair in zip(before, phase, strict=True)]
    return [line for lines in alike.values() for line in lines]


def _weights(i: Instruction) -> tuple[str, str]:
    """Return the format of the weights, and the numbers that are multiplied."""
    matrix = i.experts.matrices[0] if i.experts is not None else i.matrix
    if matrix is None or i.op in ("Prepare", "SortPairs"):
        return "", ""
    # A kind begins with its numbers: rows of "int8 by 128" are multiplied as int8.
    return matrix.formats, "" if i.op == "Embed" else matrix.kind.partition(" ")[0]


def _sum(one: Line, other: Line) -> Line:
    return replace(
        one,
        calls=one.calls + other.calls,
        seconds=one.seconds + other.seconds,
        waits=one.waits + other.waits,
        bytes_read=one.bytes_read + other.bytes_read,
        operations=one.operations + other.operations,
    )


def _batch(tables: np.ndarray, sequences: Sequence[SequenceSize]) -> HostBatch:
    """Make the step: arbitrary tokens, and logits of the last row of each sequence."""
    rows = [each.rows for each in sequences]
    starts = np.cumsum([0, *rows], dtype=np.int32)
    positions = [np.arange(each.first, each.first + each.rows) for each in sequences]
    at = np.concatenate(positions).astype(np.int32)
    wanted = [end - 1 for end, each in zip(starts[1:], sequences, strict=True) if each.logits]
    return HostBatch(_tokens(at), at, starts, tuple(tables), np.array(wanted, np.int32))


def _tokens(positions: np.ndarray) -> np.ndarray:
    return (1 + positions * 7 % 97).astype(np.int32)


def _fill(backend: NativeBackend, tables: np.ndarray, sequences: Sequence[SequenceSize]) -> Copies:
    """Compute the longest sequence before the step; return the copies that fill the others."""
    longest = max(range(len(sequences)), key=lambda index: sequences[index].first)
    none = np.zeros(0, np.int32)
    mine = tuple(np.ascontiguousarray(table[longest : longest + 1]) for table in tables)
    for first in range(0, sequences[longest].first, FILL_ROWS):
        stop = min(first + FILL_ROWS, sequences[longest].first)
        at = np.arange(first, stop, dtype=np.int32)
        ends = np.array([0, len(at)], np.int32)
        backend.forward(HostBatch(_tokens(at), at, ends, mine, none))
    pairs = [
        (int(table[longest, block]), int(table[other, block]), group)
        for group, table in enumerate(tables)
        for other in range(len(sequences))
        if other != longest
        for block in range(table.shape[1])
    ]
    return tuple(pairs)
