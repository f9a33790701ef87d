"""Damaged numbers in the configuration of every family are refused, and never exhaust memory."""

from __future__ import annotations

import ast
import random
import tracemalloc
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.loader.errors import CheckpointError, TensorMismatchError
from octavo.models.bounds import MOST, RANGES
from octavo.models.build import checked_needs
from octavo.models.config_reader import FULL, SLIDING, Config, ConfigurationError
from octavo.models.generation import SAMPLING
from octavo.models.registry import FAMILIES, family_of
from tests.damage.mutants import NASTY
from tests.damage.trial import BUG
from tests.models.made_up import CONFIGS, DECODERS, ENCODER_CONFIGS, EXPERTS, SIZES, MadeUpWeights

ROOT = Path(__file__).parents[2] / "octavo"
LISTS = ("layer_types", "no_rope_layers", "mlp_only_layers", "long_factor", "short_factor")
OTHERS = ("architectures", "hidden_act", "activation_function", "tie_word_embeddings", "dtype")
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
    {"rope_type": "linear", "factor": 1e-300},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e-320, "beta_slow": 1e308},
    {"rope_type": "yarn", "factor": 4.0, "mscale": -40.0, "mscale_all_dim": -17.5},
    {FULL: {"rope_type": "yarn", "factor": 1e308}, SLIDING: {"rope_theta": -1}},
)
# An encoder's class reads the same configuration for each task.
ENCODER_CLASSES = {FAMILIES[name]: name for name in FAMILIES if name not in DECODERS}.values()
STRIDE = 40
MOST_BYTES = 64 << 20


def undamaged(architecture: str) -> dict[str, Any]:
    """Return a configuration of the family with the fields of all families."""
    own = {**CONFIGS, **ENCODER_CONFIGS}.get(architecture, {})
    return {**SIZES, **EXPERTS, "sliding_window": 5, **own, "architectures": [architecture]}


def configs(architecture: str) -> Iterator[dict[str, Any]]:
    """Yield the family's configuration with each field replaced by each damaged value."""
    values = undamaged(architecture)
    for key in (*values, *MOST, *RANGES, *LISTS, *OTHERS):
        for value in (*NASTY, [FULL, SLIDING], [0, 1e300]):
            yield {**values, key: value}
    for rope in ROPES:
        for key in ("rope_scaling", "rope_parameters"):
            yield {**values, key: rope}
            for name in rope:
                for value in NASTY:
                    yield {**values, key: {**rope, name: value}}


class OwnWeights(MadeUpWeights):
    """The weights of the undamaged model, which fit no other sizes."""

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        for name, shape in expected.items():
            if name not in self.tensors or self.tensors[name].shape != shape:
                raise TensorMismatchError("is of another size", tensor=name)


def try_config(values: dict[str, Any], weights: OwnWeights) -> None:
    """Read a configuration as opening a model does; only errors of the model may be raised."""
    message = ""
    try:
        config = Config(values)
        family = family_of(config.architecture("x"))
        checked_needs(family(family.read(config)), weights)
    except CheckpointError as error:
        message = str(error)
    except Exception as error:
        raise AssertionError(values) from error
    assert BUG not in message, values
    assert message.isprintable(), values
    assert len(message) < 2000, values


def made_up(architecture: str) -> OwnWeights:
    family = family_of(architecture)
    return OwnWeights(family(family.read(Config(undamaged(architecture)))))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_sample_of_damaged_configurations(architecture: str) -> None:
    weights, found = made_up(architecture), list(configs(architecture))
    random.Random(1).shuffle(found)
    tracemalloc.start()
    try:
        for values in found[::STRIDE]:
            try_config(values, weights)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_numbers_of_experts_and_layers_are_not_multiplied() -> None:
    """The largest numbers that are allowed would make names for millions of tensors."""
    values = undamaged("Qwen3MoeForCausalLM") | {"num_hidden_layers": 20}
    values |= {"num_experts": MOST["num_experts"]}
    family, weights = family_of("Qwen3MoeForCausalLM"), made_up("Qwen3MoeForCausalLM")
    tracemalloc.start()
    try:
        with pytest.raises(TensorMismatchError, match=r"a model of more than 10,\d+ tensors, and"):
            checked_needs(family(family.read(Config(values))), weights)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("architecture", [*DECODERS, *ENCODER_CLASSES])
def test_all_damaged_configurations(architecture: str) -> None:
    weights = made_up(architecture)
    for values in configs(architecture):
        try_config(values, weights)


def numbers_read() -> Iterator[tuple[str, str]]:
    """Yield the method and the key of every value that is read by a literal name."""
    for path in [*(ROOT / "models").glob("*.py"), *(ROOT / "quant").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                for argument in node.args[:1]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield node.func.attr, argument.value


def test_every_number_that_is_read_has_its_bounds() -> None:
    tables: dict[str, Container[str]] = {
        **dict.fromkeys(("integer", "positive", "layers", "experts"), MOST),
        **dict.fromkeys(("number", "above", "optional_number", "numbers"), RANGES),
    }
    read = [(method, key) for method, key in numbers_read() if method in tables]
    assert len(read) > 60
    assert {key for method, key in read if key not in tables[method]} == set()


@pytest.mark.parametrize("key", RANGES)
def test_what_is_out_of_bounds_is_refused_by_name(key: str) -> None:
    least, most = RANGES[key]
    for value in (least, most):
        assert Config({key: value}).number(key) == value
    beyond = [value for value in (-1e7, 1e16, -1e308, 1e308) if not least <= value <= most]
    assert len(beyond) >= 2
    for value in beyond:
        with pytest.raises(ConfigurationError, match=f"config: {key} must be from .* is "):
            Config({key: value}).number(key)


@pytest.mark.parametrize("key", MOST)
def test_sizes_beyond_any_model_are_refused_by_name(key: str) -> None:
    assert Config({key: MOST[key]}).integer(key) == MOST[key]
    with pytest.raises(ConfigurationError, match=f"config: {key} must be at most"):
        Config({key: MOST[key] + 1}).integer(key)


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_parameters_of_a_model_can_be_used_by_a_request(name: str) -> None:
    for value in RANGES[name]:
        asked: dict[str, Any] = {name: value}
        assert getattr(SamplingParams(**asked), name) == value
