"""Parts of both legs, for a run of all tests; `make test-gpu-blind` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LEGS = Path(__file__).parent
# A few cases of each way to examine kernels, of a second each.
PARTS = {
    "1": "((norm or few) and bfloat16) or (races and norm) or a_race or rounds",
    "0": "(norm or few) and ampere and bfloat16",
}


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed; make test-gpu-blind installs it"
)
@pytest.mark.parametrize("interpreted", PARTS)
def test_a_part_of_each_leg(interpreted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(LEGS)]
    words += ["-k", PARTS[interpreted], "--deselect", __file__]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout
