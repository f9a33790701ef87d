"""The model of a step's time learns costs from steps, and neither stalls nor pauses mislead it."""

import random

import pytest

from octavo.core.pace import step_time
from octavo.core.pace.step_time import PromptCost, StepTimes
from octavo.core.stats import StepStats

LEAST = 16


def step(
    decoded: int, read: int = 0, prompt: int = 0, pairs: int = 0, pooled: int = 0
) -> StepStats:
    """Return a step with that work; what the model does not read is 0."""
    empty = StepStats(0, 0.0, 0, decoded + prompt, prompt, 0, 0, 0, 0, 0, None)
    return empty._replace(num_read=read, num_prefill_pairs=pairs, num_pooled_tokens=pooled)


def seconds_of(each: StepStats) -> float:
    """Return the time of a step on a machine with costs of each kind."""
    decoded = each.num_tokens - each.num_prefill_tokens
    prompts = 0.0002 * each.num_prefill_tokens + 1e-7 * each.num_prefill_pairs
    return 0.01 + 0.0005 * decoded + 2e-6 * each.num_read + prompts + 1e-4 * each.num_pooled_tokens


def drawn(rng: random.Random) -> StepStats:
    """Return a step as they come: half of them only decode, some embed."""
    count = rng.choice((0, 0, rng.randint(17, 400)))
    start = rng.randint(0, 2000)
    pooled = count if rng.random() < 0.2 else 0
    decoded = rng.randint(1, 30)
    pairs = count * start + count * (count + 1) // 2
    return step(decoded, decoded * rng.randint(0, 1000), count, pairs, pooled)


def taught(noise: float = 0.0, stalls: float = 0.0, num_steps: int = 400) -> StepTimes:
    """Return a model that has learned from many steps, one by one."""
    rng, times = random.Random(1), StepTimes()
    for _ in range(num_steps):
        each = drawn(rng)
        seconds = seconds_of(each) * (1 + noise * rng.random())
        times.learn([(each, seconds * (50 if rng.random() < stalls else 1))], LEAST)
    return times


def predicted(times: StepTimes, each: StepStats) -> float:
    """Return the whole time that a model predicts for one chunk beside decoding."""
    decoded = each.num_tokens - each.num_prefill_tokens
    cost = times.prompt_cost(is_pooled=each.num_pooled_tokens > 0)
    count, pairs = each.num_prefill_tokens, each.num_prefill_pairs
    start = (pairs - count * (count + 1) // 2) // max(1, count)
    return times.decoding_seconds(decoded, each.num_read) + cost.seconds(start, count)


def worst_error(times: StepTimes) -> float:
    """Return the largest relative error over many steps."""
    rng = random.Random(2)
    steps = [drawn(rng) for _ in range(100)]
    return max(abs(predicted(times, each) / seconds_of(each) - 1) for each in steps)


def test_costs_are_learned_from_steps() -> None:
    assert worst_error(taught()) < 0.05


def test_noise_and_stalls_change_little() -> None:
    """A tenth more or less, and one step in fifty that takes fifty times as long."""
    assert worst_error(taught(noise=0.2, stalls=0.02)) < 0.35


def test_no_coefficient_is_ever_negative() -> None:
    rng, times = random.Random(3), StepTimes()
    for _ in range(300):
        times.learn([(drawn(rng), rng.choice((1e-9, 0.01, 0.5, 3600.0)))], LEAST)
        assert min(times.coefficients) >= 0.0


def test_a_first_step_that_takes_very_long_is_soon_forgotten() -> None:
    times = StepTimes()
    times.learn([(step(4), 3600.0)], LEAST)
    for _ in range(12):
        times.learn([(step(4), 0.01)], LEAST)
    assert times.decoding_seconds(4, 0) == pytest.approx(0.01, rel=0.3)


def test_one_time_that_is_too_short_changes_little() -> None:
    """A result that was collected late leaves hardly any time to the step after it."""
    times = taught()
    before = times.decoding_seconds(8, 0)
    times.learn([(step(8), 1e-6)], LEAST)
    assert times.decoding_seconds(8, 0) == pytest.approx(before, rel=1e-3)


def test_a_result_that_is_collected_late_teaches_nothing_wrong() -> None:
    """One step seems long and the next ones short, even among the first steps."""
    times = StepTimes()
    work = [step(4)] * 4 + [step(4, prompt=64, pairs=2080)] * 4
    times.learn([(each, seconds_of(each)) for each in work], LEAST)
    before = times.prompt_cost(is_pooled=False).seconds(0, 64)
    late = seconds_of(work[-1])
    times.learn([(work[-1], 4.0 * late), (work[-1], 1e-6), (work[-1], 1e-6)], LEAST)
    assert 0.9 * before < times.prompt_cost(is_pooled=False).seconds(0, 64) < 2.0 * before


def test_times_that_grow_by_chance_are_not_taken_for_reads_beside_prompts() -> None:
    """Every step has prompts, and reads a little more than the one before; only noise grows."""
    times = StepTimes()
    times.learn([(step(0, prompt=7, pairs=500), 0.04)] * 3, LEAST)
    for number in range(12):
        read, pairs = 40 + 2 * number, 2000 + 300 * number
        seconds = 0.0204 + 1e-5 * read + 0.002 * LEAST + 4e-6 * pairs
        noisy = seconds * (1 + 0.3 * number / 11)
        times.learn([(step(2, read=read, prompt=LEAST, pairs=pairs), noisy)], LEAST)
    assert times.decoding_seconds(2, 64) < 1.6 * (0.0204 + 1e-5 * 64)


def test_short_times_behind_a_first_result_that_is_late_teach_nothing() -> None:
    """The first has nothing by which it could be seen to be late; those beside it seem short."""
    times = StepTimes()
    times.learn([(step(4), 1.0), (step(4), 1e-6), (step(4), 1e-6)], LEAST)
    times.learn([(step(4), 0.01)] * 8, LEAST)
    assert times.decoding_seconds(4, 0) == pytest.approx(0.01, rel=0.1)


def test_a_time_beside_one_that_was_held_teaches_nothing_if_it_is_far_shorter() -> None:
    """The prediction is wrong, and of two times that show it the first came late."""
    times = StepTimes()
    times.learn([(step(4), 1.0)] * 4, LEAST)  # the machine was busy with something else
    short = [(step(4)._replace(step=5), 0.05), (step(4)._replace(step=6), 1e-6)]
    times.learn(short, LEAST)
    assert times.num_decoding == 4, "neither says what a step takes"
    times.learn([(step(4)._replace(step=number), 0.01) for number in range(7, 20)], LEAST)
    assert times.decoding_seconds(4, 0) == pytest.approx(0.01, rel=0.1)


def test_a_late_result_of_a_step_without_work_teaches_nothing_wrong() -> None:
    times, mixed = StepTimes(), step(4, prompt=64, pairs=2080)
    work = [step(4)] * 4 + [mixed] * 4 + [step(4)]
    times.learn([(each, seconds_of(each)) for each in work], LEAST)
    before = predicted(times, mixed)
    times.learn([(step(0), 3600.0), (mixed, 1e-6), (mixed, 1e-6)], LEAST)
    assert predicted(times, mixed) == pytest.approx(before, rel=0.1)


def test_a_machine_that_becomes_slower_is_believed_in_the_end() -> None:
    times = StepTimes()
    for seconds in (0.01, 0.04):
        for _ in range(120):
            times.learn([(step(8), seconds)], LEAST)
    assert times.decoding_seconds(8, 0) == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize("slower", [4.0, 10.0])
def test_a_machine_that_becomes_slower_computes_prompts_slower_too(slower: float) -> None:
    """A prompt that seemed cheap beside slow decoding would not be cut."""
    rng, times = random.Random(4), taught()
    for _ in range(60):
        each = drawn(rng)
        times.learn([(each, slower * seconds_of(each))], LEAST)
    each = step(8, 4000, 128, 128 * 1000)
    assert predicted(times, each) == pytest.approx(slower * seconds_of(each), rel=0.4)
    prompt = times.prompt_cost(is_pooled=False).seconds(1000, 128)
    assert prompt == pytest.approx(slower * (0.0002 * 128 + 1e-7 * 128 * 1064.5), rel=0.5)


def test_a_thousand_steps_that_only_decode_do_not_erase_what_prompts_cost() -> None:
    times = taught()
    before = times.prompt_cost(is_pooled=False).seconds(0, 200)
    only = step(8, 800)
    times.learn([(only, seconds_of(only))] * 1000, LEAST)
    assert times.prompt_cost(is_pooled=False).seconds(0, 200) == pytest.approx(before, rel=0.1)


def test_a_step_without_work_or_time_teaches_nothing() -> None:
    times = StepTimes()
    times.learn([(step(0), 0.5), (step(4), 0.0)], LEAST)
    assert times.coefficients == [0.0] * 6
    assert times.num_decoding == 0
    times.learn([(step(4), 0.02), (step(0), 0.001), (step(4), 0.001)], LEAST)
    assert times.num_decoding == 1, "one short time waits for another"
    times.learn([(step(4), 0.001)], LEAST)
    assert times.num_decoding == 3, "short times are left out behind a late one alone"


def test_one_short_time_among_the_first_steps_changes_little() -> None:
    """A time that the clock has made too short would weigh as much as hundreds of others."""
    times = StepTimes()
    prompt = step(2, 20, 32, 2000)
    work = [(step(2, 20), 0.01)] * 2 + [(prompt, 0.027)] * 4 + [(prompt, 0.052), (prompt, 0.001)]
    times.learn([*work, *[(prompt, 0.027)] * 2], LEAST)
    assert times.decoding_seconds(2, 20) == pytest.approx(0.01, rel=0.1)
    assert predicted(times, prompt) == pytest.approx(0.027, rel=0.2)


def test_a_stall_that_alone_shows_a_factor_says_nothing_of_it() -> None:
    """No other step has read as much; the model would explain the stall by what it read."""
    times = StepTimes()
    times.learn([(step(1, 10), 0.02)] * 4 + [(step(1, 157), 3.2)], LEAST)
    times.learn([(step(1, 20), 0.02)] * 4, LEAST)
    assert times.decoding_seconds(1, 30) == pytest.approx(0.02, rel=0.1)


def test_costs_that_differ_little_from_step_to_step_are_told_apart() -> None:
    """Positions that are read grow from step to step, which costs nothing here."""
    times = StepTimes()
    for read in range(40, 140):
        times.learn([(step(2, read), 0.025)], LEAST)
    assert times.decoding_seconds(2, 40) == pytest.approx(0.025, rel=0.02)
    assert times.decoding_seconds(2, 270) == pytest.approx(0.025, rel=0.05)


def test_reads_beyond_those_of_all_steps_are_not_extrapolated() -> None:
    times = StepTimes()
    times.learn([(step(0, 0, 32, 500), 0.1)] * 4 + [(step(1, 4, 32, 500), 0.104)] * 2, LEAST)
    assert times.decoding_seconds(1, 400) < 0.12


def test_what_has_faded_away_keeps_its_cost() -> None:
    times = taught()
    before = times.prompt_cost(is_pooled=False)
    times._mixed.fade(1e-280)
    times._decoding.fade(1e-280)
    times.learn([(step(8, 800), 0.02)] * 4, LEAST)
    assert times.prompt_cost(is_pooled=False) == before
    assert before.token_seconds > 0.0


def test_coefficients_are_usable_whenever_their_search_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most in range(4):
        monkeypatch.setattr(step_time, "_MOST_SOLUTIONS", most)
        times = taught(noise=0.3, num_steps=60)
        assert min(times.coefficients) >= 0.0
        assert times.decoding_seconds(8, 800) < 1.0


def test_what_was_learned_from_is_counted() -> None:
    times = StepTimes()
    beside = [step(4)] * 3  # the first result: far shorter times are left out
    work = (step(1, prompt=300, pairs=45_150), *beside, step(4), step(4, prompt=16, pairs=136))
    times.learn([(each, seconds_of(each)) for each in work], LEAST)
    assert (times.num_decoding, times.largest_prompt) == (2, 300)
    small = step(4, prompt=20, pairs=210)
    times.learn([(small, seconds_of(small))] * 3, LEAST)
    assert times.largest_prompt == 20, "of the last steps alone"


@pytest.mark.parametrize("start", [0, 5, 5000])
@pytest.mark.parametrize("seconds", [0.0, 0.0011, 0.05, 7.0])
def test_the_most_tokens_are_those_that_fit(start: int, seconds: float) -> None:
    cost = PromptCost(0.0002, 1e-7)
    count = cost.most_tokens(start, 400, seconds)
    assert count == 0 or cost.seconds(start, count) <= seconds
    assert count == 400 or cost.seconds(start, count + 1) > seconds
