"""What the rule for drafts reaches in tokens per second, by rates and costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.scheduling.paced import Costs, Paced

LIGHT = Costs(fixed=0.12, row=0.006, branch=0.0005, each_pass=0.015, candidate=0.0005)
DEAR = Costs(fixed=0.1, row=0.02, branch=0.001, each_pass=0.03, candidate=0.001)
BOUND = Costs(fixed=0.05, row=0.001, more=0.004)  # by reading weights, or by arithmetic
ARITHMETIC = LIGHT._replace(more=0.03)  # beyond eight rows
NUM_TOKENS, NUM_LONG = 240, 2400


def gained(
    costs: Costs,
    rates: tuple[float, ...],
    width: int,
    *,
    forks: bool = False,
    streams: int = 1,
    in_block: bool = False,
    num_tokens: int = NUM_TOKENS,
) -> float:
    """Return how many times as fast as without drafts requests are, one round after another."""
    branches = 16 if width > 1 else 0
    made = Paced.of(
        costs,
        rates,
        ahead_width=width,
        ahead_forks=forks,
        ahead_in_block=in_block,
        max_branches=branches,
        max_drafts=4 + branches,
    )
    made.run(streams, num_tokens)
    speed = made.run(streams, num_tokens)
    return speed * costs.plain(streams) / streams


@pytest.mark.parametrize(("rates", "least"), [((0.5, 0.2, 0.1), 1.05), ((0.3, 0.2, 0.1), 1.1)])
@pytest.mark.parametrize("forks", [False, True])
def test_a_tree_gains_where_other_candidates_are_right(
    rates: tuple[float, ...], least: float, *, forks: bool
) -> None:
    chain = gained(LIGHT, rates, 1, num_tokens=NUM_LONG)
    assert gained(LIGHT, rates, 3, forks=forks, num_tokens=NUM_LONG) > least * chain


@pytest.mark.parametrize("costs", [LIGHT, DEAR])
@pytest.mark.parametrize("rates", [(0.9, 0.05, 0.02), (0.7, 0.0, 0.0), (0.05, 0.02, 0.01)])
def test_a_tree_is_no_slower_than_a_chain(costs: Costs, rates: tuple[float, ...]) -> None:
    assert gained(costs, rates, 3) > 0.98 * gained(costs, rates, 1)


@pytest.mark.parametrize("width", [1, 3])
def test_several_sequences_are_no_slower_than_without_drafts(width: int) -> None:
    for rates in ((0.5, 0.2, 0.1), (0.2, 0.2, 0.1)):
        assert gained(LIGHT, rates, width, streams=4) > 0.97


@pytest.mark.parametrize("width", [1, 3])
def test_nothing_is_drafted_where_more_rows_are_dearer_than_a_line_says(width: int) -> None:
    assert gained(ARITHMETIC, (0.5, 0.2), width, streams=8, num_tokens=NUM_LONG) > 0.985


# A pass for a block takes longer, and pays for several tokens together.
BLOCK = LIGHT._replace(each_pass=0.04)


@pytest.mark.parametrize(("rate", "streams"), [(0.9, 1), (0.7, 1), (0.5, 1), (0.9, 4), (0.7, 4)])
def test_a_block_gains_over_passes_of_the_same_time(rate: float, streams: int) -> None:
    chain = gained(BLOCK, (rate,), 1, streams=streams)
    block = gained(BLOCK, (rate,), 1, forks=True, in_block=True, streams=streams)
    assert block > max(1.02, 1.01 * chain)


def test_a_block_is_computed_where_no_single_token_of_it_pays() -> None:
    """The pass takes more than the first token saves, and less than all of them do."""
    dear = LIGHT._replace(each_pass=0.1)
    assert gained(dear, (0.8,), 1, forks=True, in_block=True, num_tokens=NUM_LONG) > 1.25
    assert gained(dear, (0.8,), 1) < 1.02


@pytest.mark.parametrize("rates", [(0.2, 0.05), (0.02, 0.01)])
@pytest.mark.parametrize("costs", [BLOCK, DEAR, ARITHMETIC])
def test_a_block_that_does_not_pay_costs_little(costs: Costs, rates: tuple[float, ...]) -> None:
    assert gained(costs, rates, 1, forks=True, in_block=True, streams=4) > 0.97


def test_other_candidates_of_a_block_gain_where_they_are_right() -> None:
    chain = gained(BLOCK, (0.5, 0.2, 0.1), 1, forks=True, in_block=True)
    assert gained(BLOCK, (0.5, 0.2, 0.1), 3, forks=True, in_block=True) > 1.03 * chain


def test_a_chain_that_is_right_every_second_time_is_kept() -> None:
    """Chance in a few steps does not end what gains in many."""
    assert gained(LIGHT, (0.5,), 1) > 1.1


def test_stalls_of_the_machine_do_not_end_what_gains() -> None:
    def stall(step: int) -> float:
        return 30.0 if step % 23 == 7 else 1.0

    made = Paced.of(LIGHT, (0.8,), stall=stall)
    for _ in range(3):
        made.run(1, NUM_TOKENS)
    assert made.num_steps < 0.5 * 3 * NUM_TOKENS


def proposed(
    costs: Costs, rate: float, streams: int, believed: float | None = None, **settings: Any
) -> float:
    """Return how many times as fast as without drafts a proposer's are that cost nothing."""
    chance = rate if believed is None else believed
    made = Paced.of(
        costs,
        (rate,),
        believed=[chance**place for place in range(1, 5)],
        max_num_seqs=16,
        **settings,
    )
    made.run(streams, NUM_TOKENS)
    return made.run(streams, NUM_TOKENS) * costs.plain(streams) / streams


@pytest.mark.parametrize(
    ("rate", "streams", "least"), [(0.7, 1, 2.0), (0.7, 4, 1.45), (0.9, 8, 1.05), (0.9, 16, 0.98)]
)
def test_drafts_of_a_proposer_gain_where_they_can(rate: float, streams: int, least: float) -> None:
    assert proposed(BOUND, rate, streams) > least


@pytest.mark.parametrize("streams", [1, 16])
@pytest.mark.parametrize(("rate", "believed"), [(0.4, 0.4), (0.05, 0.05), (0.0, 0.7)])
def test_drafts_of_a_proposer_cost_hardly_anything_where_they_gain_nothing(
    rate: float, believed: float, streams: int
) -> None:
    assert proposed(BOUND, rate, streams, believed) > 0.96


def test_passes_that_alone_stall_lose_no_more_than_a_bound() -> None:
    def stall(step: int) -> float:
        return 200.0 if step % 10 == 7 else 1.0

    made = Paced.of(LIGHT, (0.8,), stall_of_passes=stall)
    made.run(1, NUM_LONG)  # the first stalls of an engine are not held against it
    began = made.now
    made.run(1, NUM_LONG)
    assert NUM_LONG * LIGHT.plain(1) > 0.97 * (made.now - began)


def test_what_few_sequences_gain_is_not_spent_on_trials_with_many() -> None:
    """No row pays with 16: that is learned from few steps, none of them wide."""
    seconds = []
    for chance in (0.7, 0.01):  # of that, nothing is sent
        chances = [chance**place for place in range(1, 5)]
        made = Paced.of(BOUND, (0.7,), believed=chances, max_num_seqs=16)
        for streams in (1, 1, 4, 4):
            made.run(streams, NUM_TOKENS)
        began = made.now
        made.run(16, 60)
        seconds.append(made.now - began)
    assert seconds[0] < 1.03 * seconds[1]
