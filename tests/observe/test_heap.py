"""The gauge of the heap follows what is allocated and freed."""

from __future__ import annotations

import pytest

from octavo.observe import heap


@pytest.mark.parametrize("has_glibc", [True, False])
def test_it_shows_a_large_block(has_glibc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_glibc:
        monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    read = heap.heap_gauge()
    before = read()
    block = bytearray(b"x") * (64 << 20)
    assert read() - before > 60 << 20
    del block
    assert read() - before < 32 << 20
