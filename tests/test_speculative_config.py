"""Settings of speculation: vLLM's names, as a mapping or as JSON; everything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.speculation import SpeculativeConfig, read_speculative_config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "ngram"}, SpeculativeConfig("ngram", 5, 4, 2)),
        ('{"method": "ngram", "num_speculative_tokens": 8}', SpeculativeConfig("ngram", 8, 4, 2)),
        (
            {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 3},
            SpeculativeConfig("ngram", 5, 3, 3),
        ),
        ({"method": "ngram", "prompt_lookup_max": 1}, SpeculativeConfig("ngram", 5, 1, 1)),
        ({"method": "ngram", "prompt_lookup_min": 6}, SpeculativeConfig("ngram", 5, 6, 6)),
        ({"method": "ngram", "prompt_lookup_min": None}, SpeculativeConfig("ngram", 5, 4, 2)),
        ({"method": "ngram", "model": None}, SpeculativeConfig("ngram", 5, 4, 2)),
        (SpeculativeConfig("ngram", 9), SpeculativeConfig("ngram", 9, 4, 2)),
        ({"method": "off"}, SpeculativeConfig("off", 5)),
        ({"model": "x"}, SpeculativeConfig("auto", None, model="x")),
        ({"method": "DFLASH", "model": "x"}, SpeculativeConfig("dflash", None, model="x")),
        (
            {"method": "draft_model", "model": Path("x"), "num_speculative_tokens": 3},
            SpeculativeConfig("draft_model", 3, model="x"),
        ),
        *(
            ({"method": name}, SpeculativeConfig("mtp"))
            for name in ("mtp", "deepseek_mtp", "NEXTN")
        ),
        ({"method": "EAGLE"}, SpeculativeConfig("mtp")),  # SGLang's, without files
        ({"method": "EAGLE", "model": "x"}, SpeculativeConfig("eagle", model="x")),
        ({"method": "STANDALONE", "model": "x"}, SpeculativeConfig("draft_model", model="x")),
        (
            {"method": "custom_class", "model": "package.module:Class"},
            SpeculativeConfig("custom_class", model="package.module:Class"),
        ),
        ({"method": "suffix"}, SpeculativeConfig("suffix", 24)),
        (
            {"method": "suffix", "suffix_decoding_max_tree_depth": 8},
            SpeculativeConfig("suffix", 8, suffix_decoding_max_tree_depth=8),
        ),
        (
            {"method": "suffix", "num_speculative_tokens": 4, "suffix_decoding_min_token_prob": 0},
            SpeculativeConfig("suffix", 4, suffix_decoding_min_token_prob=0.0),
        ),
    ],
)
def test_settings_may_be_a_mapping_or_json(given: Any, expected: SpeculativeConfig) -> None:
    assert read_speculative_config(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no key says what drafts, neither 'method' nor 'model'"),
        ({"method": "trees"}, "method='trees' is unknown; there is 'ngram'"),
        ({"method": "dflash"}, "method='dflash' needs the key 'model'"),
        ({"method": "DSPARK", "model": "x"}, "method='DSPARK' is not supported: its heads corr"),
        ({"method": "mlp_speculator"}, "method='mlp_speculator' is not supported"),
        ({"method": "mtp", "model": "x"}, "'model' names 'x', .* method='mtp' needs no model"),
        ({"method": "custom_class"}, "method='custom_class' needs the key 'model': the class, as"),
        ({"method": "eagle3"}, "method='eagle3' needs the key 'model'"),
        ({"method": ["ngram"]}, r"method=\['ngram'\] is unknown"),
        ({"method": "ngram", "num_speculative_token": 5}, "did you mean num_speculative_tokens?"),
        ({"method": "draft_model"}, "method='draft_model' needs the key 'model'"),
        ({"method": "draft_model", "model": ""}, "method='draft_model' needs the key 'model'"),
        ({"method": "ngram", "model": "x"}, "'model' names 'x', which drafts"),
        ({"model": 5}, "'model' must be the name or the path of a model"),
        ({"method": "ngram", "use_heterogeneous_vocab": True}, "method='ngram' has none; leave it"),
        ({"model": "x", "use_heterogeneous_vocab": 1}, "use_heterogeneous_vocab=1 is no bool"),
        ({"model": "x", "quantization": 8}, "quantization=8 must be the name of a format"),
        ({"method": "ngram", "quantization": "int8"}, "method='ngram' has none; leave it out"),
        ({"model": "x", "draft_tensor_parallel_size": 2}, "a draft model is loaded, placed and"),
        (
            {"model": "x", "parallel_drafting": True},
            "what a drafter computes follows from its files",
        ),
        ({"model": "x", "disable_eagle_block_drop": True}, "no cached block is dropped"),
        ({"suffix_decoding_max_tree_depth": 5}, "no key says what drafts"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 1}, "depth=1 must be from 2 to 64"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": 2.5}, "must be a whole"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": -0.5}, "factor=-0.5 must be from"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": "2"}, "must be a number"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": True}, "must be a number"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.1}, "prob=1.1 must be from"),
        ({"rejection_sample_method": "synthetic"}, "is not supported: every draft is verified"),
        ({"method": "ngram", 3: 5}, "there is no key 3"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "tokens=0 must be from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "tokens=65 must be from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": "5"}, "tokens='5' must be a whole number"),
        ({"method": "ngram", "num_speculative_tokens": True}, "tokens=True must be a whole"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "tokens=2.0 must be a whole"),
        ({"method": "ngram", "prompt_lookup_max": 33}, "max=33 must be from 1 to 32"),
        ({"method": "ngram", "prompt_lookup_max": True}, "max=True must be a whole number"),
        ({"method": "ngram", "prompt_lookup_min": -1}, "min=-1 must be from 1 to 32"),
        (
            {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3},
            "prompt_lookup_min=5 is more than prompt_lookup_max=3",
        ),
        ("{method: ngram}", "is not JSON; write an object, as in"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", r"it is \[1\]; it must be a mapping, as in"),
        ("null", "it is None; it must be a mapping"),
        (5, "it is 5; it must be a mapping"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_speculative_config(given)
    with pytest.raises(ConfigError, match=r"^speculative_config: "):
        read_arguments("m", {"speculative_config": given})


def test_an_engine_takes_the_settings_or_none() -> None:
    asked = read_arguments("m", {"speculative_config": {"method": "ngram"}})
    assert asked.speculative_config == SpeculativeConfig("ngram")
    assert read_arguments("m", {"speculative_config": None}).speculative_config is None
    with pytest.raises(ConfigError, match="must be a SpeculativeConfig"):
        EngineArguments("m", speculative_config={"method": "ngram"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        *(("int4", "int4"), ("int8-128", "int8-128"), ("bf16", "bf16"), ("bitsandbytes", "nf4")),
        ("awq", None),  # files may be in it
    ],
)
def test_a_drafters_floats_may_become_a_format_by_each_of_its_names(
    given: str, weights: str | None
) -> None:
    assert read_speculative_config({"model": "x", "quantization": given}).weights == weights
    assert read_speculative_config({"model": "x", "quantization": None}).weights is None


def test_only_files_that_draft_are_looked_for() -> None:
    """The name of a class is none of a model on the hub."""
    assert SpeculativeConfig("eagle3", model="x").drafter == "x"
    assert SpeculativeConfig("custom_class", model="x:Y").drafter is None
    assert SpeculativeConfig("mtp").drafter is None


def test_a_key_that_changes_nothing_is_taken() -> None:
    plain = {"method": "draft_model", "model": "x"}
    found = read_speculative_config({**plain, "draft_tensor_parallel_size": 1})
    assert found == read_speculative_config(plain)
