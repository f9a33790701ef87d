"""Steps of stages: those in flight have different sequences, or other parts of a prompt."""

from __future__ import annotations

import pytest

from tests.core.make import Rig, expected_output, tokens


@pytest.mark.parametrize("stages", [2, 3])
def test_each_stage_has_sequences_of_its_own(stages: int) -> None:
    """No step in flight has a sequence whose next token another draws."""
    rig = Rig(pipeline_depth=stages, num_stages=stages, stage_sequences=1)
    for name in range(2 * stages):
        rig.add(str(name), tokens(5, family=name), max_tokens=9)
    sizes = []
    while rig.scheduler.sequences:
        while len(rig.results) < stages and rig.plan() is not None:
            pass
        steps = [step.plan.slots for step in rig.scheduler.in_flight]
        together = [slot for slots in steps for slot in slots]
        assert len(set(together)) == len(together)
        sizes.append([*map(len, steps)])
        rig.land()
    assert [2] * stages in sizes
    assert rig.finish() == {
        str(name): expected_output(tokens(5, family=name), 9) for name in range(2 * stages)
    }


def test_a_prompt_is_in_several_stages_at_once() -> None:
    rig = Rig(pipeline_depth=2, num_stages=2, num_blocks=64, max_model_len=200)
    rig.add("a", 150, max_tokens=2)
    assert rig.chunks(rig.plan()) == {"a": (0, 64)}
    assert rig.chunks(rig.plan()) == {"a": (64, 64)}
    rig.land()
    assert rig.chunks(rig.plan()) == {"a": (128, 22)}
    assert rig.plan() is None
    assert rig.finish() == {"a": expected_output(tokens(150), 2)}


def test_owners_divide_the_tokens_of_prompts_that_a_step_of_stages_has() -> None:
    """A long prompt of one owner takes all of no step that another's could have a part of."""
    rig = Rig(
        pipeline_depth=2,
        num_stages=2,
        num_blocks=999,
        max_model_len=1200,
        max_num_batched_tokens=256,
    )
    rig.add("long", 1000, owner="a", max_tokens=2)
    assert rig.chunks(rig.plan()) == {"long": (0, 64)}
    rig.add("short", tokens(9, family=50), owner="b", max_tokens=2)
    assert rig.chunks(rig.plan()) == {"long": (64, 55), "short": (0, 9)}
    rig.land()
    rig.land()
    assert rig.chunks(rig.plan()) == {"long": (119, 64), "short": (9, 1)}
    rig.add("other", tokens(1000, family=60), owner="c", max_tokens=2)
    assert rig.chunks(rig.plan()) == {"long": (183, 32), "other": (0, 32)}
    assert rig.finish() == {
        "long": expected_output(tokens(1000), 2),
        "short": expected_output(tokens(9, family=50), 2),
        "other": expected_output(tokens(1000, family=60), 2),
    }
    assert rig.scheduler.stats.num_preemptions == 0
