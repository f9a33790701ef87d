"""Weights reach the device as the reference has them, and floats are not converted on the host."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo.backends.cuda import weights
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.stored_rows import FLOAT_LAYOUT, RowLayout, StoredRows

INPUTS, ROWS = 24, 10
TYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def stored(name: str, *, decodes: bool = True) -> StoredRows:
    """Make rows in the bytes of a type of floats; decoding them may be an error."""
    kind = TYPES[name]
    values = np.random.default_rng(1).standard_normal((ROWS, INPUTS)).astype(kind)

    def decode(rows: np.ndarray) -> np.ndarray:
        assert decodes, "floats are converted on the host"
        return rows.view(kind).astype(np.float32)

    layout = (
        FLOAT_LAYOUT if name == "F32" and decodes else RowLayout(name, 1, kind.itemsize, decode)
    )
    return StoredRows(layout, INPUTS, values.view(np.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TYPES)
def test_floats_are_copied_as_they_are_stored(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, in parts of bounded size, cut, in another order of rows and of inputs."""
    monkeypatch.setattr(weights, "PART_BYTES", 4 * INPUTS * 3)
    order = np.random.default_rng(2).permutation(ROWS)
    columns = np.random.default_rng(3).permutation(INPUTS)

    def parts(*, decodes: bool) -> list[StoredRows]:
        whole = stored(name, decodes=decodes)
        turned = StoredRows(whole.layout, INPUTS, whole.rows, columns=columns)
        return [whole, whole.cut(2, 5), whole.reordered(order), turned]

    expected = np.concatenate([each.floats() for each in parts(decodes=True)])
    accelerator = FakeAccelerator()
    with accelerator.working():
        target = torch.empty(expected.shape, dtype=dtype, device=accelerator.device)
        weights.put(target, parts(decodes=False), accelerator)
        (found,) = accelerator.fetch([target.float()])
    np.testing.assert_array_equal(found, torch.from_numpy(expected).to(dtype).float().numpy())
    assert {note.what for note in accelerator.log} == {"upload", "fetch"}


def test_codes_are_decoded_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def decode(rows: np.ndarray) -> np.ndarray:
        seen.append(len(rows))
        return rows.astype(np.float32) - 3

    monkeypatch.setattr(weights, "PART_BYTES", 4 * INPUTS * 4)
    codes = np.random.default_rng(1).integers(0, 9, (ROWS, INPUTS), np.uint8)
    part = StoredRows(RowLayout("CODES", 1, 1, decode), INPUTS, codes)
    accelerator = FakeAccelerator()
    with accelerator.working():
        target = torch.empty(ROWS, INPUTS, dtype=torch.bfloat16, device=accelerator.device)
        weights.put(target, [part], accelerator)
        (found,) = accelerator.fetch([target.float()])
    np.testing.assert_array_equal(found, codes.astype(np.float32) - 3)
    assert seen == [4, 4, 2]
