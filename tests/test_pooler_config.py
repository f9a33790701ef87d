"""Settings of pooling: vLLM's names, as a mapping or as JSON; what cannot be done is refused."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from octavo.core.config import ConfigError
from octavo.engine.pooling_facts import with_settings
from octavo.model_facts import PoolingFacts
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.pooling import PoolerConfig, read_pooler_config

EMBEDDER = PoolingFacts(tasks=("embed",), width=8)
CLASSIFIER = PoolingFacts(
    tasks=("classify",), kind="cls", classify_kind="cls", width=8, labels=("a", "b"), squash="none"
)
IN_PIECES = {"enable_chunked_processing": True, "max_embed_len": 900}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, PoolerConfig()),
        ('{"pooling_type": "MEAN"}', PoolerConfig(seq_pooling_type="MEAN")),
        ({"pooling_type": "cls"}, PoolerConfig(seq_pooling_type="CLS")),
        ({"pooling_type": "STEP"}, PoolerConfig(tok_pooling_type="STEP")),
        (
            {"seq_pooling_type": "LAST", "tok_pooling_type": "ALL"},
            PoolerConfig(seq_pooling_type="LAST", tok_pooling_type="ALL"),
        ),
        ({"normalize": False}, PoolerConfig(use_activation=False)),
        ({"softmax": True, "task": None}, PoolerConfig(use_activation=True)),
        ({"enable_flash_late_interaction": True}, PoolerConfig()),
        (IN_PIECES, PoolerConfig(enable_chunked_processing=True, max_embed_len=900)),
        (PoolerConfig(dimensions=3), PoolerConfig(dimensions=3)),
    ],
)
def test_settings_may_be_a_mapping_or_json(given: Any, expected: PoolerConfig) -> None:
    assert read_pooler_config(given) == expected
    assert read_arguments("m", {"pooler_config": given}).pooler_config == expected


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"pooling_type": "MAX"}, "pooling_type"),
        ({"pooling_type": 3}, "pooling_type"),
        ({"seq_pooling_type": "ALL"}, "seq_pooling_type"),
        ({"tok_pooling_type": "MEAN"}, "tok_pooling_type"),
        ({"pooling_type": "MEAN", "seq_pooling_type": "CLS"}, "seq_pooling_type"),
        ({"normalize": True, "use_activation": True}, "use_activation"),
        ({"use_activation": 1}, "use_activation"),
        ({"task": "plugin"}, "task"),
        ({"task": ["embed"]}, "task"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": 2.5}, "dimensions"),
        ({"max_embed_len": 900}, "enable_chunked_processing"),
        ({"enable_chunked_processing": True}, "max_embed_len"),
        ({"enable_chunked_processing": "yes"}, "enable_chunked_processing"),
        ({"logit_mean": float("nan")}, "logit_mean"),
        ({"logit_sigma": 0}, "logit_sigma"),
        ({"logit_sigma": "1"}, "logit_sigma"),
        ({"step_tag_id": -1}, "step_tag_id"),
        ({"step_tag_id": 5, "tok_pooling_type": "ALL"}, "tok_pooling_type"),
        ({"returned_token_ids": [1, 2]}, "returned_token_ids"),
        ({"logit_bias": 1.0}, "logit_mean"),
        ({"dimension": 4}, "dimensions"),
        ({3: 4}, "3"),
        ("[1]", "mapping"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        (5, "mapping"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(given: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^pooler_config: .*{name}"):
        read_pooler_config(given)


def test_arguments_take_nothing_else() -> None:
    with pytest.raises(ConfigError, match="must be a PoolerConfig"):
        EngineArguments(pooler_config={})  # type: ignore[arg-type]


def test_settings_replace_what_the_files_say() -> None:
    assert with_settings(EMBEDDER, None) is EMBEDDER
    assert with_settings(EMBEDDER, PoolerConfig()) == EMBEDDER
    config = read_pooler_config(
        {"pooling_type": "MEAN", "use_activation": False, "dimensions": 4, **IN_PIECES}
    )
    assert with_settings(EMBEDDER, config) == replace(
        EMBEDDER,
        kind="mean",
        classify_kind="mean",
        normalize=False,
        activates=False,
        dimensions=4,
        max_embed_len=900,
    )
    config = PoolerConfig(seq_pooling_type="LAST", logit_mean=1.5, logit_sigma=2.0, step_tag_id=7)
    found = with_settings(CLASSIFIER, config)
    assert (found.kind, found.classify_kind) == ("last", "last")
    assert (found.logit_mean, found.logit_sigma, found.step_tag_id) == (1.5, 2.0, 7)


def test_a_classifier_of_tokens_keeps_all_of_them() -> None:
    of_tokens = replace(CLASSIFIER, kind="all", classify_kind="all")
    found = with_settings(of_tokens, PoolerConfig(seq_pooling_type="MEAN"))
    assert found.classify_kind == "all"


@pytest.mark.parametrize(
    ("facts", "config", "name"),
    [
        (CLASSIFIER, PoolerConfig(task="embed"), "task"),
        (EMBEDDER, PoolerConfig(task="token_classify"), "task"),
        (CLASSIFIER, PoolerConfig(dimensions=2), "dimensions"),
        (EMBEDDER, PoolerConfig(dimensions=9), "dimensions"),
        (CLASSIFIER, read_pooler_config(IN_PIECES), "max_embed_len"),
        (EMBEDDER, PoolerConfig(logit_mean=0.0), "logit_mean"),
        (EMBEDDER, PoolerConfig(logit_sigma=1.0), "logit_sigma"),
        (EMBEDDER, PoolerConfig(step_tag_id=0), "step_tag_id"),
    ],
)
def test_settings_of_what_the_model_does_not_serve(
    facts: PoolingFacts, config: PoolerConfig, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"^pooler_config: {name}="):
        with_settings(facts, config)
