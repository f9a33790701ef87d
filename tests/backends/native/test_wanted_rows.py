"""Unwanted rows are dropped after the last attention, and the others keep their bits."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.base import ForwardResult
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import HostBatch
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from tests.backends.native.tiny import EXACT, make_batch, make_native
from tests.models.made_up import MadeUpWeights, make_model
from tests.runner.tiny import FULL

WINDOWED = (None, 20, None, 20)
STEP = ((0, 0, 45), (1, 0, 1), (2, 0, 40), (3, 0, 3))
NUM_ROWS = 89


def wanting(batch: HostBatch, logits: list[int], hidden: list[int]) -> HostBatch:
    """Return the batch with only these rows wanted, in this order."""
    rows, told = np.array(logits, np.int32), np.array(hidden, np.int32)
    return batch._replace(logits_rows=rows, hidden_rows=told)


def kept(result: ForwardResult) -> ForwardResult:
    return ForwardResult(result.logits.copy(), result.hidden.copy())


def check(expected: ForwardResult, given: ForwardResult, step: HostBatch) -> None:
    assert np.array_equal(given.logits, expected.logits[step.logits_rows])
    assert np.array_equal(given.hidden, expected.hidden[step.hidden_rows])


CHOICES = {
    "the last of each": ([44, 45, 85, 88], []),
    "some, in another order, and twice": ([88, 3, 4, 5, 44, 3], [0, 88, 20]),
    "hidden states alone": ([], [*range(46, 86)]),
    "a whole prompt and others' ends": ([*range(45), 45, 85, 88], [44]),
    "nothing": ([], []),
    "all": ([*range(NUM_ROWS)], [*range(NUM_ROWS)]),
}


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_wanted_changes_no_bit(tier: str, choice: str) -> None:
    """The next step reads the keys of rows that were dropped, and its bits stay the same too."""
    everything = make_batch(*STEP, groups=2)
    next_step = make_batch((0, 45, 20), (1, 1, 1), (2, 40, 1), (3, 3, 1), groups=2)
    whole = make_native(WINDOWED, 160, 16, instruction_set=tier)
    backend = make_native(WINDOWED, 160, 16, instruction_set=tier, num_threads=3)
    expected, expected_next = kept(whole.forward(everything)), kept(whole.forward(next_step))
    step = wanting(everything, *CHOICES[choice])
    check(expected, backend.forward(step), step)
    check(expected_next, backend.forward(next_step), next_step)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_keys_of_unwanted_single_rows_are_written(threads: int) -> None:
    """Every sequence has one row, and only some of the rows are wanted."""
    whole = make_native(FULL, 160, 16, num_threads=1)
    backend = make_native(FULL, 160, 16, num_threads=threads)
    for at in range(40):
        everything = make_batch(*((name, at, 1) for name in range(4)))
        expected = kept(whole.forward(everything))
        some = [row for row in range(4) if (at + row) % 5 == 0]
        step = wanting(everything, some, some[:1])
        check(expected, backend.forward(step), step)


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize(
    "architecture",
    [
        "GPTNeoXForCausalLM",
        "GPT2LMHeadModel",
        "Gemma2ForCausalLM",
        "Olmo2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "GptOssForCausalLM",
    ],
)
def test_blocks_of_every_shape_leave_the_same_rows_out(tier: str, architecture: str) -> None:
    """Blocks may have a parallel MLP, norms after the MLP, experts, or learned positions."""
    backends = []
    for threads in (1, 2):
        model = make_model(architecture, sliding_window=20)
        layout = place_layers(model)
        options = NativeOptions(**EXACT, num_threads=threads, instruction_set=tier)
        backend = NativeBackend(options)
        bind(model, backend, MadeUpWeights(model))
        backend.prepare(model, layout, 16)
        backend.make_cache(200)
        backends.append((backend, len(layout.windows), model.embed.vocabulary))
    (whole, groups, vocabulary), (backend, _, _) = backends
    everything = make_batch((0, 0, 30), (1, 0, 9), groups=groups)
    everything = everything._replace(token_ids=everything.token_ids % vocabulary)
    expected = kept(whole.forward(everything))
    for rows in ([29, 38], [7, 8, 30], []):
        step = wanting(everything, rows, rows[1:])
        check(expected, backend.forward(step), step)
