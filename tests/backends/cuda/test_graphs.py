"""Decode steps as graphs: what a capture refuses, what a replay computes, and what it costs."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.backends.base import Ints
from octavo.backends.cuda.fake.accelerator import FakeAccelerator
from octavo.backends.cuda.fake.tensor import DeviceError
from octavo.backends.cuda.graph_batch import FrozenError, NoHost, operation_refusal
from octavo.backends.select import NoBackendError
from octavo.backends.step import LAST_SAMPLE, Draws, HostBatch, Masks, Pending, StepOutput
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Context, ContextAttention, Linear, Part, RMSNorm
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.llama import Llama
from octavo.program.listing import Instruction, Op
from tests.backends.cuda.on_fake import (
    SIZE,
    CapturingBackend,
    WholeSpans,
    accelerator_of,
    made,
    make_capturing,
)
from tests.backends.cuda.steps import rows_of
from tests.backends.cuda.test_fake import WAITS, small
from tests.backends.cuda.test_steps import (
    FILTERED,
    GREEDY,
    PROMPTS,
    RULED,
    TOLD,
    WARM,
    assert_equal,
    draws_of,
    masks_of,
)
from tests.runner import tiny
from tests.runner.tiny import FULL, VOCABULARY, RandomWeights, convolving, make_spec

BLOCKS = 64
KINDS = (WARM, GREEDY, WARM, WARM)
MIXED = (WARM, GREEDY, FILTERED, TOLD)
FILTERS = (FILTERED, GREEDY, WARM, FILTERED)


@pytest.fixture
def accelerator() -> FakeAccelerator:
    return FakeAccelerator()


def test_a_replay_computes_with_what_the_memory_holds_then(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        x, total = small(accelerator), torch.zeros(2, 3, device=accelerator.device)

        def run() -> Tensor:
            total.add_(x)
            return torch.cat((x * 2, x.t().reshape(2, 3).relu()))

        graph, made = accelerator.capture(run)
        (before,) = accelerator.fetch([total])
        np.testing.assert_array_equal(before, 0)  # nothing is done while it is captured
        for step in range(1, 3):
            x.fill_(step)
            graph.replay()
            found, sums = accelerator.fetch([made, total])
            assert found[0, 0] == 2 * step
            assert found[-1, -1] == step
            assert sums[0, 0] == (1 if step == 1 else 3)


def test_results_mean_nothing_before_the_replay(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        x = small(accelerator)
        _, made = accelerator.capture(lambda: x + 1)
        (found,) = accelerator.fetch([made])
    assert np.isnan(found).all()


@pytest.mark.parametrize("name", WAITS)
def test_a_capture_waits_for_nothing(accelerator: FakeAccelerator, name: str) -> None:
    """Outside of a step too, where a wait is allowed otherwise."""
    with accelerator.working():
        x = small(accelerator)
        with pytest.raises(DeviceError, match="waits for the device while a graph is captured"):
            accelerator.capture(lambda: WAITS[name](x))
        WAITS[name](x)  # the capture has ended


ILLEGAL: dict[str, tuple[Callable[[FakeAccelerator, Tensor], Any], str]] = {
    "a pageable upload": (lambda a, x: torch.ones(3).to(a.device), "are uploaded while"),
    "a pinned upload": (lambda a, x: a.upload([np.ones(3)]), "are uploaded while"),
    "a copy into its memory": (lambda a, x: x.copy_(torch.ones(2, 3)), "are uploaded while"),
    "a fetch": (lambda a, x: a.fetch([x]), "fetches while"),
    "another capture": (lambda a, x: a.capture(lambda: x + 1), "while another one is"),
    "a tensor of the host": (lambda a, x: x + torch.ones(3), "is on the host"),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_what_no_capture_may_do_is_refused(accelerator: FakeAccelerator, what: str) -> None:
    run, message = ILLEGAL[what]
    with accelerator.working():
        x = small(accelerator)
        with pytest.raises(DeviceError, match=message):
            accelerator.capture(lambda: run(accelerator, x))


def test_a_replay_within_a_capture_is_refused(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        x = small(accelerator)
        graph, _ = accelerator.capture(lambda: x + 1)
        with pytest.raises(DeviceError, match="is replayed while another one"):
            accelerator.capture(graph.replay)


def test_graphs_share_memory_which_no_step_may_let_grow(accelerator: FakeAccelerator) -> None:
    with accelerator.working():
        x = torch.zeros(1000, device=accelerator.device)
        before = accelerator.memory().available
        graph, _ = accelerator.capture(lambda: x + 1)
        assert before - accelerator.memory().available == 4000
    with accelerator.step():
        other, _ = accelerator.capture(lambda: x[:500] * 2, graph)
        assert before - accelerator.memory().available == 4000
        with pytest.raises(DeviceError, match="takes 8000 bytes more"):
            accelerator.capture(lambda: (x * 2) + (x * 3), graph)
        with pytest.raises(DeviceError, match="takes 4000 bytes more"):
            accelerator.capture(lambda: x + 1)
    del graph
    assert before - accelerator.memory().available == 4000
    other.replay()
    del other
    assert accelerator.memory().available == before


def test_pinned_memory_that_is_written_too_early_is_found(accelerator: FakeAccelerator) -> None:
    buffer = accelerator.pinned(64)
    with accelerator.step():
        there = torch.zeros(64, dtype=torch.uint8, device=accelerator.device)
        there.copy_(buffer, non_blocking=True)
        accelerator.fetch([there])
        buffer.numpy()[:] += 1  # after the wait
        there.copy_(buffer, non_blocking=True)
        buffer.numpy()[3] += 1
        with pytest.raises(DeviceError, match="changed before its copy had ended"):
            accelerator.fetch([there])


def tables_of(backend: TorchBackend, count: int, width: int) -> tuple[Ints, ...]:
    """Return the tables of the first sequences, each with twelve blocks of its own in a group."""
    assert backend._layout is not None
    table = np.arange(1, 1 + 12 * len(PROMPTS), dtype=np.int32).reshape(-1, 12)
    groups = range(len(backend._layout.groups))
    return tuple(table[:count, :width] + np.int32(table.size * group) for group in groups)


def decoded(backend: TorchBackend, tokens: Sequence[int], ends: Sequence[int]) -> HostBatch:
    """Make the batch of a token at the end of each of the first sequences."""
    positions = np.array(ends[: len(tokens)], np.int32)
    width = int(positions.max()) // backend._block_size + 1  # no wider than this step needs
    batch = rows_of(backend, *([token] for token in tokens))
    return batch._replace(positions=positions, tables=tables_of(backend, len(tokens), width))


def outputs_of(
    backend: TorchBackend,
    kinds: Sequence[Any],
    counts: Sequence[int],
    masks: Callable[[int], Masks] | None = None,
) -> list[StepOutput]:
    """Run the prompts, and then a step for each of these numbers of sequences."""
    batch = rows_of(backend, *PROMPTS)._replace(tables=tables_of(backend, len(PROMPTS), 2))
    outputs = [backend.step(batch, draws_of(*kinds)).collect()]
    last = [tokens[-1] for tokens in outputs[0].tokens]
    ends = [len(prompt) for prompt in PROMPTS]
    for count in counts:
        slots = np.arange(count, dtype=np.int32)
        draws = Draws((), (), slots, slots, masks=None if masks is None else masks(count))
        batch = decoded(backend, last[:count], ends)
        outputs.append(backend.step(batch, draws).collect())
        for place, tokens in enumerate(outputs[-1].tokens):
            last[place] = tokens[-1]
            ends[place] += 1
    return outputs


def reference() -> TorchBackend:
    return tiny.make_backend(FULL, BLOCKS, 4)


COUNTS = [4] * 9 + [1, 2, 4, 3, 4]


@pytest.mark.parametrize("kinds", [KINDS, MIXED, RULED], ids=("plain", "mixed", "ruled"))
def test_replayed_steps_have_the_references_tokens(kinds: Sequence[Any]) -> None:
    """Contexts grow into new blocks, and the number of sequences changes."""
    backend = make_capturing(FULL, BLOCKS, 4)
    for found, expected in zip(
        outputs_of(backend, kinds, COUNTS), outputs_of(reference(), kinds, COUNTS), strict=True
    ):
        assert_equal(found, expected)
    replays = [note for note in accelerator_of(backend).log if note.what == "replay"]
    assert len(replays) == len(COUNTS)


@pytest.mark.parametrize(
    "kinds", [KINDS, (GREEDY,) * 4, FILTERS], ids=("warm", "greedy", "filtered")
)
def test_steps_that_continue_each_other_have_the_references_tokens(kinds: Sequence[Any]) -> None:
    """The device has their tokens; one step between them is of other slots."""
    results = []
    for backend in (make_capturing(FULL, BLOCKS, 4), reference()):
        outputs = outputs_of(backend, kinds, [4])
        slots = np.arange(4, dtype=np.int32)
        draws = Draws((), (), slots, slots)
        ends = [len(prompt) + 1 for prompt in PROMPTS]
        for step in range(6):
            count = 3 if step == 3 else 4
            batch = decoded(backend, [LAST_SAMPLE] * count, ends)
            some = draws if count == 4 else Draws((), (), slots[:3], slots[:3])
            outputs.append(backend.step(batch, some).collect())
            ends = [end + 1 if place < count else end for place, end in enumerate(ends)]
        results.append(outputs)
        if isinstance(backend, CapturingBackend):
            assert backend._steady is not None
    for mine, other in zip(*results, strict=True):
        assert_equal(mine, other)


def test_a_steady_step_that_fails_in_one_row_goes_on_in_the_others() -> None:
    backend = make_capturing(FULL, BLOCKS, 4)
    outputs_of(backend, KINDS, [4])
    slots = np.arange(4, dtype=np.int32)
    draws = Draws((), (), slots, slots)
    ends = [len(prompt) + 1 for prompt in PROMPTS]
    tokens: list[tuple[tuple[int, ...], ...]] = []
    for poisoned in (False, False, True, False):
        batch = decoded(backend, [LAST_SAMPLE] * 4, ends)
        if poisoned:  # a key in a block of the third sequence alone
            buffers = backend._buffers
            assert buffers is not None
            with backend._home.step():
                buffers.layers[0][0].keys[int(batch.tables[0][2, 0])].fill_(float("nan"))
        output = backend.step(batch, draws).collect()
        assert [slot for slot, _ in output.failures] == ([2] if poisoned or tokens[2:] else [])
        tokens.append(output.tokens)
        ends = [end + 1 for end in ends]
    assert all(0 <= each[slot][0] < VOCABULARY for each in tokens for slot in (0, 1, 3))


def in_flight(
    backend: TorchBackend, depth: int, counts: Sequence[int], freed: Sequence[int] = ()
) -> list[StepOutput]:
    """Run steps that are submitted before those before them are collected, but for `depth`."""
    outputs = outputs_of(backend, KINDS, [4])
    slots = [np.arange(count, dtype=np.int32) for count in range(5)]
    ends, waiting = [len(prompt) + 1 for prompt in PROMPTS], deque[Pending]()
    for step, count in enumerate(counts):
        draws = Draws(
            tuple(freed) if step == len(counts) - 1 else (), (), slots[count], slots[count]
        )
        batch = decoded(backend, [LAST_SAMPLE] * count, ends)
        waiting.append(backend.step(batch, draws))
        ends = [end + 1 if place < count else end for place, end in enumerate(ends)]
        if len(waiting) == depth:
            backend._thread.submit(int).result()  # all of them have begun, whatever the load
            outputs.append(waiting.popleft().collect())
    outputs.extend(each.collect() for each in waiting)
    return outputs


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_in_flight_have_the_references_tokens(depth: int) -> None:
    """The device alone knows their tokens; the last one frees a slot, and has fewer rows."""
    counts = [4] * 6 + [2, 2, 3]
    backend = make_capturing(FULL, BLOCKS, 4)
    found = in_flight(backend, depth, counts, freed=(3,))
    for mine, other in zip(found, in_flight(reference(), 1, counts, freed=(3,)), strict=True):
        assert_equal(mine, other)
    what = [note.what for note in accelerator_of(backend).log if note.what in ("replay", "fetch")]
    is_begun_early = any(pair == ("replay", "replay") for pair in pairwise(what))
    assert is_begun_early == (depth > 1)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_row_that_fails_among_steps_in_flight_fails_alone(depth: int) -> None:
    outputs = []
    for is_poisoned in (True, False):
        backend = make_capturing(FULL, BLOCKS, 4)
        begun = backend._continue
        calls = itertools.count()

        def poisoned(*given: Any, begun: Any = begun, at: Any = backend, calls: Any = calls) -> Any:
            if next(calls) == 2:
                at._buffers.layers[0][0].keys[1 + 2 * 12].fill_(float("nan"))
            return begun(*given)

        if is_poisoned:
            backend._continue = poisoned  # type: ignore[method-assign,assignment]
        outputs.append(in_flight(backend, depth, [4] * 6))
    for step, (found, expected) in enumerate(zip(*outputs, strict=True)):
        assert [slot for slot, _ in found.failures] == ([2] if step >= 5 else [])
        others = [place for place in range(4) if place != 2 or step < 5]
        assert [found.tokens[n] for n in others] == [expected.tokens[n] for n in others]


def test_masks_hold_over_replayed_steps() -> None:
    def masks(count: int) -> Masks:
        return masks_of(np.random.default_rng(count), count)

    backend = make_capturing(FULL, BLOCKS, 4)
    found, expected = (
        outputs_of(each, MIXED, [4, 4, 2, 4], masks) for each in (backend, reference())
    )
    for mine, other in zip(found, expected, strict=True):
        assert_equal(mine, other)


def test_graphs_are_captured_when_they_are_needed_and_once() -> None:
    backend = make_capturing(FULL, BLOCKS, 4)
    graphs = backend._graphs
    assert graphs is not None
    assert list(graphs.captured) == [24]  # 20 sequences in tiles of 8 rows
    outputs_of(backend, KINDS, [4, 4, 3])
    assert list(graphs.captured) == [24, 8]
    captures = [note for note in accelerator_of(backend).log if note.what == "capture"]
    assert [note.is_in_step for note in captures] == [False, True]


def test_a_replayed_step_uploads_once_or_twice_and_waits_once() -> None:
    """The fixed part of the inputs, and the tables if a sequence has a new block."""
    backend = make_capturing(FULL, BLOCKS, 4)
    log = accelerator_of(backend).log
    outputs_of(backend, KINDS, [4])
    slots = np.arange(4, dtype=np.int32)
    ends = [len(prompt) + 1 for prompt in PROMPTS]
    seen = []
    for moved in (0, 0, 8):
        log.clear()
        batch = decoded(backend, [1, 2, 3, 4], [end + moved for end in ends])
        backend.step(batch, Draws((), (), slots, slots)).collect()
        seen.append([note.what for note in log])
    assert seen[1] == ["upload", "replay", "fetch"]
    assert seen[2] == ["upload", "upload", "replay", "fetch"]


def test_other_steps_are_computed_without_graphs() -> None:
    backend = make_capturing(FULL, BLOCKS, 4)
    graphs = backend._graphs
    assert graphs is not None
    batch = decoded(backend, [1, 2], [3, 4])
    slots = np.arange(2, dtype=np.int32)
    draws = Draws((), (), slots, slots)
    assert graphs.takes(batch, draws)
    assert not graphs.takes(rows_of(backend, [1, 2], [3]), draws)
    assert not graphs.takes(batch._replace(hidden_rows=slots), draws)
    assert not graphs.takes(batch._replace(types=slots), draws)
    assert not graphs.takes(batch._replace(adapters=np.zeros(2, np.int32)), draws)
    assert not graphs.takes(batch._replace(positions=np.array([3, 128], np.int32)), draws)
    assert not graphs.takes(batch, draws._replace(num_drafts=np.array([0, 1], np.int32)))
    many = rows_of(backend, *([3] for _ in range(21)))
    assert not graphs.takes(many, draws)


def test_a_capture_that_a_card_refuses_ends_the_start_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(FakeAccelerator, "capture", refused)
    with pytest.raises(NoBackendError, match=r"not permitted when .*--enforce-eager"):
        make_capturing(FULL, BLOCKS, 4)


def test_what_graphs_took_while_they_were_measured_is_free_again() -> None:
    model, layout = made(FULL)
    backend = CapturingBackend(FakeAccelerator())
    backend.prepare(model, layout, 4)
    account = accelerator_of(backend)
    assert backend.reserve(SIZE, 0) > 0
    before = account.forget_peak()
    backend.make_cache(BLOCKS)
    grown = account.forget_peak() - before
    backend.make_cache(BLOCKS)
    assert account.forget_peak() - before == grown
    assert before < SIZE.sequences * SIZE.vocabulary * 4  # of the logits of one graph


def test_a_step_takes_no_more_memory_than_was_reserved_with_its_graphs() -> None:
    model, layout = made(FULL)
    backend = CapturingBackend(FakeAccelerator())
    backend.prepare(model, layout, 4)
    reserved = backend.reserve(SIZE, 0)
    free = accelerator_of(backend).forget_peak()
    backend.make_cache(BLOCKS)
    cache = BLOCKS * backend.block_bytes(0)
    outputs_of(backend, KINDS, [4, 4, 2])
    assert 0 < accelerator_of(backend).peak_bytes() - free - cache <= reserved


def test_a_program_that_asks_the_host_has_no_graphs() -> None:
    assert make_capturing(FULL, 8, 4, convolving)._graphs is None


def test_keys_that_are_kept_for_a_drafter_are_not_captured() -> None:
    """A graph's rows that are none would write theirs to the last block, which others use."""
    hidden, head = 16, 8
    attend = ContextAttention(2, 1, head, scale=1.0, window=None)
    reader = (Linear(hidden, (Part("k", head), Part("v", head))), attend)
    context = Context((1,), hidden, RMSNorm(hidden, 1e-6), [reader])
    model, drafter = Llama(make_spec(FULL)), Llama(make_spec((None,)))
    layout = place_layers(model, drafter)
    attend.place = (0, len(FULL))  # in place of the drafter's own layer
    backend = CapturingBackend(FakeAccelerator())
    bind(model, backend, RandomWeights())
    square = TorchMatrix(torch.ones(hidden, hidden), False)  # of the size of both products
    context.norm.weight = torch.ones(hidden)
    context.projections[0].weight = reader[0].weight = square
    backend.prepare(model, layout, 4, features=context)
    assert backend._graph_refusal() == "KeepKV depends on the rows of each step"


@pytest.mark.parametrize("op", ["Keep", "KeepKV", "Convolve", "Recall", "Given", "Relay"])
def test_what_is_not_known_to_hold_for_any_rows_is_not_captured(op: Op) -> None:
    assert operation_refusal([Instruction(op)]) is not None


def host_number(patch: pytest.MonkeyPatch) -> None:
    """Plant a number of the step's batch on the host, which is refused when it is captured."""

    def wrong(batch: WholeSpans, at: Tensor) -> None:
        right(batch, at)
        batch.ends = torch.full_like(batch.ends, int(batch.host.positions[0]))

    right = WholeSpans.prepare
    patch.setattr(WholeSpans, "prepare", wrong)


def test_a_number_of_the_host_is_refused_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    host_number(monkeypatch)
    with pytest.raises(FrozenError, match="positions of a step is read"):
        make_capturing(FULL, BLOCKS, 4)
    assert not len(NoHost().adapters)
