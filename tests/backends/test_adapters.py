"""Rows with adapters: what they compute, and that no other row's bits depend on them."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Bias, Pair, Whole
from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import (
    LAST_SAMPLE,
    NO_ROWS,
    Draws,
    HostBatch,
    NoAdaptersError,
    SlotSampling,
    batch_of_copies,
)
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.backend import TorchBackend
from octavo.models.kv_layout import place_layers
from tests.backends.adapted import MAX_RANK, SLOTS, Adapted, Text, native
from tests.backends.both import BACKENDS, New
from tests.backends.made_up_adapters import made_up_adapter, with_more
from tests.backends.native.tiny import EXACT

FAMILIES = [
    "LlamaForCausalLM",  # biases
    "Qwen3ForCausalLM",  # norms of queries and keys
    "Gemma2ForCausalLM",  # norms behind products, soft caps
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",  # products in parallel, with an activation
    "Qwen2MoeForCausalLM",  # attention and the shared expert
    "DeepseekV3ForCausalLM",
    "Lfm2ForCausalLM",
]
STEP = (Text(0, 0, 11, 1), Text(1, 0, 7), Text(2, 0, 5, 0), Text(3, 0, 1, 1), Text(4, 0, 1, 0))
NEXT = (Text(1, 7, 1), Text(0, 11, 1, 1), Text(2, 5, 3, 0), Text(3, 1, 1, 1))
NO_DRAWS = Draws((), (), NO_ROWS, NO_ROWS)


def two(made: Adapted) -> list[AdapterWeights]:
    """Make an adapter of pairs, and one that has magnitudes and biases too."""
    first, second = (made_up_adapter(made.model, seed) for seed in (1, 2))
    return [first, with_more(made.model, second, 3)]


def rows_of(texts: tuple[Text, ...], name: int) -> slice:
    """Return the rows of a sequence in a step."""
    first = sum(text.rows for text in texts[: [text.name for text in texts].index(name)])
    return slice(first, first + next(text.rows for text in texts if text.name == name))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_engine_says_what_the_reference_says(architecture: str) -> None:
    """Prompts and single rows of sequences with different adapters, and of one without."""
    reference = Adapted(TorchBackend(), architecture)
    engine = native(architecture)
    adapters = two(reference)
    for made in (reference, engine):
        made.fill(*adapters)
    bare = native(architecture, bare=True)
    for step in (STEP, NEXT):
        expected, found = reference.run(step).logits, engine.run(step).logits
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
        plain = bare.run([text._replace(slot=-1) for text in step]).logits
        assert np.abs(expected - plain).max() > 100 * np.abs(found - expected).max()


SHAPES: dict[str, dict[str, Any]] = {
    "parts that share 16 outputs": {"num_key_value_heads": 1},
    "a last panel of few gates": {"intermediate_size": 40},
    "inputs that fill no block": {"intermediate_size": 56, "hidden_size": 40, "head_dim": 8},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_projection_is_computed(shape: str) -> None:
    reference = Adapted(TorchBackend(), "MistralForCausalLM", **SHAPES[shape])
    engine = Adapted(
        NativeBackend(NativeOptions(**EXACT, num_threads=3)), "MistralForCausalLM", **SHAPES[shape]
    )
    for made in (reference, engine):
        made.fill(*two(reference))
    expected, found = reference.run(STEP).logits, engine.run(STEP).logits
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("weights", ["bf16", "int8", "int8-wide", "int4"])
def test_a_quantised_model_is_changed_as_its_floats_are(weights: str) -> None:
    """The error beside the reference is that of the weights, with adapters as without."""
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256}
    chosen: dict[str, Any] = {**EXACT, "weights": weights, "num_threads": 2}
    options = NativeOptions(**chosen)
    reference = Adapted(TorchBackend(), "MistralForCausalLM", **sizes)
    engine = Adapted(NativeBackend(options), "MistralForCausalLM", **sizes)
    for made in (reference, engine):
        made.fill(*two(reference), factor=4.0)
    bare = [text._replace(slot=-1) for text in STEP]
    plain, changed = reference.run(bare).logits, reference.run(STEP).logits
    error = np.abs(engine.run(bare).logits - plain).mean()
    error_with = np.abs(engine.run(STEP).logits - changed).mean()
    assert error_with < 1.5 * error
    assert np.abs(changed - plain).mean() > 4 * error_with


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
def test_rows_without_an_adapter_keep_their_bits(tier: str, weights: str) -> None:
    """Rows without one stand beside rows with adapters, or alone in an engine that has some."""
    bare = native(bare=True, instruction_set=tier, weights=weights)
    engine = native(instruction_set=tier, weights=weights)
    plain = tuple(text._replace(slot=-1) for text in STEP)
    expected = bare.run(plain)
    assert np.array_equal(engine.run(plain).logits, expected.logits)
    engine.fill(*two(engine))
    for found in (engine.run(plain), engine.run(STEP)):
        rows = rows_of(STEP, 1)
        assert np.array_equal(found.logits[rows], expected.logits[rows])
        assert np.array_equal(found.hidden[rows], expected.hidden[rows])
    assert not np.array_equal(engine.run(STEP).logits, expected.logits)


@pytest.mark.matrix
@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_depends_on_its_own_adapter_alone(tier: str, weights: str, threads: int) -> None:
    """Neither other rows' adapters, nor chunks, slots or threads change a bit of it."""
    alone = native(instruction_set=tier, weights=weights, num_threads=1)
    together = native(instruction_set=tier, weights=weights, num_threads=threads)
    adapters = two(alone)
    alone.fill(*adapters)
    together.fill(adapters[1], adapters[0], adapters[1])  # other slots
    expected = alone.run([Text(0, 0, 21, 1)])
    others = [Text(name, 0, 1 + name % 3, (-1, 0, 1, 2)[name % 4]) for name in range(1, 20)]
    for chunks in ((21,), (1, 13, 7)):
        first = 0
        for rows in chunks:
            found = together.run([*others[:9], Text(0, first, rows, 0), *others[9:]])
            at = sum(text.rows for text in others[:9])
            mine = slice(at, at + rows)
            assert np.array_equal(found.logits[mine], expected.logits[first : first + rows])
            assert np.array_equal(found.hidden[mine], expected.hidden[first : first + rows])
            first += rows


def test_every_instruction_set_adds_the_same_bits() -> None:
    """Products in bf16 alone depend on the tier, and this model has none."""
    logits = []
    for tier in _native.tiers():
        engine = native(instruction_set=tier)
        engine.fill(*two(engine))
        logits.append(engine.run(STEP).logits)
    assert all(np.array_equal(each, logits[0]) for each in logits)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_type_of_equal_numbers_changes_no_bit(name: str, dtype: str) -> None:
    """Made-up numbers are exact in every type of a file."""
    other = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    results = []
    for kind in (np.float32, other):
        made = Adapted(BACKENDS[name](), "LlamaForCausalLM")
        made.fill(*(made_up_adapter(made.model, seed, kind) for seed in (1, 2)))
        results.append(made.run(STEP).logits)
    assert np.array_equal(results[0], results[1])


def test_a_type_that_is_asked_for_is_kept() -> None:
    """A third is no number of bf16, so that the rounding shows."""
    engine = native()
    path = "blocks.0.attn.out"
    adapter = made_up_adapter(engine.model, 1, some=False)
    (pair,) = adapter.pairs[path]
    assert pair is not None
    thirds = Pair((pair.down / 3).astype(np.float32), pair.up, pair.scale)
    rounded = Pair(thirds.down.astype(ml_dtypes.bfloat16), pair.up, pair.scale)
    layout = place_layers(engine.model)
    logits = []
    for one, kept in ((thirds, "auto"), (rounded, "auto"), (thirds, "bfloat16")):
        settings = AdapterSettings(SLOTS, MAX_RANK, dtype=kept)
        engine.backend.prepare(engine.model, layout, 16, adapters=settings)
        engine.backend.make_cache(100)
        engine.fill(AdapterWeights({path: (one,)}, MAX_RANK))
        logits.append(engine.run([Text(0, 0, 5, 0)]).logits)
    assert not np.array_equal(logits[0], logits[1])
    assert np.array_equal(logits[1], logits[2])


@pytest.mark.parametrize("name", BACKENDS)
def test_the_factor_of_a_slot_scales_all_that_it_adds(name: str) -> None:
    made = Adapted(BACKENDS[name](), "LlamaForCausalLM")
    adapter = made_up_adapter(made.model, 1)
    halved = {
        path: tuple(None if pair is None else pair._replace(scale=pair.scale / 2) for pair in pairs)
        for path, pairs in adapter.pairs.items()
    }
    made.fill(adapter, factor=0.5)
    expected = made.run([Text(0, 0, 9, 0)]).logits
    made.fill(replace(adapter, pairs=halved))
    assert np.array_equal(made.run([Text(0, 0, 9, 0)]).logits, expected)


def test_parts_with_one_first_matrix_share_what_it_makes() -> None:
    """A file may have one pair for queries, keys and values together."""
    results = []
    for is_shared in (False, True):
        made = native()
        path = "blocks.0.attn.qkv"
        pairs = made_up_adapter(made.model, 5, some=False).pairs[path]
        down = made_up_adapter(made.model, 6, some=False).pairs[path][0]
        assert down is not None
        numbers = down.down
        ups = [pair.up[:, :1] @ np.ones((1, len(numbers)), np.float32) for pair in pairs if pair]
        shared = tuple(Pair(numbers if is_shared else numbers.copy(), up, 1.0) for up in ups)
        adapter = AdapterWeights({path: shared}, len(numbers))
        made.fill(adapter)
        (value,) = made.pack(adapter)
        results.append((made.run([Text(0, 0, 9, 0)]).logits, value.num_bytes))
    assert np.array_equal(results[0][0], results[1][0])
    assert results[1][1] < results[0][1]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_slot_changes_between_steps_in_flight(name: str) -> None:
    """Each step has the adapter that its own batch, or one before, has put into the slot."""
    made = Adapted(BACKENDS[name](), "LlamaForCausalLM")
    first, second = made.pack(*two(made))
    opened = tuple((slot, SlotSampling(np.zeros(1, np.int32), 1)) for slot in range(4))
    made.backend.step(made.batch([Text(9, 0, 1)]), NO_DRAWS._replace(opened=opened)).collect()
    fillings: tuple[Any, ...] = (
        ((0, first, 1.0),), (), ((0, second, 1.0),), ((0, first, 1.0), (0, second, 2.0)),
    )  # fmt: skip
    text = [Text(0, 0, 6, 0)]

    def submit(filling: Any) -> Any:
        batch = made.batch(text)._replace(adapter_slots=filling)
        each = np.arange(1, dtype=np.int32)
        batch = batch._replace(logits_rows=np.array([5], np.int32), slots=each)
        return made.backend.step(batch, Draws((), (), each, each))

    def logits_of(*filling: Any) -> np.ndarray:
        return made.run(text, filling).logits

    expected = [
        logits_of((0, first, 1.0)), logits_of(), logits_of((0, second, 1.0)),
        logits_of((0, second, 2.0)),
    ]  # fmt: skip
    pending = [submit(filling) for filling in fillings]
    tokens = [step.collect().tokens[0][0] for step in pending]
    assert tokens == [int(logits[5].argmax()) for logits in expected]
    assert np.array_equal(made.run(text).logits, expected[-1])
    assert not np.array_equal(expected[0], expected[2])


def a_matrix(made: Adapted, seed: int) -> Whole:
    """Make a matrix in place of the head's or the embedding's."""
    size = made.model.embed.vocabulary, made.model.embed.hidden
    numbers = np.random.default_rng(seed).standard_normal(size, np.float32)
    return Whole(StoredRows.of(numbers / np.float32(8)))


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_whose_logits_are_wanted_have_their_own_adapters(name: str) -> None:
    """A step counts the rows behind the last block among themselves."""
    made = Adapted(BACKENDS[name](), "LlamaForCausalLM", wholes=True)
    own = a_matrix(made, 1)
    pairs = made_up_adapter(made.model, 1, some=False).pairs
    made.fill(
        AdapterWeights({}, 0, {}, {"head": own}),
        AdapterWeights({"head": pairs["head"], "embed": pairs["embed"]}, MAX_RANK),
    )
    batch = made.batch([Text(n, 0, 5, slot) for n, slot in enumerate((-1, 1, 0, 1, -1, 0))])
    expected = made.backend.forward(batch).logits.copy()
    rows = np.array([4, 9, 14, 19, 24, 29, 11], np.int32)
    last = batch._replace(logits_rows=rows, hidden_rows=rows[:1])
    assert np.array_equal(made.backend.forward(last).logits, expected[rows])
    assert len(np.unique(expected[rows].round(2), axis=0)) == len(rows)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_factor_leaves_matrices_of_their_own_as_they_are(name: str) -> None:
    made = Adapted(BACKENDS[name](), "Gemma2ForCausalLM", wholes=True)
    own = a_matrix(made, 1)
    text, found = [Text(0, 0, 9, 0)], []
    for path in ("head", "embed"):
        for factor in (0.0, 0.5, 1.0):
            made.fill(AdapterWeights({}, 0, {}, {path: own}), factor=factor)
            found.append(made.run(text).logits)
    plain = made.run([text[0]._replace(slot=-1)]).logits
    for nothing, half, full in (found[:3], found[3:]):
        assert np.array_equal(nothing, plain)
        assert np.array_equal(half, full)
        assert not np.isclose(full, plain).all(axis=1).any()


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("weights", ["float32", "bf16", "int8"])
def test_rows_with_matrices_of_their_own_disturb_no_others(tier: str, weights: str) -> None:
    """Each row has the bits that it has alone, with any number of threads."""
    options: dict[str, Any] = {**EXACT, "instruction_set": tier, "weights": weights}
    bare = native(bare=True, instruction_set=tier, weights=weights)
    alone, together = (
        Adapted(
            NativeBackend(NativeOptions(**options, num_threads=threads)),
            "LlamaForCausalLM",
            wholes=True,
        )
        for threads in (1, 3)
    )
    own = [a_matrix(alone, seed) for seed in range(3)]
    adapters = [
        AdapterWeights({}, 0, {}, {"head": own[0], "embed": own[1]}),
        made_up_adapter(alone.model, 1),
        AdapterWeights({}, 0, {}, {"head": own[2]}),
    ]
    for made in (alone, together):
        made.fill(*adapters)
    slots = (0, -1, 2, 1, 0)
    texts = [Text(name, 0, 3 + 9 * name, slot) for name, slot in enumerate(slots)]
    found = together.run(texts).logits
    for name, text in enumerate(texts):
        rows = rows_of(tuple(texts), name)
        expected = (bare if text.slot < 0 else alone).run([text]).logits
        assert np.array_equal(found[rows], expected)
    without = bare.run([texts[2]._replace(slot=-1)]).logits
    assert not np.isclose(found[rows_of(tuple(texts), 2)], without).all(axis=1).any()


def drawn_tokens(made: Adapted, slots: tuple[int, ...], *, continues: bool) -> list[Any]:
    """Draw eight tokens greedily for sequences with these adapters, which begin anew."""
    names = np.arange(len(slots), dtype=np.int32)
    opened = tuple((slot, SlotSampling(np.zeros(1, np.int32), 1)) for slot in names.tolist())
    tokens: list[Any] = []
    for step in range(8):
        texts = [Text(name, step, 1, slot) for name, slot in enumerate(slots)]
        batch = made.batch(texts)._replace(slots=names, hidden_rows=NO_ROWS)
        draws = Draws((), opened if step == 0 else (), names, names)
        if step > 0:
            batch = batch._replace(token_ids=np.full(len(slots), LAST_SAMPLE, np.int32))
        if step > 0 and continues:
            batch = HostBatch(NO_ROWS, NO_ROWS, NO_ROWS, (), NO_ROWS, continues=())
            draws = NO_DRAWS
        tokens.append(made.backend.step(batch, draws).collect().tokens)
    closing = NO_DRAWS._replace(freed=tuple(names.tolist()))
    made.backend.step(batch_of_copies(()), closing).collect()
    return tokens


def test_a_step_that_continues_another_has_its_adapters() -> None:
    """The tokens are those of steps that are given whole."""
    made = native()
    made.fill(*two(made))
    slots = (0, -1, 1, 0)
    whole = drawn_tokens(made, slots, continues=False)
    assert drawn_tokens(made, slots, continues=True) == whole
    assert drawn_tokens(made, (-1,) * 4, continues=True) != whole


def test_a_step_without_adapters_skips_what_they_need() -> None:
    """The instructions are those of an engine without adapters, with the same barriers."""
    bare, engine = native(bare=True), native()
    assert isinstance(bare.backend, NativeBackend)
    assert isinstance(engine.backend, NativeBackend)
    engine.fill(*two(engine))
    lines = engine.backend.describe().replace(" +adapters", "").splitlines()
    kept = [line for line in lines if not line.startswith("shrink")]
    assert len(kept) < len(lines)
    assert kept == bare.backend.describe().splitlines()
    engine.backend.profile(True)
    engine.run([text._replace(slot=-1) for text in STEP])
    shrinks = [n for n, i in enumerate(engine.backend.instructions) if i.op == "Shrink"]
    work, waits = engine.backend.timings()
    assert all(work[number] == waits[number] == 0.0 for number in shrinks)
    engine.run(STEP)
    work, _ = engine.backend.timings()
    assert all(work[number] > 0.0 for number in shrinks)


@pytest.fixture(params=BACKENDS)
def new(request: pytest.FixtureRequest) -> New:
    """A maker of backends of one kind."""
    return BACKENDS[request.param]


def ones(path: str, *shapes: tuple[int, int, int], magnitude: int = 0) -> AdapterWeights:
    """Make an adapter for one projection: (rank, inputs, outputs) of each part."""
    lengths = np.ones(magnitude, np.float32) if magnitude else None
    pairs = tuple(
        Pair(
            np.ones((rank, inputs), np.float32), np.ones((outputs, rank), np.float32), 1.0, lengths
        )
        for rank, inputs, outputs in shapes
    )
    return AdapterWeights({path: pairs}, MAX_RANK)


def biased(path: str, bias: Bias) -> AdapterWeights:
    return AdapterWeights({}, 0, {path: (bias,)})


WHOLE = Whole(StoredRows.of(np.ones((96, 32), np.float32)))
REFUSED = {
    "the embedding": (ones("embed", (1, 96, 33)), "33 outputs"),
    "a whole head": (AdapterWeights({}, 0, {}, {"head": WHOLE}), "cannot be an adapter's own"),
    "magnitudes of an embedding": (ones("embed", (1, 96, 32), magnitude=32), "magnitudes"),
    "experts": (ones("blocks.0.mlp.experts", (1, 32, 16)), "experts share one tensor"),
    "no layer": (ones("blocks.7.attn.out", (1, 32, 32)), "no such layer"),
    "parts": (ones("blocks.0.attn.qkv", (1, 32, 32)), "1 parts"),
    "rank": (ones("blocks.0.attn.out", (MAX_RANK + 1, 32, 32)), "rank is 9"),
    "inputs": (ones("blocks.0.attn.out", (2, 16, 32)), "16 inputs"),
    "outputs": (ones("blocks.0.attn.out", (2, 32, 31)), "31 outputs"),
    "magnitudes": (ones("blocks.0.attn.out", (2, 32, 32), magnitude=31), "magnitudes"),
    "a bias": (biased("blocks.0.attn.out", Bias(np.ones(31, np.float32))), "a bias"),
    "a bias of none": (
        biased("blocks.0.attn.out", Bias(own=np.ones(32, np.float32))),
        "does not have",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_computed_is_refused_with_its_path(new: New, what: str) -> None:
    made = Adapted(new(), "Qwen2MoeForCausalLM")
    adapter, reason = REFUSED[what]
    (path,) = adapter.paths
    with pytest.raises(ValueError, match=reason) as refused:
        made.pack(adapter)
    assert path in str(refused.value)


@pytest.mark.parametrize("target", ["norm", "blocks.0.mlp.experts", "blocks.9.attn.out"])
def test_targets_that_no_adapter_can_change_are_refused(new: New, target: str) -> None:
    made = Adapted(new(), "Qwen2MoeForCausalLM")
    settings = AdapterSettings(SLOTS, MAX_RANK, (target,))
    layout = place_layers(made.model)
    with pytest.raises(NoAdaptersError, match=target):
        made.backend.prepare(made.model, layout, 16, adapters=settings)


def test_only_targets_are_changed(new: New) -> None:
    made = Adapted(new(), "LlamaForCausalLM")
    settings = AdapterSettings(SLOTS, MAX_RANK, ("blocks.1.mlp.down",))
    made.backend.prepare(made.model, place_layers(made.model), 16, adapters=settings)
    made.backend.make_cache(100)
    adapter = made_up_adapter(made.model, 1, some=False)
    with pytest.raises(ValueError, match="no target"):
        made.pack(adapter)
    path = "blocks.1.mlp.down"
    plain = made.run([Text(0, 0, 3)]).logits
    made.fill(AdapterWeights({path: adapter.pairs[path]}, MAX_RANK))
    assert not np.array_equal(made.run([Text(0, 0, 3, 0)]).logits, plain)


def test_a_slot_that_is_empty_or_not_there_is_refused(new: New) -> None:
    made = Adapted(new(), "LlamaForCausalLM")
    (value,) = made.pack(made_up_adapter(made.model, 1))
    with pytest.raises(ValueError, match="slot 2, in which there is none"):
        made.run([Text(0, 0, 3, 2)])
    made.run([Text(0, 0, 3, 2)], ((2, value, 1.0),))
    with pytest.raises(ValueError, match="slot 2, in which there is none"):
        made.run([Text(0, 0, 3, 2)], ((2, None, 0.0),))
    with pytest.raises(ValueError, match=f"no slot {SLOTS} for adapters"):
        made.run([Text(0, 0, 3)], ((SLOTS, value, 1.0),))


def test_a_slot_keeps_an_adapter_and_no_object_of_python() -> None:
    """A step that takes the last of an object would wait for Python's lock, and hold its own."""
    made = native()
    (value,) = made.pack(made_up_adapter(made.model, 1))
    num_references = sys.getrefcount(value)
    expected = made.run([Text(0, 0, 3, 2)], ((2, value, 1.0),)).logits
    made.run([Text(0, 0, 3)])  # the step before is kept until the next is submitted
    assert sys.getrefcount(value) == num_references
    del value
    assert np.array_equal(made.run([Text(0, 0, 3, 2)]).logits, expected)
