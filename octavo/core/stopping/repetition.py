"""The detection of a text that repeats itself, as a function of its tokens alone."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

MAX_PATTERN_SIZE = 1024
# The most comparisons for a new token, pattern sizes times repeated tokens: they take a tenth of a
# millisecond. A text that nearly repeats itself at all sizes would otherwise hold up every step.
MAX_COMPARED = 65_536


@dataclass(frozen=True, slots=True)
class RepetitionDetectionParams:
    """The repetition that ends a text: a pattern of so many tokens, so many times in a row.

    Names and meanings are those of vLLM. `SamplingParams` checks the values.
    """

    max_pattern_size: int = 0  # tokens of the longest pattern that is looked for; 0: none
    min_pattern_size: int = 0  # … and of the shortest; 0 means 1
    min_count: int = 0  # how often a pattern stands at the end, one behind the other; at least 2

    @property
    def span(self) -> int:
        """The tokens of the longest repetition; those before are not looked at."""
        return self.max_pattern_size * self.min_count

    @property
    def num_compared(self) -> int:
        """The tokens that are compared for each new one, at most."""
        return (self.max_pattern_size - max(1, self.min_pattern_size) + 1) * self.span


def ends_in_repetition(output: array[int], asked: RepetitionDetectionParams) -> bool:
    """Return whether the last tokens are one pattern, repeated as often as is asked for."""
    longest = min(asked.max_pattern_size, len(output) // asked.min_count)
    for size in range(asked.min_pattern_size, longest + 1):
        if output[-1 - size] == output[-1]:  # quick, and nearly always false
            repeated = output[-size * asked.min_count :]
            if repeated[size:] == repeated[:-size]:
                return True
    return False
