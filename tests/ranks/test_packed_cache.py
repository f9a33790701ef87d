"""Packed weights of ranks on disk: each has a file of its share, which later starts map."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.native.packed_cache.sources import SETTLED_SECONDS
from tests.ranks.followers import wait_until
from tests.ranks.small import FORMATS, answers, write

pytestmark = pytest.mark.slow
KIND = "Qwen2MoeForCausalLM"


def files(directory: Path) -> dict[str, int]:
    """Return the files of packed weights with their inodes: one that is replaced has another."""
    return {path.name: path.stat().st_ino for path in directory.glob("*.panels")}


def test_ranks_map_their_share_at_the_next_start(tmp_path: Path) -> None:
    model, packed = write(tmp_path, KIND), tmp_path / "packed"
    options: dict[str, Any] = {**FORMATS["int8"], "packed_cache": str(packed)}
    expected, _ = answers(model, **FORMATS["int8"])
    made = max(path.stat().st_ctime for path in model.iterdir())
    wait_until(lambda: time.time() > made + SETTLED_SECONDS + 0.1)  # the ranks keep none before

    def check(ranks: int, **more: Any) -> dict[str, int]:
        assert answers(model, tensor_parallel_size=ranks, **options, **more)[0] == expected
        return files(packed)

    first = check(2)
    assert len(first) == 2
    damaged = packed / sorted(first)[0]
    content = bytearray(damaged.read_bytes())
    length = int.from_bytes(content[8:16], "little")
    matrices = json.loads(content[32 : 32 + length])["matrices"]
    content[max(offset for offset, size, _ in matrices.values() if size)] ^= 1
    with damaged.open("r+b") as file:  # in its place, as a disk does that loses a bit
        file.write(content)
    second = check(2)
    assert second.keys() == first.keys()
    changed = [name for name, inode in second.items() if inode != first[name]]
    assert changed == [damaged.name]
    whole = check(3, enable_expert_parallel=True)
    assert len(whole) == 5
    assert second.items() <= whole.items()
