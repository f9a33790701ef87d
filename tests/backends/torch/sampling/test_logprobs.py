"""The log-probabilities that describe one position."""

import numpy as np
import pytest

from octavo.backends.torch.sampling.logprobs import describe

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)
EXPECTED = LOGITS - np.log(np.exp(LOGITS.astype(np.float64)).sum())


@pytest.mark.parametrize(
    ("token", "count", "ids", "rank"),
    [
        (4, 0, [4], 5),
        (4, 1, [4, 1], 5),
        (3, 2, [3, 1, 3], 1),  # the lower id comes first in a tie
        (2, 3, [2, 1, 3, 2], 3),
        (0, -1, [0, 1, 3, 2, 0, 4], 4),
        (0, 99, [0, 1, 3, 2, 0, 4], 4),
    ],
)
def test_the_token_comes_first_then_the_likeliest(
    token: int, count: int, ids: list[int], rank: int
) -> None:
    found_ids, logprobs, found_rank = describe(LOGITS, token, count)
    assert found_ids.tolist() == ids
    assert found_rank == rank
    np.testing.assert_allclose(logprobs, EXPECTED[ids], rtol=1e-6)


def test_huge_logits_do_not_overflow() -> None:
    _, logprobs, _ = describe(np.array([3e38, -3e38, 0], np.float32), 0, -1)
    assert logprobs[0] == 0.0
