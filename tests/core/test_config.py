"""The core's settings are checked when they are made."""

from typing import Any

import pytest

from octavo.core.config import ConfigError, CoreConfig, KVGroup

UNKNOWN: Any = "tape"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_blocks": 1}, "num_blocks=1 must be at least 2"),
    ({"max_model_len": 1}, "max_model_len=1 must be at least"),
    ({"block_size": 0}, "block_size=0 must be at least"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least"),
    ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least"),
    ({"pipeline_depth": 0}, "pipeline_depth=0 must be at least"),
    ({"long_prefill_tokens": -1}, "long_prefill_tokens=-1 must be at least"),
    ({"prompt_logprob_tokens": -1}, "prompt_logprob_tokens=-1 must be at least"),
    ({"max_drafts": -1}, "max_drafts=-1 must be at least"),
    ({"max_num_waiting": 0}, "max_num_waiting=0 must be at least"),
    ({"max_waiting_tokens": 0}, "max_waiting_tokens=0 must be at least"),
    ({"max_loras": -1}, "max_loras=-1 must be at least"),
    ({"policy": "lottery"}, "policy='lottery' is unknown; choose 'fcfs' or 'priority'"),
    ({"watermark": 1.0}, r"watermark=1.0 must be at least 0 and below 1"),
    ({"watermark": float("nan")}, "watermark=nan must be"),
    ({"ageing_seconds": -1.0}, "ageing_seconds=-1.0"),
    ({"ageing_seconds": float("nan")}, "ageing_seconds=nan"),
    ({"ageing_seconds": float("inf")}, "ageing_seconds=inf must be finite and at least 0"),
    ({"itl_goal": -1.0}, "itl_goal=-1.0 must be finite and at least 0"),
    ({"itl_ratio": float("nan")}, "itl_ratio=nan must be finite"),
    ({"itl_ratio": 1.0}, "itl_ratio=1.0 leaves no time for prompts"),
    ({"ttft_goal": 1.0}, "ttft_goal=1.0 lengthens the steps that itl_goal bounds"),
    ({"groups": ()}, "groups is empty"),
    ({"groups": (KVGroup(), KVGroup(window=0))}, "window=0 of a KV group must be at least 1"),
    (
        {"long_prefill_tokens": 8, "chunked_prefill": False},
        "long_prefill_tokens=8 needs chunked_prefill=True",
    ),
    (
        {"prompt_logprob_tokens": 8, "chunked_prefill": False},
        "prompt_logprob_tokens=8 needs chunked_prefill=True",
    ),
    ({"hold_seconds": 0.0}, "hold_seconds=0.0 must be finite and above 0"),
    ({"groups": (KVGroup(kind="none"),)}, "must be the only group, and chunked_prefill"),
    ({"groups": (KVGroup(kind=UNKNOWN),)}, "kind='tape' of a KV group is unknown"),
    ({"groups": (KVGroup(block_bytes=0),)}, "block_bytes=0 of a KV group must be at least 1"),
    ({"groups": (KVGroup(4, "state"),)}, "window=4 has no meaning for a KV group of 'state'"),
]


def test_the_defaults_work_together() -> None:
    config = CoreConfig(num_blocks=2, max_model_len=2)
    assert (config.block_size, config.pipeline_depth, config.policy) == (16, 1, "fcfs")
    assert CoreConfig(num_blocks=2, max_model_len=2, chunked_prefill=False).prefix_caching


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_setting_is_rejected_with_its_name_and_value(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        CoreConfig(**{"num_blocks": 10, "max_model_len": 10, **settings})


def test_without_a_window_a_query_reads_all_positions() -> None:
    assert [KVGroup().first_needed(position) for position in (0, 1, 1000)] == [0, 0, 0]


def test_a_window_includes_the_query_itself() -> None:
    """A query at position 4 with a window of 4 reads 1, 2, 3 and 4."""
    group = KVGroup(window=4)
    assert [group.first_needed(position) for position in (0, 3, 4, 5)] == [0, 0, 1, 2]
    assert [KVGroup(window=1).first_needed(position) for position in (0, 1, 7)] == [0, 1, 7]
