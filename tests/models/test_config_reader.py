"""Reading of a config.json in old and new spellings, and the messages for what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.backends.torch import ops
from octavo.models.config_reader import (
    ACTIVATIONS,
    FULL,
    ORIGINAL_LENGTH,
    SLIDING,
    Config,
    ConfigurationError,
)
from octavo.models.registry import family_of
from octavo.program import recorder

Read = Callable[[Config], object]

# A reading, the values that it is done on, and a part of the message.
REFUSED: list[tuple[Read, dict[str, Any], str]] = [
    (lambda c: c.part("a"), {}, "a must be an object, is None"),
    (lambda c: c.part("a"), {"a": [1]}, "a must be an object, is [1]"),
    (lambda c: c.integer("a"), {}, "a is missing"),
    (lambda c: c.integer("a"), {"a": None}, "a is missing"),
    (lambda c: c.integer("a"), {"a": -1}, "a must be a whole number ≥ 0, is -1"),
    (lambda c: c.integer("a"), {"a": True}, "a must be a whole number ≥ 0, is True"),
    (lambda c: c.integer("a"), {"a": 2.0}, "a must be a whole number ≥ 0, is 2.0"),
    (lambda c: c.integer("a"), {"a": "2"}, "a must be a whole number ≥ 0, is '2'"),
    (lambda c: c.integer("a"), {"a": 1 << 31}, "a must be at most 2,147,483,647, is 2,147,483,648"),
    (lambda c: c.positive("a"), {"a": 0}, "a must be above 0"),
    (lambda c: c.number("a"), {}, "a is missing"),
    (lambda c: c.number("a"), {"a": math.nan}, "a must be a finite number, is nan"),
    (lambda c: c.number("a"), {"a": math.inf}, "a must be a finite number, is inf"),
    (lambda c: c.number("a"), {"a": False}, "a must be a finite number, is False"),
    (lambda c: c.number("a"), {"a": "1"}, "a must be a finite number, is '1'"),
    (lambda c: c.number("a"), {"a": 10**400}, "a must be a finite number, is 10,000,000"),
    (lambda c: c.optional_number("a"), {"a": []}, "a must be a finite number, is []"),
    (lambda c: c.above("a", 1.0), {"a": 1}, "a must be above 1, is 1"),
    (lambda c: c.boolean("a"), {}, "a is missing"),
    (lambda c: c.boolean("a"), {"a": 1}, "a must be true or false, is 1"),
    (lambda c: c.string("a"), {}, "a is missing"),
    (lambda c: c.string("a"), {"a": 1}, "a must be a string, is 1"),
    (lambda c: c.strings("a"), {"a": "b"}, "a must be a list of strings, is 'b'"),
    (lambda c: c.strings("a"), {"a": ["b", 1]}, "a must be a list of strings, is ['b', 1]"),
    (lambda c: c.numbers("a"), {}, "a must be a list of numbers, is None"),
    (lambda c: c.numbers("a"), {"a": [1, "b"]}, "a must be a list of numbers, is [1, 'b']"),
    (lambda c: c.numbers("a"), {"a": [True]}, "a must be a list of numbers, is [True]"),
    (lambda c: c.numbers("a"), {"a": [math.inf]}, "a must be a list of numbers, is [inf]"),
    (lambda c: c.layers(), {"num_hidden_layers": 0}, "num_hidden_layers must be above 0"),
    (lambda c: c.layers(), {"num_hidden_layers": 10_001}, "at most 10,000, is 10,001"),
    (
        lambda c: c.head_dim(),
        {"hidden_size": 50, "num_attention_heads": 4},
        "hidden_size 50 does not divide into 4 heads",
    ),
    (
        lambda c: c.head_dim(),
        {"hidden_size": 48, "num_attention_heads": 4, "head_dim": 1 << 20},
        "head_dim must be at most 65,536, is 1,048,576",
    ),
    (
        lambda c: c.kv_heads(),
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        "num_attention_heads 4 does not divide among 3 KV heads, the value of config: num_key",
    ),
    (lambda c: c.activation(), {"hidden_act": "mish"}, "hidden_act 'mish' is not supported; known"),
    (lambda c: c.windows(3), {"layer_types": [FULL]}, "1 layer_types for 3 layers"),
    (
        lambda c: c.windows(2),
        {"layer_types": ["linear_attention", FULL]},
        "layer_types 'linear_attention' is not supported; known are full_attention and sliding",
    ),
    (
        lambda c: c.windows(1),
        {"layer_types": [SLIDING], "sliding_window": None},
        "sliding_attention layers need a sliding_window above 0",
    ),
    (lambda c: c.windows(2, period=2), {}, "sliding_attention layers need a sliding_window"),
    (
        lambda c: c.windows(2, period=2),
        {"sliding_window_pattern": 0},
        "sliding_window_pattern must be above 0",
    ),
    (lambda c: c.rope(16), {"rope_theta": 1.0}, "rope_theta must be above 1, is 1"),
    (lambda c: c.rope(16), {"rope_scaling": [1]}, "rope_scaling must be an object, is [1]"),
    (lambda c: c.rope(16), {"rope_scaling": {"type": "ntk"}}, "rope_type 'ntk' is not supported"),
    (
        lambda c: c.rope(16),
        {"rope_scaling": {"type": "dynamic", "alpha": 1000.0}},
        "rope_type 'dynamic' is not supported; known are",
    ),
    (lambda c: c.rope(16), {"rope_scaling": {"type": "linear"}}, "factor is missing"),
    (
        lambda c: c.rope(16),
        {"rope_scaling": {"type": "linear", "factor": 0}},
        "factor must be above 0, is 0",
    ),
    (
        lambda c: c.rope(16),
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 4,
            }
        },
        "high_freq_factor must be above 4, is 4",
    ),
    (
        lambda c: c.rope(16),
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_slow": -1}},
        "beta_slow must be from 0.001 to 1e+06, is -1",
    ),
    (
        lambda c: c.rope(4),
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "2 numbers above 0, one for each pair of dimensions that rotate; there are 1",
    ),
    (
        lambda c: c.rope(4),
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0.0]}},
        "short_factor must be from 1e-06 to 1e+09, is 0",
    ),
    (
        lambda c: c.rope(16),
        {"rope_parameters": {FULL: {"rope_type": "default"}}},
        "rope_parameters differ by layer ('full_attention'), which this family does not support",
    ),
    (lambda c: c.rope(7), {}, "head_dim 7: a share of 1 cannot rotate"),
    (
        lambda c: c.rope(8),
        {"partial_rotary_factor": 0.0},
        "head_dim 8: a share of 0 cannot rotate, since",
    ),
    (lambda c: c.rope(8), {"partial_rotary_factor": 1e300}, "must be from 0 to 1, is 1e+300"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_every_refusal_names_the_key_and_what_was_expected(number: int) -> None:
    read, values, message = REFUSED[number]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read(Config(values))


def test_defaults_replace_missing_and_null_values() -> None:
    config = Config({"a": None, "d": 0})
    assert config.integer("a", 3) == 3
    assert config.integer("d", 3) == 0
    assert config.number("b", 0.5) == 0.5
    assert config.boolean("a", False) is False
    assert config.string("b", "x") == "x"
    assert config.strings("a") is None
    assert config.optional_number("a") is None
    assert config.optional_number("d") == 0.0
    assert not config.has("a")
    assert config.has("d")
    filled = config.over({"a": 7, "d": 7})
    assert (filled.integer("a"), filled.integer("d")) == (7, 0)


def test_sizes() -> None:
    """Head sizes follow from the hidden size by default; the run from both lengths."""
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "max_position_embeddings": 100}
    assert Config(sizes).head_dim() == 12
    assert Config({**sizes, "head_dim": 20}).head_dim() == 20
    assert Config(sizes).kv_heads() == 4
    assert Config({**sizes, "num_key_value_heads": 2}).kv_heads() == 2
    assert Config(sizes).run_len() == 100
    assert Config(sizes, max_len=30).run_len() == 30
    assert Config(sizes, max_len=300).run_len() == 100
    assert Config({"inner": sizes}, max_len=30).part("inner").run_len() == 30


def test_the_reference_backend_supports_every_activation() -> None:
    """A name that is accepted here must not fail in the first forward pass."""
    for name in ACTIVATIONS:
        assert Config({"hidden_act": name}).activation() == name
        assert recorder.ACTIVATIONS[name] in ops.ACTIVATIONS


@pytest.mark.parametrize("value", [3072**0.5, 2304**0.5, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 0.1])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_constants_are_rounded_as_the_checkpoints_type_rounds(name: str, value: float) -> None:
    """Constants are rounded to the nearest, ties to even."""
    rounded = torch.tensor(value).to(getattr(torch, name)).item()
    for key in ("dtype", "torch_dtype"):
        assert torch.tensor(Config({key: name}).rounded(value)).item() == rounded


WINDOWS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int | None, ...]]] = {
    "none": ({}, {}, (None,) * 4),
    "null": ({"sliding_window": None}, {}, (None,) * 4),
    "all layers": ({"sliding_window": 8}, {}, (8,) * 4),
    "not used": ({"sliding_window": 8, "use_sliding_window": False}, {}, (None,) * 4),
    "not used by default": ({"sliding_window": 8}, {"used": False}, (None,) * 4),
    "it is said": (
        {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
        {"used": False},
        (None, 8, 8, 8),
    ),
    "not used, whatever the layers' types": (
        {"sliding_window": 8, "use_sliding_window": False, "layer_types": [SLIDING] * 4},
        {},
        (None,) * 4,
    ),
    "types": (
        {"sliding_window": 8, "layer_types": [FULL, SLIDING, SLIDING, FULL]},
        {"period": 2},
        (None, 8, 8, None),
    ),
    "a family's period": ({"sliding_window": 8}, {"period": 2}, (8, None, 8, None)),
    "a file's period": (
        {"sliding_window": 8, "sliding_window_pattern": 3},
        {"period": 2},
        (8, 8, None, 8),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    """Types of layers take precedence over periods, and both over a lower bound."""
    values, options, expected = WINDOWS[name]
    assert Config(values).windows(4, **options) == expected


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn, all said": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
        "attention_factor": 1.3,
    },
    "yarn, as DeepSeek scales it": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 32,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 32,
    },
    "longrope, factor said": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 32,
        "factor": 9.0,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}


def _spellings(scaling: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Spell the same rotation as older and newer files do."""
    oldest = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    return {
        "rope_parameters": {"rope_parameters": {**scaling, "rope_theta": 5000.0}},
        "rope_scaling": {"rope_theta": 5000.0, "rope_scaling": scaling},
        "rope_scaling with type": {"rope_theta": 5000.0, "rope_scaling": oldest},
    }


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "rope_scaling with type"])
@pytest.mark.parametrize("name", ROPES)
def test_rotations_match_the_reference(name: str, spelling: str) -> None:
    """Frequencies and magnitude agree in each spelling."""
    scaling, length = ROPES[name], 64
    reference = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=length,
        rope_parameters={**scaling, "rope_theta": 5000.0},
    )
    compute = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    frequencies, magnitude = compute(reference, "cpu", seq_len=length)
    values = {"max_position_embeddings": length, **_spellings(scaling)[spelling]}
    rope = Config(values).rope(16)
    torch.testing.assert_close(torch.tensor(rope.frequencies), frequencies)
    assert rope.magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize(
    ("scaling", "length", "expected"),
    [
        (ROPES["yarn"], 32, 128),  # Qwen states the length before scaling
        (ROPES["yarn"], 128, 128),
        (ROPES["yarn"], 256, 256),
        ({**ROPES["yarn"], "factor": 1e6, ORIGINAL_LENGTH: 1 << 20}, 32, 2**31 - 1),
        ({"rope_type": "yarn", "factor": 4.0}, 32, 32),
        ({**ROPES["longrope"], "rope_type": "yarn", "factor": 9.0}, 64, 64),  # not YaRN
        (ROPES["llama3"], 32, 32),
        ({FULL: ROPES["yarn"], SLIDING: {"rope_type": "default"}}, 64, 64),
    ],
)
def test_yarn_stretches_the_length(scaling: dict[str, Any], length: int, expected: int) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        values = {"max_position_embeddings": length, key: scaling}
        assert Config(values).max_len() == expected
    assert Config(values, max_len=10_000).run_len() == min(10_000, expected)


LLAMA: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "sliding_window": 4,
}


@pytest.mark.parametrize(
    ("kind", "enables", "window"),
    [
        ("LlamaForCausalLM", {}, None),
        ("LlamaForCausalLM", {"layer_types": [SLIDING, SLIDING]}, None),
        ("GraniteForCausalLM", {}, None),
        ("GlmForCausalLM", {}, None),
        ("GemmaForCausalLM", {}, None),
        ("MistralForCausalLM", {}, 4),
        ("Phi3ForCausalLM", {}, 4),
        ("Qwen2ForCausalLM", {}, None),
        ("Qwen2ForCausalLM", {"use_sliding_window": True}, 4),
    ],
)
def test_architectures_that_use_a_window(
    kind: str, enables: dict[str, Any], window: int | None
) -> None:
    """Some files state a window that their architecture never had."""
    values = {**LLAMA, "architectures": [kind], **enables}
    assert family_of(kind).read(Config(values)).windows == (window, window)


@pytest.mark.parametrize(
    ("kind", "tied"),
    [("LlamaForCausalLM", False), ("SmolLM3ForCausalLM", True), ("GemmaForCausalLM", True)],
)
def test_the_family_decides_about_a_missing_tie(kind: str, tied: bool) -> None:
    values = {**LLAMA, "architectures": [kind]}
    assert family_of(kind).read(Config(values)).tied == tied
    for said in (True, False):
        spec = family_of(kind).read(Config({**values, "tie_word_embeddings": said}))
        assert spec.tied == said


def test_longrope_uses_short_factors_for_short_runs() -> None:
    """The longest sequence that will be run decides."""
    values = {"rope_scaling": ROPES["longrope"], "max_position_embeddings": 64}
    assert Config(values, max_len=32).rope(16).frequencies[0] == 1.0
    assert Config(values, max_len=33).rope(16).frequencies[0] == 0.5


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_longrope_under_its_first_names(name: str) -> None:
    """Phi-3's first files use other names for LongRoPE."""
    values: dict[str, Any] = {
        "max_position_embeddings": 64,
        "rope_scaling": {**ROPES["longrope"]},
    }
    expected = Config(values).rope(16)
    values["rope_scaling"]["rope_type"] = name
    assert Config(values).rope(16) == expected


def test_the_original_length_may_be_outside_the_rotation() -> None:
    """Phi-3's files have it there, and it takes precedence."""
    inside = {**ROPES["yarn"], "original_max_position_embeddings": 16}
    values = {"max_position_embeddings": 64, "rope_scaling": inside}
    expected = Config({**values, "rope_scaling": ROPES["yarn"]}).rope(16)
    assert Config(values).rope(16) != expected
    assert Config({**values, "original_max_position_embeddings": 32}).rope(16) == expected


def test_partial_rotation() -> None:
    """The share comes from the rotation, from beside it, or from the family."""
    inside = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}
    assert Config({}).rope(16).num_dimensions == 16
    assert Config({}).rope(16, share=0.25).num_dimensions == 4
    assert Config({"partial_rotary_factor": 0.75}).rope(16, share=0.25).num_dimensions == 12
    assert Config(inside).rope(16, share=0.25).num_dimensions == 8
    assert Config(inside).rope(16).frequencies[1] == pytest.approx(10_000.0 ** (-2 / 8))


def test_each_kind_of_layer_has_its_rotation() -> None:
    """New files nest rotations; in old ones the scaling is for layers without a window."""
    far = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    near = {"rope_type": "default", "rope_theta": 100.0}
    nested = Config({"rope_parameters": {FULL: far, SLIDING: near}})
    old = Config({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 1e6})
    for config in (nested, old):
        assert config.rope(16, kind=FULL).frequencies[1] == pytest.approx(1e6 ** (-2 / 16) / 2)
    assert nested.rope(16, kind=SLIDING).frequencies[1] == pytest.approx(100.0 ** (-2 / 16))
    assert old.rope(16, kind=SLIDING).frequencies[1] == pytest.approx(1e6 ** (-2 / 16))
    local = old.over({"rope_local_base_freq": 50.0})
    rope = local.rope(16, kind=SLIDING, theta_key="rope_local_base_freq")
    assert rope.frequencies[1] == pytest.approx(50.0 ** (-2 / 16))
    only_far = Config({"rope_parameters": {FULL: far, SLIDING: None}})
    assert only_far.rope(16, kind=SLIDING, theta=100.0) == nested.rope(16, kind=SLIDING)


def test_smollm3_rotates_by_an_interval_or_a_list() -> None:
    """A list that does not fit the layers is refused."""
    values = {
        "architectures": ["SmolLM3ForCausalLM"],
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
    }
    family = family_of("SmolLM3ForCausalLM")
    spec = family.read(Config(values))
    assert [rope is None for rope in spec.ropes] == [False, False, False, True, False]
    spec = family.read(Config({**values, "no_rope_layers": [1, 0, 1, 0, 0]}))
    assert [rope is None for rope in spec.ropes] == [False, True, False, True, True]
    with pytest.raises(ConfigurationError, match="2 no_rope_layers for 5 layers"):
        family.read(Config({**values, "no_rope_layers": [1, 0]}))
