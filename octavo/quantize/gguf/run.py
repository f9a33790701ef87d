"""The writing of a planned GGUF file: tensor by tensor, in blocks of rows that threads encode.

It grows as `.partial`, beside a record of the plan, and gets its name when it is complete and on
the disk. A run that was killed goes on behind the last tensor that is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from octavo.core.config import ConfigError
from octavo.loader.errors import CorruptFileError, SourceError
from octavo.quant.plain import tensor_rows
from octavo.quantize.gguf.plan import GgufPlan, GgufTensor
from octavo.quantize.packer import BLOCK_VALUES
from octavo.quantize.run import Progress
from octavo.quantize.shards import PARTIAL, sync_directory, write_whole

RECORD = ".octavo-quantize.json"  # behind the name of the file
_VERSION = 1  # of what a plan makes; a newer one does not continue an older one's file
_COPIED_AT_ONCE = 16 << 20
_SPARE_BYTES = 64 << 20  # that are left free


def is_finished(path: Path, plan: GgufPlan) -> bool:
    """Return whether a file is the finished result of these settings."""
    if _record_of(path).exists() or not path.is_file() or path.stat().st_size != plan.num_bytes:
        return False
    with path.open("rb") as file:
        return file.read(len(plan.header)) == plan.header


def write_gguf(plan: GgufPlan, path: Path, threads: int, progress: Progress) -> int:
    """Write the file, or the rest of it; return the bytes that were there already."""
    with _locked(plan, path), ThreadPoolExecutor(threads) as pool:
        partial = path.with_name(path.name + PARTIAL)
        descriptor = os.open(
            partial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            kept = _kept_bytes(plan, os.fstat(descriptor).st_size)
            _check_space(plan, path, kept)
            os.truncate(descriptor, kept)
            file.seek(kept)
            if not kept:
                _write(descriptor, plan.header)
            for tensor in plan.tensors:
                if tensor.end > kept:
                    os.truncate(descriptor, tensor.offset)
                    file.seek(tensor.offset)
                    for data in _pieces(plan, tensor, pool):
                        _write(descriptor, data)
                    os.fsync(descriptor)  # what is behind it is written only when it is whole
                progress.show(tensor.end, plan.num_bytes)
            os.truncate(descriptor, plan.num_bytes)
            os.fsync(descriptor)
            progress.show(plan.num_bytes, plan.num_bytes)
        partial.rename(path)
        _record_of(path).unlink()
        sync_directory(path.parent)
    return kept


def _kept_bytes(plan: GgufPlan, size: int) -> int:
    """Return the bytes of an unfinished file up to the end of its last whole tensor."""
    whole = [tensor.end for tensor in plan.tensors if tensor.end <= size]
    if whole:
        return whole[-1]
    return len(plan.header) if size >= len(plan.header) else 0


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + RECORD)


@contextmanager
def _locked(plan: GgufPlan, path: Path) -> Iterator[None]:
    """Keep other processes from the file, and refuse what is not an unfinished result."""
    record, described = _record_of(path), _description(plan)
    is_new = not record.exists()
    if is_new:
        for there in (path, path.with_name(path.name + PARTIAL)):
            if there.exists():
                raise ConfigError(
                    f"{there} is there already, and is no unfinished result; remove it, or name "
                    "another file with -o"
                )
        write_whole(record, described)
    descriptor = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process writes {path}; wait for it, or name another file with -o"
            ) from None
        if record.read_bytes() != described:
            raise ConfigError(
                f"{path} is an unfinished result of other settings, or of a model that has "
                f"changed since; remove {record} and the file {PARTIAL}, or name another with -o"
            )
        try:
            yield
        except BaseException:
            if is_new and not path.with_name(path.name + PARTIAL).exists():
                record.unlink()  # nothing has been made, so nothing is to be continued
            raise
    finally:
        os.close(descriptor)


def _description(plan: GgufPlan) -> bytes:
    files = [(path.name, path.stat()) for path in plan.source.weights]
    description = {
        "version": _VERSION,
        "header": hashlib.sha256(plan.header).hexdigest(),
        "weights": [[name, status.st_size, status.st_mtime_ns] for name, status in files],
    }
    return json.dumps(description, indent=1).encode()


def _check_space(plan: GgufPlan, path: Path, kept: int) -> None:
    """Refuse to begin what the disk has no room for."""
    needed, free = plan.num_bytes - kept, shutil.disk_usage(path.parent).free
    if needed + _SPARE_BYTES > free:
        raise SourceError(
            f"the result needs {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free",
            path=path,
            advice="free some space, or name a file on another disk with -o",
        )


def _pieces(
    plan: GgufPlan, tensor: GgufTensor, pool: ThreadPoolExecutor
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tensor."""
    info = tensor.info
    if tensor.made is None:
        for start in range(0, info.num_bytes, _COPIED_AT_ONCE):
            stop = min(start + _COPIED_AT_ONCE, info.num_bytes)
            yield memoryview(info.file.buffer)[info.offset + start : info.offset + stop]
        return
    encode = tensor.made.rows
    stored, inputs = tensor_rows(plan.checkpoint, info.name), info.shape[-1]
    step = max(1, BLOCK_VALUES // inputs)

    def made(start: int) -> memoryview:
        values = stored.cut(start, min(start + step, len(stored))).floats()
        if not np.isfinite(values).all():
            raise CorruptFileError(
                "has values that are not finite (NaN or infinity)",
                path=info.path,
                tensor=info.name,
                advice="fetch the model again",
            )
        return np.ascontiguousarray(encode(values)).reshape(-1).data

    yield from pool.map(made, range(0, math.prod(info.shape[:-1]), step))


def _write(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
