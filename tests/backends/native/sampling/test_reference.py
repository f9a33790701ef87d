"""Native steps give what the reference gives: tokens, failures, log-probabilities, vectors."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.base import Floats
from octavo.backends.native import _native
from octavo.backends.step import Draws, RowLogprobs, StepOutput
from octavo.backends.torch.sampling.step_sampler import StepSampler
from tests.backends.native.sampling.given_logits import make_backend, make_batch
from tests.backends.native.sampling.random_steps import Steps, random_logits


def check_rows(mine: tuple[RowLogprobs, ...], theirs: tuple[RowLogprobs, ...]) -> None:
    assert [rows.slot for rows in mine] == [rows.slot for rows in theirs]
    for ours, expected in zip(mine, theirs, strict=True):
        assert np.array_equal(ours.token_ids, expected.token_ids)
        assert np.array_equal(ours.ranks, expected.ranks)
        np.testing.assert_allclose(ours.logprobs, expected.logprobs, rtol=2.4e-7, atol=1e-13)


def check(mine: StepOutput, theirs: StepOutput, draws: Draws) -> None:
    """Compare two outputs; the last token of a sample that failed means nothing."""
    assert dict(mine.failures) == dict(theirs.failures)
    failed = dict(theirs.failures)
    for slot, drawn, wanted in zip(draws.slots.tolist(), mine.tokens, theirs.tokens, strict=True):
        assert len(drawn) == len(wanted)
        num_meant = len(drawn) - (slot in failed)
        assert drawn[:num_meant] == wanted[:num_meant]
    assert [slot for slot, _ in mine.states] == [slot for slot, _ in theirs.states]
    for (slot, mu), (_, right) in zip(mine.states, theirs.states, strict=True):
        assert slot in failed or mu == pytest.approx(right, rel=1e-12, abs=1e-12)
    check_rows(mine.logprobs, theirs.logprobs)
    check_rows(mine.prompts, theirs.prompts)
    ours = [(slot, values.tolist()) for slot, values in mine.pooled]
    assert ours == [(slot, values.tolist()) for slot, values in theirs.pooled if slot not in failed]


def run_world(logits: Floats, seed: int, tier: str, threads: int, has_masks: bool) -> int:
    """Run some steps on both; return the number of failures."""
    backend, reference = make_backend(logits, tier, threads), StepSampler()
    steps = Steps(np.random.default_rng(seed), logits.shape[1], has_masks)
    num_failures = 0
    for _ in range(12):
        rows, draws = steps.next(len(logits))
        hidden = [0, 1, 2][: len(rows)]
        output = backend.step(make_batch(rows, hidden), draws).collect()
        reference.change(draws)
        theirs = reference.finish(draws, logits[rows], logits[rows][hidden])
        check(output, theirs, draws)
        steps.failed.update(slot for slot, _ in theirs.failures)
        num_failures += len(theirs.failures)
    return num_failures


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("seed", range(12))
def test_random_steps_are_the_references(tier: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    vocabulary = int(random.choice([3, 31, 64, 300, 1000]))
    logits = random_logits(random, 20, vocabulary)
    run_world(logits, seed, tier, 1 + seed % 3, seed % 2 == 0)
