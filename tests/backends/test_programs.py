"""A second model over the same slots proposes tokens, and no text depends on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import NO_ROWS, Ahead, Draws, HostBatch, SlotSampling, StepOutput
from octavo.layers import DraftBlock
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from tests.backends.both import BACKENDS, AnyBackend, New
from tests.backends.native.test_memory import SIZE
from tests.runner.tiny import FULL, VOCABULARY, RandomWeights, make_spec

BLOCK_SIZE, WIDTH, STEPS = 16, 6, 4
KINDS: dict[str, New] = {
    **BACKENDS,
    "int8": lambda: NativeBackend(NativeOptions(kv_dtype="int8", weights="int8", num_threads=1)),
}
PROMPTS = ([3, 1, 4, 1, 5, 9, 2], [7, 7, 8])
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.8, "seed": 5},
    "filtered": {"temperature": 1.1, "seed": 6, "top_k": 9, "top_p": 0.9},
    "ruled": {"temperature": 0.9, "seed": 7, "frequency": 0.7, "repetition": 1.3},
}


@pytest.fixture(params=KINDS)
def new(request: pytest.FixtureRequest) -> New:
    """A maker of backends of one kind."""
    return KINDS[request.param]


def make(new: New, seed: int | None) -> AnyBackend:
    """Make a backend whose second model has the weights of this seed; None: it has one alone."""
    model, backend = Llama(make_spec(FULL)), new()
    drafter = None if seed is None else Llama(make_spec((None,) if seed else FULL))
    layout = place_layers(model, drafter)
    bind(model, backend, RandomWeights())
    backend.prepare(model, layout, BLOCK_SIZE)
    if drafter is not None:
        bind(drafter, backend, RandomWeights(seed or 0))
        backend.add_program(drafter, "drafter")
    backend.make_cache(1 + WIDTH * len(layout.groups) * len(PROMPTS))
    return backend


class Texts:
    """Sequences on a backend, which take what is proposed as drafts."""

    def __init__(self, backend: AnyBackend, way: dict[str, Any], num_groups: int) -> None:
        self._backend = backend
        count = len(PROMPTS)
        blocks = 1 + np.arange(num_groups * count * WIDTH, dtype=np.int32)
        self._tables = tuple(blocks.reshape(num_groups, count, WIDTH))
        self._has_drafter = num_groups > 1
        self.known = [list(prompt) for prompt in PROMPTS]
        self._computed = [0] * count
        self._followed = [0] * count  # the rows of known tokens that the second model has
        self._opened = tuple(
            (slot, SlotSampling(np.array(prompt, np.int32), len(prompt), **way))
            for slot, prompt in enumerate(PROMPTS)
        )
        self.drafts: list[tuple[int, ...]] = [()] * count

    def step(self, *num_steps: int, follows: bool = True) -> StepOutput:
        """Compute what is known and the drafts, and ask for so many proposals for each.

        The second model computes what it lacks of the known tokens, or nothing at all.
        """
        new = [
            [*known[computed:], *drafts]
            for known, computed, drafts in zip(self.known, self._computed, self.drafts, strict=True)
        ]
        starts = np.cumsum([0, *map(len, new)]).astype(np.int32)
        positions = [range(c, c + len(rows)) for c, rows in zip(self._computed, new, strict=True)]
        firsts = [
            end - len(drafts) - 1 for end, drafts in zip(starts[1:], self.drafts, strict=True)
        ]
        slots = np.arange(len(new), dtype=np.int32)
        batch = HostBatch(
            np.concatenate(new).astype(np.int32),
            np.concatenate(positions).astype(np.int32),
            starts,
            self._tables,
            np.arange(starts[-1], dtype=np.int32),
            slots=slots,
        )
        written = [len(drafts[:-1]) for drafts in self.drafts]
        ahead = self._ahead(num_steps, written) if self._has_drafter and follows else None
        draws = Draws(
            (),
            self._opened,
            slots,
            np.array(firsts, np.int32),
            np.array([len(drafts) for drafts in self.drafts], np.int32),
            np.array([token for drafts in self.drafts for token in drafts], np.int32),
            ahead=ahead,
        )
        self._opened = ()
        output = self._backend.step(batch, draws).collect()
        self.drafts = list(output.proposals) or [()] * len(new)
        for slot, tokens in enumerate(output.tokens):
            known = len(self.known[slot])
            self._computed[slot] = known + len(tokens) - 1
            if self.drafts[slot]:
                self._followed[slot] = known + len(tokens)
            elif ahead is not None or self._followed[slot] == known:
                self._followed[slot] = known + min(len(tokens) - 1, written[slot])
            self.known[slot] += tokens
        return output

    def _ahead(self, num_steps: tuple[int, ...], written: list[int]) -> Ahead:
        """Return what the second model lacks of the known tokens, and what it proposes."""
        rows = list(zip(self.known, self._followed, strict=True))
        return Ahead(
            "drafter",
            np.array(num_steps, np.int32),
            np.array(written, np.int32),
            np.concatenate([known[first:] for known, first in rows]).astype(np.int32),
            np.concatenate([range(first, len(known)) for known, first in rows]).astype(np.int32),
            np.cumsum([0, *(len(known) - first for known, first in rows)]).astype(np.int32),
        )


def written(new: New, way: dict[str, Any], count: int) -> list[list[int]]:
    """Return the texts without a second model, with so many tokens behind each prompt."""
    texts = Texts(make(new, None), way, 1)
    for _ in range(count):
        texts.step()
    return texts.known


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_program_with_the_same_weights_is_never_wrong(new: New, way: dict[str, Any]) -> None:
    texts = Texts(make(new, 0), way, 2)
    assert [len(proposed) for proposed in texts.step(STEPS, 2).proposals] == [STEPS, 2]
    for _ in range(3):
        drafts = texts.drafts
        output = texts.step(STEPS, 2)
        assert [tokens[:-1] for tokens in output.tokens] == drafts
    expected = written(new, way, 1 + 3 * (STEPS + 1))
    for text, whole in zip(texts.known, expected, strict=True):
        assert text == whole[: len(text)]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_text_depends_on_no_other_program(new: New, way: dict[str, Any]) -> None:
    """Wrong proposals are refused, and the text is the one without a second model."""
    texts, num_refused = Texts(make(new, 3), way, 2), 0
    texts.step(STEPS, STEPS)
    for _ in range(8):
        num_drafts = len(texts.drafts[0])
        num_refused += num_drafts + 1 - len(texts.step(STEPS, 1).tokens[0])
    assert num_refused
    expected = written(new, way, 9 * (STEPS + 1))
    for text, whole in zip(texts.known, expected, strict=True):
        assert text == whole[: len(text)]


def test_what_is_proposed_is_what_that_model_writes(new: New) -> None:
    """The KV is right behind drafts that were refused, and behind steps without proposals.

    So it is where the model has done nothing in some steps, and computes what it lacks at once.
    """
    texts = Texts(make(new, 3), WAYS["warm"], 2)
    for num_steps in ((STEPS, 0), (0, 3), (), (STEPS, 2), (1, STEPS), (), (), (0, 1), (2, 0)):
        output = texts.step(*num_steps, follows=bool(num_steps))
        assert tuple(map(len, output.proposals)) == num_steps
        assert (output.ahead_seconds > 0) == bool(num_steps)
        if not num_steps:
            continue
        for known, proposed, prompt in zip(texts.known, output.proposals, PROMPTS, strict=True):
            assert list(proposed) == alone(new, known, len(prompt), len(proposed))


def alone(new: New, known: list[int], num_prompt: int, count: int) -> list[int]:
    """Return what the drafter writes behind a text if it computes all of it at once."""
    model, backend = Llama(make_spec((None,))), new()
    layout = place_layers(model)
    bind(model, backend, RandomWeights(3))
    backend.prepare(model, layout, BLOCK_SIZE)
    backend.make_cache(1 + WIDTH)
    tables = (np.arange(1, 1 + WIDTH, dtype=np.int32)[None],)
    slot, tokens = np.zeros(1, np.int32), list(known)
    sampling = SlotSampling(np.array(known, np.int32), num_prompt, **WAYS["warm"])
    opened: tuple[tuple[int, SlotSampling], ...] = ((0, sampling),)
    for _ in range(count):
        rows = np.arange(len(tokens), dtype=np.int32)
        ids, ends = np.array(tokens, np.int32), np.array([0, len(tokens)], np.int32)
        batch = HostBatch(ids, rows, ends, tables, rows[-1:], slots=slot)
        tokens += backend.step(batch, Draws((), opened, slot, slot)).collect().tokens[0]
        opened = ()
    return tokens[len(known) :]


def test_a_sample_that_failed_or_has_processors_gets_no_proposals(
    new: New,
) -> None:
    texts = Texts(make(new, 0), {"allowed": NO_ROWS}, 2)
    output = texts.step(STEPS, STEPS)
    assert len(output.failures) == len(PROMPTS)
    assert output.proposals == ((), ())
    texts = Texts(make(new, 0), {"processors": (lambda prompt, output, row: row,)}, 2)
    output = texts.step(STEPS, STEPS)
    assert not output.failures
    assert output.proposals == ((), ())


def test_what_is_asked_must_fit(new: New) -> None:
    model, backend = Llama(make_spec(FULL)), new()
    bind(model, backend, RandomWeights())
    backend.prepare(model, place_layers(model), BLOCK_SIZE)
    with pytest.raises(ValueError, match="'drafter'"):
        backend.add_program(model, "drafter")
    again = make(new, 0)
    with pytest.raises(ValueError, match="'drafter'"):
        again.add_program(model, "drafter")
    other = Llama(structs.replace(make_spec(FULL), vocabulary=VOCABULARY + 1))
    again = new()
    bind(model, again, RandomWeights())
    again.prepare(model, place_layers(model, other), BLOCK_SIZE)
    with pytest.raises(ValueError, match=str(VOCABULARY + 1)):
        again.add_program(other, "drafter")


def test_a_block_proposes_no_more_than_its_rows(new: New) -> None:
    """No rows of known tokens are computed for it: it lacks nothing."""
    for count, is_right in ((2, True), (3, False)):
        model, drafter, backend = Llama(make_spec(FULL)), Llama(make_spec((None,))), new()
        drafter.draft_block = DraftBlock(3, 5)
        layout = place_layers(model, drafter)
        for each in (model, drafter):
            bind(each, backend, RandomWeights())
        backend.prepare(model, layout, BLOCK_SIZE)
        backend.add_program(drafter, "drafter")
        backend.make_cache(1 + WIDTH * 2 * len(PROMPTS))
        texts = Texts(backend, {}, 2)
        texts._followed = [len(prompt) for prompt in PROMPTS]
        if is_right:
            assert list(map(len, texts.step(count, 1).proposals)) == [count, 1]
        else:
            with pytest.raises(ValueError, match="fewer tokens than it has rows"):
                texts.step(count, 1)


def test_the_largest_step_has_room_for_all_programs() -> None:
    """The native engine keeps memory for each of them."""
    alone, both = (make(BACKENDS["native"], seed).reserve(SIZE, 1 << 30) for seed in (None, 0))
    assert both > alone
