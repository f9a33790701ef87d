"""A file that was unpacked: what is remembered of it, and how it is known again."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """One file that was written."""

    name: str  # its path inside the wheel, with slashes
    num_bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
