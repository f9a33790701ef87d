"""A request's tokens depend on its own tokens alone, whatever the engine does with it.

Small random workloads run through engines of all kinds: any pipeline depth and budget, pools in
which hardly more than one sequence fits, caching, windows, drafts, forks, priorities. Each output
must be what the model says when there is no engine at all.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.config import KVGroup
from octavo.core.engine import EngineCore
from octavo.core.kv.manager import KVManager
from octavo.core.request import Request
from tests.core.make import KEY, Wire, Worker, config, expected_output, request, tokens

MOST_STEPS = 3_000
GROUPS = [
    (KVGroup(),),
    (KVGroup(window=4),),
    (KVGroup(), KVGroup(window=5)),
]

REQUESTS = st.fixed_dictionaries(
    {
        "shared": st.integers(1, 18),  # tokens of the common prefix
        "own": st.lists(st.integers(0, 2), max_size=3),
        "max_tokens": st.integers(1, 12),
        "priority": st.integers(0, 2),
        "fork": st.booleans(),
        "emitted": st.integers(0, 4),  # tokens of an earlier engine
        "reports_prompt": st.booleans(),
        "after": st.integers(0, 12),  # its time of arrival
    }
)
SETTINGS = st.fixed_dictionaries(
    {
        "pipeline_depth": st.integers(1, 3),
        "num_stages": st.sampled_from([1, 1, 2, 3]),
        "stage_sequences": st.sampled_from([1, 2, 8]),
        "stage_prompt_tokens": st.sampled_from([1, 7, 64]),
        "max_num_batched_tokens": st.integers(1, 64),
        "max_num_seqs": st.integers(1, 5),
        "block_size": st.integers(1, 5),
        "prefix_caching": st.booleans(),
        "long_prefill_tokens": st.sampled_from([0, 0, 1, 7]),
        "prompt_logprob_tokens": st.sampled_from([0, 1, 7]),
        "max_drafts": st.sampled_from([0, 0, 1, 3]),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "groups": st.sampled_from(GROUPS),
        "watermark": st.sampled_from([0.0, 0.2]),
    }
)


def guess(known: Sequence[int]) -> list[int]:
    """Return three drafts, of which the first one, two or three are right."""
    num_right = len(known) % 3 + 1
    return [*expected_output(known, num_right), -1, -1][:3]


def requests_of(workload: list[dict[str, Any]]) -> list[Request]:
    """Return the requests of a workload; the parent of forks is the first one."""
    made = []
    for number, each in enumerate(workload):
        prompt = [*tokens(each["shared"]), *each["own"]]
        whole = expected_output(prompt, each["max_tokens"])
        made.append(
            request(
                str(number),
                prompt,
                max_tokens=each["max_tokens"],
                priority=each["priority"],
                parent_id="0" if each["fork"] and number else None,
                prompt_logprobs=0 if each["reports_prompt"] else None,
                emitted=whole[: min(each["emitted"], each["max_tokens"] - 1)],
                arrival=float(each["after"]),
            )
        )
    return made


def engine_for(chosen: dict[str, Any], requests: list[Request], room: int) -> EngineCore:
    """Return an engine whose pool fits the longest request, and `room` more blocks."""
    measure = KVManager(config(**chosen), KEY)
    most = max(measure.peak_pages(each.max_total - 1) for each in requests)
    made = config(**{**chosen, "num_blocks": 1 + most + room})
    wire = Wire(Worker(made, drafter=guess if made.max_drafts else None))
    ticks = iter(range(10 * MOST_STEPS))
    return EngineCore(made, wire, lambda: float(next(ticks)), KEY, check_interval=1)


@pytest.mark.slow
@settings(max_examples=600)
@given(chosen=SETTINGS, workload=st.lists(REQUESTS, min_size=1, max_size=6), room=st.integers(0, 9))
def test_every_output_is_what_the_model_says(
    chosen: dict[str, Any], workload: list[dict[str, Any]], room: int
) -> None:
    requests = requests_of(workload)
    core = engine_for(chosen, requests, room)
    outputs = {each.request_id: list(each.emitted) for each in requests}
    ends: dict[str, str | None] = {}
    for step in range(MOST_STEPS):
        for each, drawn in zip(requests, workload, strict=True):
            if drawn["after"] == step:
                core.on_event(each)
        for event in core.step(wait=step % 3 > 0):
            output = outputs[event.request_id]
            assert event.position == len(output)
            output.extend(event.tokens)
            if event.finish_reason:
                assert event.request_id not in ends, "a request ends once"
                ends[event.request_id] = event.finish_reason
        if len(ends) == len(requests) and not core.has_work:
            break
    assert ends == dict.fromkeys(outputs, "length")
    for each in requests:
        count = each.sampling.max_tokens
        assert outputs[each.request_id] == expected_output(each.prompt, count)
    assert core.scheduler.kv.pool.num_free == core.scheduler.config.num_blocks - 1
