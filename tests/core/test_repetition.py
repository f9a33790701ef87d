"""The detection of texts that repeat themselves, against a plain definition."""

import random
from array import array
from typing import Any

import pytest

from octavo.core.sampling_params import RequestError, SamplingParams
from octavo.core.stopping.repetition import (
    MAX_COMPARED,
    RepetitionDetectionParams,
    ends_in_repetition,
)


def plainly(output: list[int], asked: RepetitionDetectionParams) -> bool:
    """Return whether the output ends in a pattern as often as is asked for."""
    sizes = range(asked.min_pattern_size, asked.max_pattern_size + 1)
    return any(
        output[-size * asked.min_count :] == output[-size:] * asked.min_count for size in sizes
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_the_definition_finds_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    found = 0
    for _ in range(400):
        least = chance.randint(1, 4)
        asked = RepetitionDetectionParams(chance.randint(least, 8), least, chance.choice((2, 3, 4)))
        pattern = [chance.randrange(3) for _ in range(chance.randint(1, 9))]
        output = [chance.randrange(3) for _ in range(chance.randint(0, 4))]
        output += pattern * chance.randint(1, 5) + pattern[: chance.randint(0, 2)]
        is_right = plainly(output, asked)
        assert ends_in_repetition(array("i", output), asked) == is_right, (output, asked)
        found += is_right
    assert 50 < found < 350


def test_a_mapping_is_accepted_and_defaults_are_filled_in() -> None:
    given: Any = {"max_pattern_size": 5, "min_count": 3}
    made = SamplingParams(repetition_detection=given)
    assert made.repetition_detection == RepetitionDetectionParams(5, 1, 3)
    assert SamplingParams(repetition_detection=RepetitionDetectionParams()) == SamplingParams()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pattern_size": -1},
        {"max_pattern_size": 5},
        {"max_pattern_size": 5, "min_count": 1},
        {"max_pattern_size": 5, "min_count": "3"},
        {"max_pattern_size": 5, "min_pattern_size": 6, "min_count": 2},
        {"min_pattern_size": 1, "min_count": 2},
        {"max_pattern_size": 1025, "min_count": 2},
        {"max_pattern_size": 8, "min_pattern_size": 8, "min_count": MAX_COMPARED // 8 + 1},
        {"max_pattern_size": 200, "min_count": 2},  # too many comparisons for each token
        {"max_pattern": 5, "min_count": 2},
        "often",
    ],
)
def test_a_repetition_that_could_not_be_looked_for_is_refused(wrong: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(repetition_detection=wrong)
    assert caught.value.param == "repetition_detection"
