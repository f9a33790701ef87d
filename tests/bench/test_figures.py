"""The figures mean what vLLM's command documents, by hand on recorded times of streams.

TTFT is the time to the first part with tokens; ITL the times between parts; the end-to-end latency
that to the last part; TPOT the latency without the TTFT, by the tokens after the first; percentiles
interpolate linearly; rates are by the time of the whole run; a goodput counts the answers that
have met every goal, of which a TPOT without further tokens is 0.
"""

from __future__ import annotations

import json
import math

import pytest

from octavo.bench.served.answer import Answer, Reader
from octavo.bench.served.figures import figures, num_good, read_goals
from octavo.core.config import ConfigError


def recorded(began: float, parts: list[float], num_prompt: int, num_tokens: int) -> Answer:
    """Return what is seen of a stream whose parts came at these times."""
    answer = Answer(began)
    reader = Reader(answer)
    for at in parts:
        event = {"choices": [{"index": 0, "text": "x"}]}
        reader.take(at, b"data: " + json.dumps(event).encode() + b"\n\n")
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens}
    last = parts[-1] + 0.5  # what comes after the last part counts in no time
    reader.take(last, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
    reader.take(last, b"data: [DONE]\n\n")
    reader.end(200, last)
    assert answer.error == ""
    return answer


# Parts may have several tokens: the first answer has 6 tokens in 4 parts.
ANSWERS = [
    recorded(10.0, [10.1, 10.2, 10.4, 10.6], 100, 6),  # TTFT 100 ms, 600 ms in all, TPOT 100 ms
    recorded(10.5, [10.7, 11.1, 11.5], 50, 3),  # 200 ms, 1000 ms, TPOT 400 ms
    recorded(11.0, [11.4], 20, 1),  # 400 ms, 400 ms, no TPOT
    recorded(11.2, [12.2, 12.3], 30, 2),  # 1000 ms, 1100 ms, TPOT 100 ms
]
FAILED = Answer(10.2, ended=10.3, error="x")
# Between the parts: 100, 200, 200; 400, 400; none; 100.
GAPS = [100.0, 200.0, 200.0, 400.0, 400.0, 100.0]


def test_rates_and_counts() -> None:
    found = figures([*ANSWERS, FAILED], 4.0, [50, 90, 99], {})
    assert (found["completed"], found["failed"]) == (4, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (200, 12)
    assert found["request_throughput"] == pytest.approx(4 / 4.0)
    assert found["output_throughput"] == pytest.approx(12 / 4.0)
    assert found["total_token_throughput"] == pytest.approx(212 / 4.0)
    assert found["request_goodput"] is None


def test_the_time_to_the_first_token() -> None:
    """The values are 100, 200, 400 and 1000: the 90th percentile lies 0.7 between the last two."""
    found = figures(ANSWERS, 4.0, [50, 90, 99], {})
    assert found["mean_ttft_ms"] == pytest.approx(425.0)
    assert found["median_ttft_ms"] == found["p50_ttft_ms"] == pytest.approx(300.0)
    assert found["p90_ttft_ms"] == pytest.approx(400 + 0.7 * 600)
    assert found["p99_ttft_ms"] == pytest.approx(400 + 0.97 * 600)
    squares = [325.0**2, 225.0**2, 25.0**2, 575.0**2]
    assert found["std_ttft_ms"] == pytest.approx(math.sqrt(sum(squares) / 4))  # by n, not n - 1


def test_the_time_of_each_further_token() -> None:
    """TPOT is by tokens, so that parts with several count as such; one token has none."""
    found = figures(ANSWERS, 4.0, [50, 90, 99], {})
    assert ANSWERS[0].token_seconds == pytest.approx((0.6 - 0.1) / (6 - 1))
    assert math.isnan(ANSWERS[2].token_seconds)
    assert found["mean_tpot_ms"] == pytest.approx((100 + 400 + 100) / 3)
    assert found["median_tpot_ms"] == pytest.approx(100.0)
    assert found["p90_tpot_ms"] == pytest.approx(100 + 0.8 * 300)


def test_the_time_between_parts() -> None:
    """ITL is by parts, of all answers together, not a mean of each answer's."""
    found = figures(ANSWERS, 4.0, [50, 90, 99], {})
    assert found["mean_itl_ms"] == pytest.approx(sum(GAPS) / len(GAPS))
    assert found["median_itl_ms"] == pytest.approx(200.0)
    assert found["p90_itl_ms"] == pytest.approx(400.0)
    assert found["mean_tpot_ms"] != pytest.approx(found["mean_itl_ms"])


def test_the_whole_time_of_an_answer() -> None:
    """The values are 600, 1000, 400 and 1100: they end with the last part, not the connection."""
    found = figures(ANSWERS, 4.0, [50, 90, 99], {})
    assert found["mean_e2el_ms"] == pytest.approx(775.0)
    assert found["median_e2el_ms"] == pytest.approx(800.0)
    assert found["p90_e2el_ms"] == pytest.approx(1000 + 0.7 * 100)


@pytest.mark.parametrize(
    ("goals", "good"),
    [
        ({"ttft": 400.0}, 3),  # a time that is as long as the goal meets it
        ({"tpot": 100.0}, 3),  # one token's is 0
        ({"ttft": 400.0, "tpot": 100.0}, 2),
        ({"e2el": 600.0}, 2),
        ({"ttft": 99.0}, 0),
    ],
)
def test_goodput(goals: dict[str, float], good: int) -> None:
    answers = [*ANSWERS, FAILED]
    rounded = {name: most + 1e-6 for name, most in goals.items()}  # times are differences
    assert num_good(answers, rounded) == good
    found = figures(answers, 4.0, [99], rounded)
    assert found["request_goodput"] == pytest.approx(good / 4.0)


def test_peaks() -> None:
    """Three answers were open at once, and most parts came in the first second."""
    found = figures([*ANSWERS, FAILED], 4.0, [99], {})
    assert found["max_concurrent_requests"] == 3  # from 11.2 to 11.4
    # From 10.0: parts at .1 .2 .4 .6 .7, then at 1.1 1.4 1.5, then at 2.2 2.3.
    assert found["max_output_tokens_per_s"] == 5
    one_after_the_other = [recorded(0.0, [1.0], 1, 1), recorded(1.0, [2.0], 1, 1)]
    assert figures(one_after_the_other, 1.0, [99], {})["max_concurrent_requests"] == 1


def test_nothing_was_answered() -> None:
    found = figures([FAILED], 1.0, [99], {"ttft": 1.0})
    assert (found["completed"], found["request_goodput"]) == (0, 0)
    assert (found["max_concurrent_requests"], found["max_output_tokens_per_s"]) == (0, 0)
    assert "mean_ttft_ms" not in found


@pytest.mark.parametrize("word", ["ttft", "itl:3", "ttft:x", "ttft:-1", "ttft:nan", ":3"])
def test_goals_that_are_none(word: str) -> None:
    with pytest.raises(ConfigError):
        read_goals([word])
