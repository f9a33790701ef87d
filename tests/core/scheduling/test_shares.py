"""Shares: the owners of requests divide the slots, the blocks and the tokens of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import ValuesView
from typing import Any

import pytest

from octavo.core import queue, stats
from octavo.core.admission import share, start
from octavo.core.sequence import Line
from tests.core.make import Rig, expected_output, tokens


def flood(rig: Rig, owner: str, count: int, **fields: Any) -> None:
    """Add requests of one owner, with prompts that share nothing."""
    fields.setdefault("max_tokens", 30)
    for number in range(count):
        name = f"{owner}{number}"
        rig.add(name, tokens(4, len(rig.scheduler.sequences) + 1), owner=owner, **fields)


def holders(rig: Rig) -> dict[str, int]:
    """Return how many sequences of each owner run."""
    return dict(Counter(each.request.owner for each in rig.scheduler.running))


def test_a_new_owner_gets_a_slot_in_the_next_step() -> None:
    """One owner holds all slots and has more waiting; its youngest yields, and loses no token."""
    rig = Rig(num_blocks=200)
    flood(rig, "a", 12)
    for _ in range(3):
        rig.step()
    rig.add("b", tokens(9, 50), owner="b", max_tokens=3)
    rig.step()
    assert rig.running[:2] == ["a0", "b"]
    assert rig.outputs()["b"]
    assert holders(rig) == {"a": 7, "b": 1}
    outputs = rig.finish()
    assert outputs["b"] == expected_output(tokens(9, 50), 3)
    assert outputs["a7"] == expected_output(tokens(4, 8), 30)
    given = rig.end_of("a7").stats
    assert given is not None
    assert (given.num_preemptions, given.num_yields) == (1, 1)
    assert given.wait_seconds[stats.SHARE] > 0
    assert rig.scheduler.stats.preempted_for == {stats.SHARE: 1}


def test_without_shares_a_new_owner_waits() -> None:
    rig = Rig(num_blocks=200, fair_share=False)
    flood(rig, "a", 12)
    rig.step()
    rig.add("b", tokens(9, 50), owner="b", max_tokens=3, is_background=True)
    rig.step()
    assert holders(rig) == {"a": 8}
    rig.finish()
    assert list(rig.ends())[-1] != "b"
    assert rig.scheduler.stats.num_preemptions == 0


def test_many_new_owners_start_in_one_step() -> None:
    rig = Rig(num_blocks=200)
    flood(rig, "a", 12)
    rig.step()
    for owner in "bcdefgh":
        flood(rig, owner, 2)
    rig.step()
    assert holders(rig) == dict.fromkeys("abcdefgh", 1)
    rig.finish()


@pytest.mark.parametrize(("weight", "slots"), [(1.0, 4), (3.0, 6), (0.5, 3)])
def test_owners_that_want_more_than_there_is_have_slots_by_their_weights(
    weight: float, slots: int
) -> None:
    rig = Rig(num_blocks=300)
    flood(rig, "a", 12)
    rig.step()
    flood(rig, "b", 12, weight=weight)
    for _ in range(4):
        rig.step()
    assert holders(rig) == {"a": 8 - slots, "b": slots}
    num_preempted = rig.scheduler.stats.num_preemptions
    for _ in range(20):
        rig.step()
    assert rig.scheduler.stats.num_preemptions == num_preempted, "shares are kept, not swapped"
    rig.finish()


def test_nobody_yields_while_slots_are_free() -> None:
    rig = Rig(num_blocks=300)
    flood(rig, "a", 6)
    rig.step()
    flood(rig, "b", 2)
    rig.step()
    assert holders(rig) == {"a": 6, "b": 2}
    rig.finish()
    assert rig.scheduler.stats.num_preemptions == 0


def test_an_owner_that_holds_most_blocks_has_more_than_its_slots() -> None:
    """Two sequences of 24 blocks are worth six of the eight slots: the second one yields."""
    rig = Rig(num_blocks=65, max_model_len=128, max_num_batched_tokens=256)
    for name in "ab":
        rig.add(name, tokens(96, 1 + ord(name)), owner="a", max_tokens=20)
    rig.step()
    assert rig.running == ["a", "b"]
    rig.add("c", tokens(70, 4), owner="b", max_tokens=4)
    rig.step()
    assert (rig.running, rig.waiting) == (["a", "c"], ["b"])
    rig.finish()
    assert rig.scheduler.stats.preempted_for == {stats.SHARE: 1}


def test_nobody_yields_if_the_blocks_would_not_suffice_even_then() -> None:
    """The first sequence of another owner keeps its blocks, and those of its second are few."""
    rig = Rig(num_blocks=32, max_model_len=120)
    rig.add("first", tokens(60, 2), owner="a", max_tokens=30)
    rig.step()
    rig.add("second", tokens(8, 3), owner="a", max_tokens=30)
    rig.step()
    rig.add("other", tokens(64, 4), owner="b", max_tokens=4)
    for _ in range(3):
        rig.step()
    assert (rig.running, rig.waiting) == (["first", "second"], ["other"])
    rig.finish()


def test_background_work_runs_where_no_other_waits() -> None:
    rig = Rig(num_blocks=300)
    flood(rig, "a", 8, is_background=True)
    rig.step()
    assert holders(rig) == {"a": 8}
    rig.add("now", tokens(9, 50), owner="a", max_tokens=3)
    rig.add("other", tokens(9, 51), owner="b", max_tokens=3)
    rig.step()
    assert rig.running[:2] == ["now", "other"]
    assert len(rig.waiting) == 2
    flood(rig, "b", 20)
    rig.step()
    assert [each.request.is_background for each in rig.scheduler.running] == [False] * 8
    rig.finish()
    waited = rig.end_of("a7").stats
    assert waited is not None
    assert set(waited.wait_seconds) <= {stats.SHARE, stats.TURN}


def test_owners_take_turns_where_slots_are_fewer() -> None:
    """Two owners share one slot by turns of five tokens, and none is lost."""
    rig = Rig(max_num_seqs=1, num_blocks=100, share_quantum=5)
    rig.add("a", tokens(6, 1), owner="a", max_tokens=20)
    rig.step()
    rig.add("b", tokens(6, 2), owner="b", max_tokens=20)
    order = []
    while rig.scheduler.sequences:
        order += [event.request_id for event in rig.step() if event.tokens]
    runs = "".join(order)
    assert runs.startswith("aaaa" + "bbbbb")
    assert "a" * 14 not in runs, runs
    assert rig.outputs()["a"] == expected_output(tokens(6, 1), 20)
    assert rig.outputs()["b"] == expected_output(tokens(6, 2), 20)
    assert rig.scheduler.stats.preempted_for[stats.SHARE] >= 4


def test_an_owner_with_a_backlog_does_not_keep_a_newcomer_from_its_turn() -> None:
    """Requests of two owners take turns in one slot, however many wait."""
    rig = Rig(max_num_seqs=1, num_blocks=100)
    flood(rig, "a", 10, max_tokens=2)
    rig.step()
    rig.add("b", tokens(4, 60), owner="b", max_tokens=2)
    rig.finish()
    assert list(rig.ends()).index("b") <= 2


def test_a_turn_is_not_given_to_an_owner_that_was_served_more() -> None:
    rig = Rig(max_num_seqs=1, num_blocks=100, share_quantum=2)
    rig.add("old", tokens(6, 3), owner="b", max_tokens=40)
    rig.finish()
    rig.add("a", tokens(6, 1), owner="a", max_tokens=10)
    rig.step()
    rig.add("b", tokens(6, 2), owner="b", max_tokens=10)
    rig.finish()
    assert list(rig.ends()) == ["old", "a", "b"]
    assert rig.scheduler.stats.num_preemptions == 0


def test_an_owner_that_returns_has_saved_nothing_up() -> None:
    rig = Rig(max_num_seqs=1, num_blocks=100)
    rig.add("a", tokens(6, 1), owner="a", max_tokens=40)
    rig.add("b", tokens(6, 2), owner="b", max_tokens=4)
    rig.step()
    assert rig.scheduler.sequences["b"].line.served == 0
    rig.finish()
    rig.add("c", tokens(6, 1), owner="a", max_tokens=40)
    rig.add("d", tokens(6, 2), owner="b", max_tokens=4)
    lines = {name: rig.scheduler.sequences[name].line.served for name in "cd"}
    assert lines["c"] == lines["d"] > 40


def test_only_so_many_owners_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_REMEMBERED", 2)
    rig = Rig()
    for owner in "abc":
        rig.add(owner, 4, owner=owner, max_tokens=2)
        rig.finish()
    assert len(rig.scheduler.queue._served) == 2
    assert not rig.scheduler.queue.lines


def test_long_prompts_of_one_owner_leave_tokens_of_each_step_to_others() -> None:
    """Each owner's first prompt gets half of a step; what one leaves, the other takes."""
    rig = Rig(num_blocks=400, max_model_len=300, max_num_batched_tokens=32)
    flood(rig, "x", 3)
    rig.step()
    for name in "ab":
        rig.add(name, tokens(200, ord(name)), owner="a", max_tokens=2)
    rig.step()
    rig.add("c", tokens(40, 7), owner="b", max_tokens=2)
    chunks = rig.chunks(rig.plan())
    assert (chunks["a"][1], chunks["c"][1]) == (15, 14), "half of what three others leave"
    assert [chunks[name][1] for name in ("x0", "x1", "x2")] == [1, 1, 1]
    rig.land()
    rig.plan()
    rig.land()
    chunks = rig.chunks(rig.plan())
    assert (chunks["a"][1], chunks["c"][1]) == (17, 12)
    rig.land()
    rig.finish()


def test_owners_divide_what_drafts_leave_of_a_step() -> None:
    rig = Rig(
        num_blocks=400,
        max_model_len=300,
        max_num_batched_tokens=32,
        max_drafts=12,
        drafter=lambda known: [1] * 12,
    )
    flood(rig, "x", 1)
    rig.step()
    for name in "ab":
        rig.add(name, tokens(200, ord(name)), owner=name, max_tokens=2)
    rig.step()
    chunks = rig.chunks(rig.plan())
    assert [chunks[name][1] for name in ("x0", "a", "b")] == [8, 12, 12]
    rig.land()
    rig.finish()


def test_priority_holds_within_an_owner_and_takes_nothing_from_others() -> None:
    rig = Rig(num_blocks=300, max_num_seqs=4, policy="priority")
    flood(rig, "a", 2)
    flood(rig, "b", 2)
    rig.step()
    rig.add("urgent", tokens(4, 70), owner="b", priority=-5, max_tokens=10)
    rig.step()
    assert holders(rig) == {"a": 2, "b": 2}
    assert "urgent" in rig.running
    assert rig.waiting == ["b1"]
    rig.finish()


def test_levels_are_counted_again_when_sequences_have_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sequence starts or ends, yet one owner's blocks become more than its slots."""
    monkeypatch.setattr(share, "REFRESH_STEPS", 2)
    rig = Rig(num_blocks=61, max_num_seqs=4, max_model_len=200, max_num_batched_tokens=256)
    rig.add("a0", tokens(60, 1), owner="a", max_tokens=90)
    rig.add("a1", tokens(4, 2), owner="a", max_tokens=90)
    flood(rig, "b", 6)
    rig.step()
    assert holders(rig) == {"a": 2, "b": 2}
    for _ in range(60):
        rig.step()
    assert "a1" not in rig.running, "with a third of the blocks, a's first is worth two slots"
    rig.finish()


def test_a_running_prefix_of_a_later_place_is_not_waited_for() -> None:
    """The new owner computes a prefix itself that another owner's third sequence computes."""
    rig = Rig(num_blocks=300, max_model_len=200, max_num_batched_tokens=32, watermark=0.0)
    flood(rig, "a", 2)
    rig.step()
    rig.add("slow", tokens(100, 9), owner="a", max_tokens=2)
    rig.step()
    rig.add("new", tokens(40, 9), owner="b", max_tokens=2)
    rig.step()
    assert "new" in rig.running
    assert not rig.following
    rig.finish()


def test_a_step_lets_only_so_many_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MAX_FOLLOWING", 1)
    rig = Rig(long_prefill_tokens=8)
    for name in "abcd":
        rig.add(name, 33, max_tokens=2)
    for count in (1, 2):
        rig.step()
        assert len(rig.following) == count
    rig.finish()


def test_a_new_owner_without_tokens_in_the_step_displaces_no_other() -> None:
    """Prompts are not cut, and this one does not fit behind what runs: no slot is taken."""
    rig = Rig(num_blocks=200, max_num_seqs=3, chunked_prefill=False, max_num_batched_tokens=64)
    flood(rig, "a", 2, max_tokens=4)
    flood(rig, "c", 1, max_tokens=4)
    rig.step()
    rig.add("b", tokens(63, 50), owner="b", max_tokens=1)
    rig.step()
    assert holders(rig) == {"a": 2, "c": 1}
    rig.finish()
    assert rig.scheduler.stats.num_preemptions == 0


def test_a_weight_out_of_bounds_is_refused() -> None:
    rig = Rig()
    for weight in (0.0, -1.0, 1e9, float("nan")):
        refused = rig.add("a", 5, weight=weight)
        assert refused is not None
        assert refused.finish_reason == "refused"


def test_a_new_owner_follows_the_first_sequence_of_another() -> None:
    """A slot is not taken from anyone for a sequence that waits for a prefix."""
    rig = Rig(num_blocks=200, max_num_seqs=2, long_prefill_tokens=8)
    rig.add("a", tokens(60, 5), owner="a", max_tokens=2)
    rig.add("a1", tokens(8, 6), owner="a", max_tokens=30)
    rig.step()
    rig.add("b", tokens(60, 5), owner="b", max_tokens=2)
    rig.step()
    assert rig.running == ["a", "a1"]
    rig.finish()


def test_a_sequence_that_followed_a_victim_is_before_the_next_of_its_owner() -> None:
    """The victim yields to the later one, but ends a wait of the earlier one, which starts."""
    rig = Rig(num_blocks=200, max_num_seqs=3, long_prefill_tokens=8)
    rig.add("source", tokens(60, 5), owner="a", arrival=10.0)
    rig.step()
    rig.add("follower", tokens(60, 5), owner="b", weight=2.0, arrival=11.0)
    rig.step()
    assert rig.following == ["follower"]
    rig.add("older a", tokens(4, 1), owner="a", arrival=1.0)
    rig.add("older b", tokens(4, 2), owner="b", weight=2.0, arrival=2.0)
    rig.step()
    assert len(rig.running) == 3
    rig.add("later", tokens(4, 9), owner="b", weight=2.0, arrival=12.0)
    rig.step()
    assert set(rig.running) == {"older a", "older b", "follower"}
    rig.finish()


def test_an_owner_that_got_a_slot_meanwhile_needs_no_turn() -> None:
    rig = Rig(num_blocks=200, max_num_seqs=1, share_quantum=3)
    rig.add("a", tokens(6, 1), owner="a", max_tokens=4)
    rig.step()
    flood(rig, "b", 2, max_tokens=9)
    rig.finish()
    assert list(rig.ends()) == ["a", "b0", "b1"]


def test_a_turn_is_not_given_to_an_owner_whose_next_sequence_has_started() -> None:
    """A sequence that was to get a turn may be passed by another of its owner's before that."""
    rig = Rig(num_blocks=200, max_num_seqs=2, share_quantum=1)
    rig.add("a", tokens(40, 1), owner="a", max_tokens=20)
    flood(rig, "b", 2)
    for _ in range(3):
        rig.step()
    rig.scheduler._starts._out_of_turn = rig.scheduler.sequences["b1"]
    rig.add("b2", tokens(4, 9), owner="b")
    rig.step()
    assert rig.running == ["a", "b0"]
    assert not rig.scheduler.stats.num_preemptions
    rig.finish()


class _CountedLines(dict[tuple[str, int], Line]):
    """The lines of a queue, which count how many of them were looked at."""

    num_seen = 0

    def __getitem__(self, key: tuple[str, int]) -> Line:
        self.num_seen += 1
        return super().__getitem__(key)

    def values(self) -> ValuesView[Line]:  # type: ignore[override]
        return ValuesView(self)


def test_the_work_of_a_step_grows_no_faster_than_the_number_of_owners() -> None:
    seen = []
    for num_owners in (50, 200):
        rig = Rig(num_blocks=200)
        for number in range(num_owners):
            flood(rig, f"owner {number} ", 1)
        for _ in range(12):
            rig.step()
        lines = rig.scheduler.queue.lines = _CountedLines(rig.scheduler.queue.lines)
        for _ in range(5):
            rig.step()
        seen.append(lines.num_seen)
    assert seen[1] < 6 * seen[0]
