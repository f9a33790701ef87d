"""Trees of drafts in the core: how they are cut, which blocks they get, what is accepted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.core.config import ConfigError, KVGroup
from octavo.core.kv.branches import BranchBlocks
from octavo.core.outcome import Outcome, append_tokens
from octavo.core.pace.proposed_tree import ProposedChain, ProposedTree
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from octavo.core.trees.form import (
    ROOT,
    Chains,
    DraftTree,
    chains_of,
    depths_of,
    path_to,
    reordered,
    walked,
)
from tests.core.make import Rig

# Two drafts follow the known token, and two the second of these; the last has one behind it.
PARENTS = (ROOT, ROOT, 1, 1, 3)


def test_a_tree_is_cut_into_its_longest_path_and_branches() -> None:
    assert depths_of(PARENTS) == [1, 1, 2, 2, 3]
    assert path_to(PARENTS, 4) == [1, 3, 4]
    assert chains_of(PARENTS) == Chains([1, 3, 4], [[0], [2]])
    assert chains_of(PARENTS).order == [1, 3, 4, 0, 2]
    assert chains_of((ROOT, ROOT, ROOT, 1, 2)) == Chains([1, 3], [[0], [2, 4]])


def test_drafts_keep_what_they_follow_in_another_order() -> None:
    tree = DraftTree(PARENTS, (1, 0, 1, 0, 0))
    assert reordered(tree, [1, 3, 4, 0, 2]) == DraftTree((ROOT, 0, 1, ROOT, 0), (0, 0, 0, 1, 1))
    assert reordered(DraftTree(PARENTS), [0, 1]) == DraftTree((ROOT, ROOT))
    assert tree.first(3) == DraftTree(PARENTS[:3], (1, 0, 1))
    assert tree.without([False, True, True, True, True]).parents == (ROOT, 0, 0, 2)


def test_a_walk_follows_the_first_of_equal_drafts() -> None:
    assert walked(PARENTS, (5, 6, 7, 8, 9), (6, 8, 9, 1)) == [1, 3, 4]
    assert walked((ROOT, ROOT, 0), (5, 5, 6), (5, 6)) == [0, 2]
    assert walked(PARENTS, (5, 6, 7, 8, 9), (7,)) == []


def rig(tree: DraftTree, drafts: tuple[int, ...], **settings: Any) -> Rig:
    """Return a rig that is about to verify a tree, behind a prompt of six tokens."""
    fields = {"max_drafts": 8, "max_branches": 8, "block_size": 4, "num_blocks": 100}
    made = Rig(**{**fields, **settings})
    made.add("a", 6, max_tokens=30, ignore_eos=True)
    assert made.plan() is not None
    (slot,) = made.scheduler.in_flight[0].plan.slots
    chances = tuple(0.99 for _ in drafts)
    made.results[0] = made.results[0]._replace(
        drafts=((slot, drafts),), chances=((slot, chances),), trees=((slot, tree),)
    )
    made.land()
    return made


def planned(made: Rig) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    return plan


def sequence_of(made: Rig) -> Sequence:
    return made.scheduler.sequences["a"]


def test_branches_have_blocks_of_their_own_for_one_step() -> None:
    """Six tokens and a drawn one are known; positions 7 and on are of drafts."""
    made = rig(DraftTree(PARENTS, (1, 0, 1, 0, 0)), (40, 41, 42, 43, 44))
    num_free = made.scheduler.kv.pool.num_free
    plan = planned(made)
    assert plan.drafts == ((0, (41, 43, 44)),)
    first, second = plan.branches
    assert (first.after, first.tokens, second.after, second.tokens) == (ROOT, (40,), 0, (42,))
    assert plan.num_tokens == 6
    assert plan.num_branched == 2
    own = sequence_of(made).tables[0]
    assert {*first.blocks[0], *second.blocks[0]}.isdisjoint(own)
    # The first begins at position 7, in a block with positions that were computed before.
    assert plan.copies == ((own[1], first.blocks[0][0], 0),)
    assert made.scheduler.kv.pool.num_free == num_free - (len(own) - 2)


def test_a_walk_is_appended() -> None:
    made = rig(DraftTree(PARENTS, (1, 0, 1, 0, 0)), (40, 41, 42, 43, 44))
    planned(made)
    one = sequence_of(made)
    known = len(one.tokens)
    outcome = append_tokens(one, 7, 2, walk=(0, 4))
    assert outcome == Outcome((41, 42, 7), num_accepted=2)
    assert one.num_planned == one.num_computed == known + 2
    assert (one.verifying, one.side) == ((), ())
    assert one.stats.num_drafts == 5


@pytest.mark.parametrize(
    ("settings", "num_branches"),
    [
        ({"max_branches": 1}, 1),
        ({"max_num_batched_tokens": 6}, 1),
        ({"num_blocks": 5}, 1),
    ],
)
def test_branches_that_there_is_no_room_for_are_left_out(
    settings: dict[str, Any], num_branches: int
) -> None:
    made = rig(
        DraftTree(PARENTS, (1, 0, 1, 0, 0)), (40, 41, 42, 43, 44), max_model_len=16, **settings
    )
    one = sequence_of(made)
    one.keep_drafts(5)
    draft = PlanDraft()
    draft.add_chunk(one, 4)
    if "max_num_batched_tokens" in settings:
        draft.counts = [5]
    blocks = BranchBlocks(made.config, made.scheduler.kv)
    blocks.take(draft)
    assert len(draft.branches) == len(one.side) == num_branches
    blocks.give_back()


def test_branches_are_left_out_where_their_chain_is_cut() -> None:
    made = rig(DraftTree(PARENTS, (1, 0, 1, 0, 0)), (40, 41, 42, 43, 44))
    one = sequence_of(made)
    one.keep_drafts(5)
    assert one.num_branched == 2
    draft = PlanDraft()
    draft.add_chunk(one, 3)
    assert (one.verifying, one.side) == ((41, 43), ())
    for count in (0, 2):
        one.keep_drafts(5)
        one.drafts, one.side = (1, 2, 3), ((ROOT, (9,)),)
        one.keep_drafts(count)
        assert one.drafts == (1, 2, 3)[:count]
        assert not one.side
    one.tree, one.drafts, one.chances = DraftTree(PARENTS), (1, 2, 3, 4, 5), (0.5,) * 5
    one.keep_drafts(0)
    assert not one.drafts
    assert one.tree is None
    one.tree, one.drafts, one.chances = DraftTree(PARENTS), (1, 2, 3, 4, 5), ()
    one.keep_drafts(5)
    assert (one.drafts, one.chances) == ((2, 4, 5), ())


def test_a_sequence_that_has_left_the_plan_gets_no_branches() -> None:
    made = rig(DraftTree(PARENTS, (1, 0, 1, 0, 0)), (40, 41, 42, 43, 44))
    draft = PlanDraft()
    draft.sequences, draft.starts, draft.counts = [None], [0], [1]
    BranchBlocks(made.config, made.scheduler.kv).take(draft)
    assert draft.branches == []


def test_rates_are_measured_by_rank() -> None:
    made = Rig(
        max_drafts=6, max_branches=4, max_ahead=3, ahead_width=2, ahead_forks=True, num_blocks=100
    )
    ahead = made.scheduler.ahead
    assert ahead is not None
    made.add("a", 6, max_tokens=30)
    planned(made)
    one = sequence_of(made)
    first, second = one.rates[0]
    one.form = DraftTree((ROOT, 0, ROOT), (0, 0, 1))
    one.verifying, one.side = (1, 2), ((ROOT, (3,)),)
    ahead.score(one, (2,))
    assert one.rates[0][0] < first
    assert one.rates[0][1] > second
    assert one.rates[1] == [first, second]  # nothing follows the accepted draft
    before, third = one.rates[0][1], [*one.rates[1]]
    one.form, one.verifying, one.side = DraftTree((ROOT, ROOT), (0, 1)), (1,), ()
    ahead.score(one, range(1))  # the branch was left out, and its rate is no lower
    assert one.rates[0][1] > 0.99 * before
    assert one.rates[1] == third
    one.form, one.verifying, one.side = None, (1, 2), ()
    higher = one.rates[0][1]
    ahead.score(one, range(1))
    assert second < one.rates[0][1] < higher  # what was not verified returns to what is expected
    one.verifying, one.side = (), ()


def test_a_tree_grows_by_its_likeliest_drafts() -> None:
    rates = [[0.5, 0.3, 0.01]] * 3
    tree = ProposedTree(rates, 2, width=3, forks=False)
    tree.add(tree.offers(0.02, 9, 9))
    tree.add(tree.offers(0.02, 9, 9))
    assert tree.offers(0.0, 9, 9) == []  # there are two places
    chances, form = tree.made(2)
    assert chances == pytest.approx((0.5, 0.3, 0.25, 0.15))
    assert form == DraftTree((ROOT, ROOT, 0, 0), (0, 1, 0, 1))
    chances, form = tree.made(1)
    assert form == DraftTree((ROOT, ROOT), (0, 1))
    forking = ProposedTree(rates, 3, width=2, forks=True)
    forking.add(forking.offers(0.0, 9, 9))
    assert len(forking.offers(0.0, 9, 9)) == 4
    assert len(forking.offers(0.0, 9, 2)) == 2  # one is a branch already
    assert len(forking.offers(0.0, 3, 9)) == 1
    forking.add(forking.offers(0.0, 9, 9))
    forking.leave_out(0.14)  # the likeliest stay, and what is likelier than that
    chances, form = forking.made(2)
    assert chances == pytest.approx((0.5, 0.3, 0.25, 0.15, 0.15))
    assert form == DraftTree((ROOT, ROOT, 0, 0, 1), (0, 1, 0, 1, 0))
    forking.leave_out(1.0)
    assert forking.made(2) == ((0.5, 0.25), None)
    chain = ProposedTree(rates, 3, width=1, forks=False)
    chain.add(chain.offers(0.0, 9, 0))
    assert chain.num_drafts == 1
    chances, form = chain.made(1)
    assert chances == pytest.approx((0.5,))
    assert form is None


@pytest.mark.parametrize("forks", [True, False])
def test_a_chain_grows_as_a_tree_of_one_candidate_does(*, forks: bool) -> None:
    rng = random.Random(31)
    lengths = set()
    for _ in range(300):
        rates = [[rng.choice([0.0, 0.3, 0.8, 1.0])] for _ in range(5)]
        most_places, most, most_aside = rng.randrange(6), rng.randrange(6), rng.randrange(2)
        both = (
            ProposedChain(rates, most_places),
            ProposedTree(rates, most_places, width=1, forks=forks),
        )
        for _ in range(rng.randrange(7)):
            least = rng.choice([-1.0, 0.0, 0.2])
            chain, tree = (each.offers(least, most, most_aside) for each in both)
            assert chain == tree
            for each, offers in zip(both, (chain, tree), strict=True):
                each.add(offers)
            assert both[0].num_places == both[1].num_places
        number = rng.randrange(6)
        for each in both:
            each.cut(number)
            each.leave_out(rng.random())
        assert both[0].num_places == both[1].num_places
        assert both[0].num_drafts == both[1].num_drafts
        made = [each.made(places) for each in both for places in (0, 2, 9)]
        assert made[:3] == made[3:]
        lengths.add(both[0].num_drafts)
    assert lengths >= {0, 1, 2, 3, 4}


def test_a_plan_asks_for_trees() -> None:
    made = Rig(max_drafts=8, max_branches=8, max_ahead=2, ahead_width=3, num_blocks=100)
    made.add("a", 6, max_tokens=30)
    ahead = made.scheduler.ahead
    assert ahead is not None
    ahead.rates = [[0.5, 0.4, 0.0], [0.9, 0.0, 0.0]]
    for rows in range(1, 6):
        made.scheduler._drafts._comparison.times.learn(rows, 1.0 + 0.01 * rows, has_drafts=False)
    ahead.pass_seconds = 0.01
    plan = planned(made)
    ((slot, form),) = plan.ahead_trees
    assert (slot, form) == (0, DraftTree((ROOT, 0, ROOT), (0, 0, 1)))
    ahead.learn(plan, 0, 1.0, 0.4)
    assert ahead._num_passes == 2


def test_states_have_no_place_for_branches() -> None:
    with pytest.raises(ConfigError, match="max_branches=1"):
        Rig(max_branches=1, groups=(KVGroup(kind="state"),))
