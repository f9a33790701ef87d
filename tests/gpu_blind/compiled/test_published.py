"""Published models in their shapes: every launch of a step is one that the smallest card takes."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.cuda.fake.forms import form_of
from tests.gpu_blind.compiled.compile import compile_for, facts_of
from tests.gpu_blind.compiled.test_claims import SHARED_BYTES
from tests.gpu_blind.dry import launches
from tests.gpu_blind.published import published
from tests.models.published_shapes import PUBLISHED

# The card with the least shared memory, and that of any block and grid, by NVIDIA's guide.
LEAST = min(SHARED_BYTES, key=lambda capability: SHARED_BYTES[capability])
REGISTERS, THREADS, MOST = 65_536, 1024, (2**31 - 1, 65_535, 65_535)
MIXTURES = ("Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite")
# With weights of FP8, whose kernels have whole rows: the widest MLP of them is 18,944 numbers.
CODED = ("Llama-3.1-8B", "Qwen2.5-7B")
_compiled: set[tuple[object, ...]] = set()  # forms that an earlier model has had


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "has_codes"),
    [*((name, False) for name in PUBLISHED), *((name, True) for name in CODED)],
)
def test_every_launch_of_a_published_model_is_possible(name: str, has_codes: bool) -> None:
    model, layout = published(name, torch.bfloat16, has_codes=has_codes)
    launched = launches(model, layout, "bfloat16")
    names = {each.kernel.__name__ for each in launched}
    assert ("gate_pairs" in names) is (name in MIXTURES)
    assert ("attend_rows" in names) is (name != "DeepSeek-V2-Lite")
    assert {"add_and_normalise", "best_of_part", "edge_of_row"} <= names
    for each in launched:
        assert all(0 < size <= most for size, most in zip(each.grid, MOST, strict=False))
        assert all(isinstance(number, float) or abs(number) < 2**31 for number in each.numbers)
        form = form_of(each.kernel, each.tensors, each.numbers, each.constants)
        if form in _compiled:
            continue
        _compiled.add(form)
        code = compile_for(each, LEAST)
        facts, threads = facts_of(code.cubin), 32 * code.num_warps
        assert code.shared_bytes <= SHARED_BYTES[LEAST], each.kernel
        assert threads <= THREADS, each.kernel
        assert facts.registers * threads <= REGISTERS, each.kernel
        assert facts.stack == 0, each.kernel
