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
