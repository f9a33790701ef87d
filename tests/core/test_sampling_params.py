"""Sampling parameters as far as the core reads them."""

import pytest

from octavo.core.sampling_params import SamplingParams


def test_a_request_asks_for_at_least_one_token() -> None:
    assert SamplingParams(max_tokens=1).max_tokens == 1
    with pytest.raises(ValueError, match="max_tokens=0 must be at least 1"):
        SamplingParams(max_tokens=0)


@pytest.mark.parametrize("min_tokens", [-1, 5])
def test_the_least_is_between_nothing_and_the_most(min_tokens: int) -> None:
    assert SamplingParams(max_tokens=4, min_tokens=4).min_tokens == 4
    with pytest.raises(ValueError, match=f"min_tokens={min_tokens} .* max_tokens=4"):
        SamplingParams(max_tokens=4, min_tokens=min_tokens)
