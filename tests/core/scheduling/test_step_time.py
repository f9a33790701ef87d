"""The bound on the time of a step: prompts are cut while others decode, and always advance."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core import stats as why
from octavo.core.limits import StepTime
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.pooling import Pooling
from tests.core.make import Rig, expected_output, tokens

BASE, TOKEN = 0.010, 0.001  # seconds of a step, and of each prompt token in it
PAIR = 0.000005  # seconds of each pair of positions, where a test asks for it


class TimedRig(Rig):
    """A rig on a machine where prompts cost as much as they do here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "num_blocks": 700,
                "max_model_len": 1000,
                "max_num_batched_tokens": 256,
                "itl_ratio": 3.0,
                "prefix_caching": False,
                **settings,
            }
        )
        self._ends: list[float] = []
        self.pair_seconds = 0.0

    def plan(self) -> StepPlan | None:
        """Plan a step; it takes what it costs, after those in flight."""
        self.now -= 1.0  # `Rig.plan` adds a second
        plan = super().plan()
        if plan is not None:
            before = max([self.now, *self._ends])
            pairs = self.scheduler.stats.recent[-1].num_prefill_pairs
            seconds = BASE + TOKEN * self.num_prompt + self.pair_seconds * pairs
            self._ends.append(before + seconds)
        return plan

    def land(self) -> list[Any]:
        self.now = max(self.now, self._ends.pop(0))
        return super().land()

    @property
    def num_prompt(self) -> int:
        """The prompt tokens of the last step."""
        return self.scheduler.stats.recent[-1].num_prefill_tokens

    @property
    def limiter(self) -> StepTime:
        (found,) = (each for each in self.scheduler.limiters if isinstance(each, StepTime))
        return found

    def warm(self, num_streams: int = 2) -> None:
        """Start streams, and let the engine learn what steps cost."""
        for number in range(num_streams):
            self.add(f"s{number}", tokens(1 + number, 1 + number), max_tokens=400)
        self.add("first", tokens(256, 50), max_tokens=1)
        self.step()
        while "first" in self.scheduler.sequences:
            self.step()
        for _ in range(20):
            self.step()

    def chunks_of(self, name: str) -> list[int]:
        """Step until a request has ended; return the lengths of its chunks."""
        while name in self.scheduler.sequences:
            self.step()
        stats = self.end_of(name).stats
        assert stats is not None
        return [chunk.end - chunk.start for chunk in stats.chunks]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_is_cut_so_that_steps_take_three_times_as_long_at_most(depth: int) -> None:
    rig = TimedRig(pipeline_depth=depth)
    rig.warm()
    rig.add("long", tokens(300, 60), max_tokens=1)
    chunks = rig.chunks_of("long")
    assert max(chunks) <= 2 * BASE / TOKEN * 1.1
    assert min(chunks[:-1]) >= 2 * BASE / TOKEN * 0.8
    assert rig.scheduler.stats.num_deferred_tokens > 0


def test_without_a_goal_nothing_is_cut() -> None:
    rig = TimedRig(itl_ratio=0.0)
    rig.add("stream", 1, max_tokens=40)
    rig.step()
    rig.add("long", tokens(500, 60), max_tokens=1)
    assert rig.chunks_of("long") == [255, 245]  # a token of each step is the stream's
    assert not [each for each in rig.scheduler.limiters if isinstance(each, StepTime)]


def test_nothing_is_cut_while_nobody_decodes() -> None:
    rig = TimedRig()
    rig.warm()
    rig.abort("s0")
    rig.abort("s1")
    rig.add("long", tokens(600, 60), max_tokens=1)
    rig.add("other", tokens(300, 70), max_tokens=1)
    deferred = rig.scheduler.stats.num_deferred_tokens
    assert rig.chunks_of("long") == [256, 256, 88]
    assert rig.scheduler.stats.num_deferred_tokens == deferred


def test_an_engine_that_knows_no_times_yet_computes_a_block_a_step() -> None:
    rig = TimedRig()
    rig.add("stream", 1, max_tokens=400)
    rig.step()
    rig.add("long", tokens(100, 60), max_tokens=1)
    rig.step()
    assert rig.num_prompt == rig.config.block_size


def test_chunks_grow_step_by_step_where_only_small_ones_are_known() -> None:
    rig = TimedRig(itl_goal=5.0, itl_ratio=0.0)
    rig.add("stream", 1, max_tokens=400)
    for _ in range(6):
        rig.step()
    rig.add("long", tokens(400, 60), max_tokens=1)
    assert rig.chunks_of("long") == [4, 8, 16, 32, 64, 128, 148]


def test_the_oldest_prompt_gets_a_block_however_much_it_costs() -> None:
    """An absolute goal below the time of decoding alone leaves a block a step."""
    rig = TimedRig(itl_ratio=0.0, itl_goal=BASE / 2)
    rig.warm()
    rig.add("long", tokens(40, 60), max_tokens=1)
    rig.add("behind", tokens(40, 70), max_tokens=1)
    rig.step()
    assert rig.waiting == ["behind"]
    assert rig.scheduler.stats.recent[-1].blocked_by == why.PACE
    assert rig.chunks_of("long") == [4] * 10
    assert rig.chunks_of("behind") == [4] * 10
    waited = rig.end_of("behind").stats
    assert waited is not None
    assert max(waited.wait_seconds, key=lambda reason: waited.wait_seconds[reason]) == why.PACE


def test_prompts_share_the_room_of_a_step_oldest_first() -> None:
    rig = TimedRig()
    rig.warm()
    for number in range(4):
        rig.add(f"p{number}", tokens(8, 60 + number), max_tokens=1)
    plan = rig.plan()
    shares = {name: each for name, (_, each) in rig.chunks(plan).items() if name[0] == "p"}
    assert list(shares.items())[:2] == [("p0", 8), ("p1", 8)]
    assert 0 < shares["p2"] < 8
    assert "p3" not in shares


def test_a_running_prompt_gets_what_older_ones_leave() -> None:
    rig = TimedRig(long_prefill_tokens=14)
    rig.warm()
    for number in range(3):
        rig.add(f"p{number}", tokens(100, 60 + number), max_tokens=1)
    for _ in range(3):
        chunks = rig.chunks(rig.plan())
        assert chunks["p0"][1] == 14
        assert 4 <= chunks["p1"][1] <= 8
        assert "p2" not in chunks
        rig.land()


def test_a_prompt_that_comes_before_the_streams_counts_those_behind_it() -> None:
    rig = TimedRig(num_blocks=900)
    rig.warm(6)
    rig.add("old", tokens(300, 60), max_tokens=1, arrival=-1.0)
    rig.step()
    assert rig.running[0] == "old"
    assert max(rig.chunks_of("old")) <= 22


def test_a_step_with_hardly_any_prompt_comes_from_time_to_time() -> None:
    """Steps of a never-ending prompt would not show what decoding alone takes."""
    rig = TimedRig(max_model_len=2000)
    rig.warm()
    rig.add("endless", tokens(1500, 60), max_tokens=1)
    chunks = rig.chunks_of("endless")
    assert len(chunks) > 70
    assert rig.config.block_size in chunks[60:70]


def test_the_time_of_paced_steps_is_predicted() -> None:
    rig = TimedRig()
    rig.warm()
    before = rig.scheduler.stats.paced_seconds, rig.scheduler.stats.paced_predicted_seconds
    num_before = rig.scheduler.stats.num_paced
    rig.add("long", tokens(300, 60), max_tokens=1)
    chunks = rig.chunks_of("long")
    stats = rig.scheduler.stats
    assert stats.num_paced - num_before == len(chunks)
    measured, predicted = stats.paced_seconds - before[0], stats.paced_predicted_seconds - before[1]
    assert measured == pytest.approx(predicted, rel=0.1)


def test_a_request_counts_the_chunks_that_were_cut_for_others() -> None:
    rig = TimedRig()
    rig.warm()
    rig.add("long", tokens(100, 60), max_tokens=1)
    chunks = rig.chunks_of("long")
    stats = rig.end_of("long").stats
    assert stats is not None
    assert stats.num_paced_chunks == len(chunks) - 1 > 0


def test_a_first_token_that_would_be_late_gets_longer_steps() -> None:
    """300 tokens cost 0.3 s: with half a second left, there is time for few steps."""
    rig = TimedRig(ttft_goal=0.5)
    rig.warm()
    rig.add("long", tokens(300, 60), max_tokens=1)
    began = rig.now
    chunks = rig.chunks_of("long")
    assert max(chunks) > 25
    ended = rig.end_of("long").stats
    assert ended is not None
    assert ended.first_token_at is not None
    assert ended.first_token_at - began <= 0.5


def test_a_first_token_that_has_time_costs_the_streams_nothing() -> None:
    rig = TimedRig(ttft_goal=60.0)
    rig.warm()
    rig.add("long", tokens(300, 60), max_tokens=1)
    assert max(rig.chunks_of("long")) <= 22


def test_a_first_token_that_is_late_anyhow_costs_the_streams_nothing() -> None:
    """An overloaded engine misses one goal, not both."""
    rig = TimedRig(ttft_goal=0.2)
    rig.warm()
    rig.add("long", tokens(300, 60), max_tokens=1)
    assert max(rig.chunks_of("long")) <= 22


def test_a_prompt_that_is_due_is_admitted_beside_one_that_is_not() -> None:
    rig = TimedRig(ttft_goal=0.4)
    rig.warm()
    rig.add("old", tokens(400, 60), max_tokens=1, arrival=rig.now - 10.0)
    rig.add("due", tokens(200, 70), max_tokens=1)
    plan = rig.plan()
    chunks = rig.chunks(plan)
    assert chunks["old"][1] <= 22
    assert chunks["due"][1] > 8


def test_a_prompt_that_is_never_cut_comes_whole_and_alone() -> None:
    rig = TimedRig(chunked_prefill=False, max_num_batched_tokens=1000)
    rig.warm()
    for number in range(3):
        rig.add(f"p{number}", tokens(60, 60 + number), max_tokens=1)
    for number in range(3):
        rig.step()
        assert rig.num_prompt == 60
        assert [f"p{each}" for each in range(number + 1, 3)] == rig.waiting
    rig.add("small", tokens(5, 80), max_tokens=1)
    rig.add("too", tokens(6, 81), max_tokens=1)
    rig.step()
    assert rig.num_prompt == 11, "both fit"


def test_texts_to_embed_are_cut_like_prompts() -> None:
    rig = TimedRig()
    rig.warm()
    rig.worker.payloads = {"text": "vector"}
    rig.add("text", tokens(300, 60), max_tokens=0, pooling=Pooling())
    chunks = rig.chunks_of("text")
    assert max(chunks) <= 22
    assert rig.scheduler.stats.recent[-1].num_pooled_tokens > 0


def test_prompt_logprobs_and_long_prefills_still_clip() -> None:
    rig = TimedRig(prompt_logprob_tokens=6, long_prefill_tokens=9)
    rig.warm()
    rig.add("reports", tokens(50, 60), max_tokens=1, prompt_logprobs=0)
    rig.add("plain", tokens(50, 70), max_tokens=1)
    plan = rig.plan()
    chunks = rig.chunks(plan)
    assert (chunks["reports"][1], chunks["plain"][1]) == (6, 9)


def test_drafts_count_as_decoding() -> None:
    """A step with drafts takes no longer here, so their number changes nothing for prompts."""
    rig = TimedRig(max_drafts=3)
    rig.worker.drafter = lambda known: [1, 2, 3]
    rig.warm()
    rig.add("long", tokens(200, 60), max_tokens=1)
    chunks = rig.chunks_of("long")
    assert 14 < max(chunks[:-1]) <= 22


def test_tokens_do_not_depend_on_how_prompts_are_cut() -> None:
    rigs = [TimedRig(itl_ratio=ratio) for ratio in (0.0, 3.0)]
    outputs = []
    for rig in rigs:
        rig.add("stream", tokens(5, 2), max_tokens=60)
        for _ in range(10):
            rig.step()
        rig.add("long", tokens(300, 60), max_tokens=5)
        outputs.append(rig.finish())
    assert outputs[0] == outputs[1]
    assert outputs[0]["long"] == expected_output(tokens(300, 60), 5)


def test_a_stream_whose_first_token_is_in_flight_is_a_stream() -> None:
    """The step behind the end of its prompt is bounded, where two are in flight."""
    rig = TimedRig(pipeline_depth=2, itl_goal=0.02, itl_ratio=0.0)
    rig.warm(1)
    rig.abort("s0")
    while rig.results:
        rig.land()
    rig.add("new", tokens(5, 60), max_tokens=50)
    rig.plan()
    rig.add("long", tokens(300, 70), max_tokens=1)
    plan = rig.plan()
    chunks = rig.chunks(plan)
    assert chunks["new"] == (5, 1)
    assert chunks["long"][1] <= 12


def test_a_sequence_that_leaves_is_not_remembered() -> None:
    rig = TimedRig()
    rig.warm()
    assert list(rig.limiter.running) == rig.running == ["s0", "s1"]
    for name in rig.running:
        rig.abort(name)
    assert rig.limiter.running == {}


def test_prompts_of_several_owners_advance_together() -> None:
    """Shares divide what the goal leaves: an earlier prompt of one key keeps no other waiting."""
    rig = TimedRig()
    rig.warm()
    rig.add("early", tokens(250, 60), owner="a", max_tokens=2)
    rig.step()
    rig.add("late", tokens(250, 61), owner="b", max_tokens=2)
    rig.add("later", tokens(250, 62), owner="b", max_tokens=2)
    chunks = rig.chunks_of("late")
    assert len(chunks) > 3
    assert "early" in rig.scheduler.sequences or rig.chunks_of("early")
    assert max(chunks) * TOKEN <= 2 * BASE
    rig.finish()


def test_owners_share_the_seconds_of_a_step_not_its_tokens() -> None:
    """A token far inside one key's prompt costs as much as five first ones of another key's."""
    rig = TimedRig(max_model_len=2000, num_blocks=1500)
    rig.pair_seconds = PAIR
    rig.warm()
    rig.add("deep", tokens(1500, 60), owner="a", max_tokens=2)
    while rig.scheduler.sequences["deep"].num_planned < 900:
        rig.step()
    for number in range(6):
        rig.add(f"p{number}", tokens(12, 70 + number), owner="b", max_tokens=2)
    for _ in range(2):  # each with twice as many tokens as those before, which were far inside
        rig.step()
    plan = rig.plan()
    chunks = rig.chunks(plan)
    shallow = sum(count for name, (_, count) in chunks.items() if name[0] == "p")
    assert shallow * TOKEN > 0.7 * BASE, "half of what the goal leaves"
    assert chunks["deep"][1] * (TOKEN + PAIR * chunks["deep"][0]) < 1.5 * BASE


@pytest.mark.parametrize("num_owners", [2, 6])
def test_each_owner_has_its_part_of_a_block_however_slow_prompts_are(num_owners: int) -> None:
    rig = TimedRig(itl_ratio=1.01)
    rig.warm()
    for number in range(num_owners):
        rig.add(f"p{number}", tokens(60, 70 + number), owner=f"key {number}", max_tokens=2)
    rig.step()
    rig.step()
    planned = [rig.scheduler.sequences[f"p{number}"].num_planned for number in range(num_owners)]
    assert all(planned)
    rig.finish()


def test_the_room_for_prompts_is_known_before_a_step_is_planned() -> None:
    rig = TimedRig(num_blocks=900)
    assert rig.limiter.most_prompt_tokens(100) == 100, "nothing decodes"
    rig.warm()
    rig.limiter.begin(PlanDraft(), rig.now)
    room = rig.limiter.most_prompt_tokens(200)
    assert rig.limiter.most_prompt_tokens(2) == 2, "of a budget below a block"
    assert room == rig.limiter.most_prompt_tokens(200)
    assert rig.scheduler.config.block_size <= room < 200
    hurried = TimedRig(ttft_goal=5.0)
    hurried.warm()
    assert hurried.limiter.most_prompt_tokens(200) == 200, "a late first token may need more"
