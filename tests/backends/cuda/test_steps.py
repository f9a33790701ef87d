"""Steps on the fake device: what crosses the bus, the tokens, and the memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from msgspec import structs

from octavo.backends.base import StepSize
from octavo.backends.cuda import sampler
from octavo.backends.cuda.backend import CudaBackend
from octavo.backends.step import (
    NO_TOKEN_LEFT,
    NOT_FINITE,
    Draws,
    Masks,
    SlotSampling,
    Stage,
    StepOutput,
)
from octavo.backends.torch.backend import TorchBackend
from tests.backends.cuda.on_fake import accelerator_of, make_backend
from tests.backends.cuda.steps import rows_of
from tests.runner import tiny
from tests.runner.tiny import FULL, VOCABULARY

PROMPTS = [[3, 4, 5], [9, 8, 7, 6, 5], [11], [20, 21]]
GREEDY = partial(SlotSampling, temperature=0.0)
WARM = partial(SlotSampling, temperature=0.8)
FILTERED = partial(SlotSampling, temperature=0.8, top_p=0.7, top_k=9)
TOLD = partial(SlotSampling, temperature=1.1, logprobs=3)
CHAINED = partial(
    SlotSampling, temperature=1.0, chain=(Stage("top_k", 5), Stage("temperature", 0.7))
)
PENALISED = partial(
    SlotSampling, temperature=0.9, repetition=1.7, presence=0.4, frequency=0.3, min_p=0.05
)
WINDOWED = partial(SlotSampling, temperature=0.9, repetition=1.7, frequency=0.3, penalty_window=2)
BIASED = partial(
    SlotSampling,
    bias_ids=np.array([3, 7, 20], np.int32),
    bias=np.array([2.5, -4.0, 3.0], np.float32),
    presence=1.5,
)
FORBIDDEN = partial(
    SlotSampling,
    temperature=1.2,
    allowed=np.arange(0, VOCABULARY, 3, dtype=np.int32),
    bad_words=((3,), (5, 9)),
    min_tokens=4,
    stop_ids=np.array([6, 12], np.int32),
    top_k=6,
)
RULED = (PENALISED, WINDOWED, BIASED, FORBIDDEN)


def drawn(backend: TorchBackend, draws: Draws) -> StepOutput:
    """Run the step of the four prompts."""
    return backend.step(rows_of(backend, *PROMPTS), draws).collect()


def draws_of(*kinds: partial[SlotSampling], masks: Masks | None = None) -> Draws:
    opened = tuple(
        (slot, kind(np.array(PROMPTS[slot], np.int32), len(PROMPTS[slot]), seed=7 + slot))
        for slot, kind in enumerate(kinds)
    )
    slots = np.arange(len(kinds), dtype=np.int32)
    return Draws((), opened, slots, slots, masks=masks)


def both() -> tuple[TorchBackend, CudaBackend]:
    return tiny.make_backend(FULL, 16, 4), make_backend(FULL, 16, 4)


def assert_equal(found: StepOutput, expected: StepOutput) -> None:
    assert found.tokens == expected.tokens
    assert found.failures == expected.failures
    for mine, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert mine.slot == other.slot
        for name in ("token_ids", "logprobs", "ranks"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))


@pytest.mark.parametrize(
    "kinds",
    [
        *((GREEDY,) * 4, (WARM,) * 4, (FILTERED,) * 4, RULED),
        *((TOLD, WARM, FILTERED, GREEDY), (CHAINED, PENALISED, WARM, FORBIDDEN)),
    ],
    ids=("greedy", "warm", "filtered", "ruled", "mixed", "chained"),
)
def test_the_device_draws_the_references_tokens(kinds: tuple[partial[SlotSampling], ...]) -> None:
    """Slots of one kind, and of all kinds, whose rows are drawn on both sides of the bus."""
    expected, found = (drawn(each, draws_of(*kinds)) for each in both())
    assert_equal(found, expected)


def masks_of(rng: np.random.Generator, num_rows: int) -> Masks:
    words = rng.integers(0, 2**32, (num_rows, -(-VOCABULARY // 32)), np.uint32)
    return Masks(words).set_ready()


def test_masks_hold_on_the_device() -> None:
    for kinds in ((GREEDY, WARM, WARM, GREEDY), (TOLD, WARM, FILTERED, GREEDY), RULED):
        outputs = []
        for backend in both():
            masks = masks_of(np.random.default_rng(1), 4)
            outputs.append(drawn(backend, draws_of(*kinds, masks=masks)))
        assert_equal(outputs[1], outputs[0])


def test_a_mask_without_tokens_fails_its_slot_alone() -> None:
    words = np.full((4, 2), 2**32 - 1, np.uint32)
    words[1] = 0
    for kinds in ((GREEDY,) * 4, (WARM, WARM, FILTERED, TOLD)):
        outputs = [drawn(each, draws_of(*kinds, masks=Masks(words).set_ready())) for each in both()]
        assert outputs[1].failures == ((1, NO_TOKEN_LEFT),)
        assert_equal(outputs[1], outputs[0])


def test_logits_that_are_not_finite_fail_their_slot_alone() -> None:
    expected = drawn(make_backend(FULL, 16, 4), draws_of(GREEDY, WARM, GREEDY, WARM))
    backend = make_backend(FULL, 16, 4)
    right = backend._outputs

    def poisoned(batch: object) -> object:
        outputs = right(batch)  # type: ignore[arg-type]
        assert outputs is not None
        outputs.logits[2].fill_(float("nan"))
        return outputs

    backend._outputs = poisoned  # type: ignore[method-assign,assignment]
    found = drawn(backend, draws_of(GREEDY, WARM, GREEDY, WARM))
    assert found.failures == ((2, NOT_FINITE),)
    assert [found.tokens[slot] for slot in (0, 2)] == [expected.tokens[0], (0,)]


def test_rules_that_leave_no_token_fail_their_slot_alone() -> None:
    nothing = partial(FORBIDDEN, allowed=np.array([3], np.int32))
    outputs = [drawn(each, draws_of(WARM, nothing, GREEDY, PENALISED)) for each in both()]
    assert outputs[1].failures == ((1, NO_TOKEN_LEFT),)
    assert_equal(outputs[1], outputs[0])


def test_numbers_that_might_overflow_are_left_to_the_host() -> None:
    """The reference computes with infinities, which a device takes for a fault of the model."""
    extreme = partial(SlotSampling, temperature=0.9, repetition=1e-38)
    outputs = [drawn(each, draws_of(extreme, WARM, GREEDY, WARM)) for each in both()]
    assert not outputs[0].failures
    assert_equal(outputs[1], outputs[0])


@pytest.mark.parametrize(
    "kinds",
    [(WARM, GREEDY), (FILTERED, PENALISED), (FORBIDDEN, FILTERED)],
    ids=("plain", "penalised", "forbidden"),
)
def test_accepted_drafts_are_those_of_the_reference(
    kinds: tuple[partial[SlotSampling], ...],
) -> None:
    """The rows of drafts are drawn at once, each with the noise of its own position."""
    expected = drawn(tiny.make_backend(FULL, 16, 4), draws_of(*kinds))
    following = []
    for backend in both():
        draws = draws_of(*kinds)
        drawn(backend, draws)
        first, second = ([*PROMPTS[i], *expected.tokens[i]] for i in (0, 1))
        batch = rows_of(backend, [*first, 1, 2], [*second, 3])
        rows = np.array([len(first) - 1, len(first), len(first) + 1], np.int32)
        others = np.array([len(first) + 2 + len(second) - 1, len(first) + 2 + len(second)])
        batch = batch._replace(logits_rows=np.concatenate((rows, others)).astype(np.int32))
        slots = np.array([0, 1], np.int32)
        verified = Draws(
            *((), (), slots, np.array([0, 3], np.int32)),
            num_drafts=np.array([2, 1], np.int32),
            drafts=np.array([1, 2, 3], np.int32),
        )
        following.append(backend.step(batch, verified).collect())
    assert_equal(following[1], following[0])


def test_the_rows_of_a_tree_have_the_noise_of_their_depth() -> None:
    """Two drafts follow the same token; the row of the second one is not two tokens further."""
    probe, slot = tiny.make_backend(FULL, 16, 4), np.zeros(1, np.int32)
    text = [*PROMPTS[0], *drawn(probe, draws_of(WARM)).tokens[0]]
    ((right,),) = probe.step(rows_of(probe, text), Draws((), (), slot, slot)).collect().tokens
    drafts = [(right + 1) % VOCABULARY, right]
    outputs = []
    for backend in both():
        drawn(backend, draws_of(WARM))
        rows = np.arange(len(text) - 1, len(text) + 2, dtype=np.int32)
        batch = rows_of(backend, [*text, *drafts])._replace(logits_rows=rows)
        draws = Draws(
            *((), (), slot, slot),
            num_drafts=np.array([2], np.int32),
            drafts=np.array(drafts, np.int32),
            parents=np.zeros(2, np.int32),
        )
        outputs.append(backend.step(batch, draws).collect())
    assert len(outputs[0].tokens[0]) == 2
    assert_equal(outputs[1], outputs[0])


@pytest.mark.parametrize("most", [1, 2 * VOCABULARY])
def test_noise_that_is_made_in_parts_is_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = drawn(make_backend(FULL, 16, 4), draws_of(*(WARM,) * 4))
    monkeypatch.setattr(sampler, "MOST_AT_ONCE", most)
    assert drawn(make_backend(FULL, 16, 4), draws_of(*(WARM,) * 4)).tokens == expected.tokens


def test_a_decode_step_waits_once_and_uploads_from_pinned_memory() -> None:
    """Whatever is drawn where: one fetch ends the step, and nothing before it waits."""
    backend = make_backend(FULL, 16, 4)
    log = accelerator_of(backend).log
    kinds = (WARM, GREEDY, FILTERED, TOLD)
    log.clear()
    drawn(backend, draws_of(*kinds))
    first = [note.what for note in log]
    assert first.count("fetch") == 1
    assert {*first} == {"upload", "fetch"}
    log.clear()
    slots = np.arange(4, dtype=np.int32)
    batch = rows_of(backend, [30], [31], [32], [33])
    backend.step(batch, Draws((), (), slots, slots)).collect()
    # The batch; the draws; which rows are fetched.
    assert [note.what for note in log] == ["upload", "upload", "upload", "fetch"]
    assert all(note.is_in_step for note in log)


@pytest.mark.parametrize(
    "kinds",
    [(WARM, GREEDY, WARM, GREEDY), (FILTERED,) * 4, RULED],
    ids=("plain", "filtered", "ruled"),
)
def test_most_rows_bring_tokens_to_the_host_and_no_logits(
    kinds: tuple[partial[SlotSampling], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend(FULL, 16, 4)
    sizes = []
    fetch = accelerator_of(backend).fetch

    def seen(tensors: list[object]) -> list[object]:
        sizes.append(sum(each.nbytes for each in tensors))  # type: ignore[attr-defined]
        return fetch(tensors)  # type: ignore[arg-type,return-value]

    monkeypatch.setattr(accelerator_of(backend), "fetch", seen)
    drawn(backend, draws_of(*kinds))
    assert sizes == [4 * 8]


@pytest.mark.parametrize("kind", [WARM, FILTERED, FORBIDDEN], ids=("warm", "filtered", "forbidden"))
def test_a_step_takes_no_more_than_was_measured_for_the_largest(
    kind: partial[SlotSampling],
) -> None:
    """The forward pass is measured; what draws take with masks is computed."""
    backend = make_backend(FULL, 16, 4)
    size = StepSize(
        rows=sum(map(len, PROMPTS)), wanted_rows=4, sequences=4, positions=8, hidden=16, ffn=24,
        heads=2, kv_heads=1, head_dim=8, vocabulary=VOCABULARY,
    )  # fmt: skip
    reserved = backend.reserve(size, 0)
    assert reserved < backend.reserve(structs.replace(size, rows=256), 0)
    backend.make_cache(16)
    before = accelerator_of(backend).forget_peak()
    drawn(backend, draws_of(*(kind,) * 4, masks=masks_of(np.random.default_rng(1), 4)))
    assert 0 < accelerator_of(backend).peak_bytes() - before <= reserved
