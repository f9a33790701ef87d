"""A digest of a model's files, by which nodes see whether they have the same model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

_SAMPLE_BYTES = 4096
_APART_BYTES = 16 << 20  # from one sample to the next


def digest_of(configurations: Sequence[Path], files: Sequence[Path]) -> bytes:
    """Return a digest of the configuration and of the weights' files, in their order.

    Of large files it reads their size, their ends, and a sample of each 16 MiB: reading a model as
    a whole would take as long as loading it. Files that differ in less have the same.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"octavo model")
    for path in configurations:  # of which some may be missing
        data = path.read_bytes() if path.exists() else b""
        digest.update(hashlib.blake2b(data).digest())
    for path in files:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            for at in (*range(0, size, _APART_BYTES), max(0, size - _SAMPLE_BYTES)):
                digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, at))
    return digest.digest()
