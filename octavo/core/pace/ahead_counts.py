"""What a second model computes and proposes in a step: as much as gains more than it costs.

Proposing takes a pass of the second model for each place, or one for all of them (`_in_block`),
which all sequences of a step share, and in the next step a row of the first model for each draft.
How often the proposals of a place are right is measured in each sequence, from what the engine has
seen; the seconds of a pass are those that the workers report. As many places are chosen as raise
the tokens per second (comparison.py).

Where nothing is proposed for a sequence, the second model does not read it either, and takes no
time. When it is used again, it catches up: it computes what it lacks in one pass, at once if that
is not too much. What it has measured slowly returns to what is expected first, so that it is tried
again. Where the machine stalls, a pass counts as no more than twice what is known of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Series

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.pace.comparison import LEAST_GAIN, Comparison
from octavo.core.pace.proposed_tree import ProposedChain, ProposedTree
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from octavo.core.trees.form import ROOT, depths_of

FIRST_RATE = 0.7  # of right proposals, before any has been verified
# Of a place's other candidates, the second has this part of the rest, and each later one half.
OTHERS_PART = 0.4
# The part of a step without rows that a pass takes, until passes have been measured.
PASS_COST = 0.15
NUM_TRIED = 16  # steps, after which the seconds of a pass are known well
_OWN_GAIN = 0.125  # weight of the newest proposal in the rates of its sequence
_COMMON_GAIN = 0.0625  # … in those of the engine
# Other candidates are seldom right: how often shows in the mean of more steps only.
_OTHERS_PART_OF_GAIN = 0.25
_OWN_RETURN = 0.02  # towards the engine's rates, in a step that verifies none
_COMMON_RETURN = 0.002  # towards the first rate
_PASS_GAIN = 0.2  # weight of the newest step in the seconds of a pass
# Where no proposal pays, the question is asked again after two steps, later after so many: a step
# that need not be decided is made from the one before it.
_MOST_BETWEEN = 4


class AheadCounts:
    """The rule for the second model, and the rates of its proposals."""

    def __init__(self, config: CoreConfig, kv: KVManager, comparison: Comparison) -> None:
        self._most = config.max_ahead
        self._most_lag = config.max_ahead_lag
        self._longest = config.max_ahead_len or config.max_model_len
        self._budget = config.max_num_batched_tokens
        self._kv = kv
        self._comparison = comparison
        self._width = config.ahead_width if config.max_branches else 1
        self._forks, self._in_block = config.ahead_forks, config.ahead_in_block
        self._most_branches, self._most_drafts = config.max_branches, config.max_drafts
        rest = (1.0 - FIRST_RATE) * OTHERS_PART
        self._first_rates = [FIRST_RATE, *[rest * 0.5**more for more in range(self._width - 1)]]
        self._all_first_rates = [self._first_rates] * self._most
        self.rates = [[*self._first_rates] for _ in range(self._most)]
        self.pass_seconds = 0.0  # 0: not measured yet
        self._num_passes = 0  # in the last step that has ended
        self._pays = True  # it proposed for some sequence when it was last asked
        self._first_pass = 0.0  # what one is expected to take before it is measured
        self._num_measured = 0  # steps; the first may have waited for memory or files
        self._usual_step = -1  # the last one in which passes were of the usual size
        self._asked_at = -1  # the last step of which it was decided what is proposed
        self._next_at = 0  # the one of which that will be decided
        self._num_between = 1  # steps from the one to the other

    @property
    def expected_seconds(self) -> float:
        """The seconds that the second model will take in the next step, if texts only grow."""
        return 0.0 if self._comparison.is_resting else self._num_passes * self.pass_seconds

    def is_due(self, step: int) -> bool:
        """Return whether it is to be asked what is proposed in a step."""
        return step >= self._next_at and self._comparison.may_have_drafts(step + 1)

    def pays(self, running: Series[Sequence], step: int) -> bool:
        """Return whether something will be proposed in a step, if all before it have ended."""
        num_rows = num_read = 0
        sampling = []
        for each in running:
            if not each.catching_up:
                num_rows += 1
                num_read += each.num_planned
                if self._may_propose(each, each.num_planned, 1):
                    sampling.append(each)
        trees = self._trees(sampling, num_rows, num_read, num_more=1)
        counts = [tree.num_places for tree in trees]
        if not any(counts):
            self._has_asked(step, sampling, counts)
            self._ask_later(step, is_quiet=True)
        return any(counts)

    def _may_propose(self, sequence: Sequence, start: int, count: int) -> bool:
        """Return whether the second model may read a sequence up to the end of a chunk."""
        is_behind = start - sequence.num_followed > self._most_lag
        return sequence.may_draft and not is_behind and start + count <= self._longest

    def _has_asked(self, step: int, sampling: list[Sequence], counts: list[int]) -> None:
        """Note for which of these sequences something is proposed in a step."""
        if sampling:
            self._pays = any(counts)
            self._return(sampling, counts, step - self._asked_at)
            self._asked_at = step

    def _ask_later(self, step: int, *, is_quiet: bool) -> None:
        """Decide when it is asked again: in the next step, or later where nothing is proposed."""
        self._num_between = min(2 * self._num_between, _MOST_BETWEEN) if is_quiet else 1
        self._next_at = step + self._num_between

    def choose(self, draft: PlanDraft, step: int) -> None:
        """Add to a plan what the second model computes, and give it the blocks for that.

        It reads known tokens only, and none that a step in flight draws.
        """
        if self._comparison.is_resting:
            return
        sampling: list[Sequence] = []
        reading: list[Sequence] = []  # whose chunks end before their last token
        num_rows = num_read = 0
        chunks = zip(draft.sequences, draft.starts, draft.counts, draft.samples, strict=True)
        for sequence, start, count, samples in chunks:
            if sequence is None:
                continue
            if samples:
                num_rows += 1
                num_read += start
            if not self._may_propose(sequence, start, count):
                continue
            if sequence.verifying and self._is_outdone(sequence):
                continue
            (sampling if samples else reading).append(sequence)
        is_due = self.is_due(step)
        if not is_due:
            sampling = []
        trees = self._trees(sampling, num_rows, num_read)
        counts = [tree.num_places for tree in trees]
        self._has_asked(step, sampling, counts)
        usual = 2 * len(sampling)
        for sequence, tree in zip(sampling, trees, strict=True):
            count = self._with_room(sequence, tree.num_places, draft)
            if count:
                num_known = len(sequence.tokens)
                assert sequence.num_expected == num_known + 1, "proposals behind an unknown token"
                usual -= max(0, sequence.num_planned - sequence.num_followed - self._most - 1)
                chances, form = tree.made(count)
                draft.ahead.append((sequence.slot, chances))
                if form is not None:
                    draft.ahead_trees.append((sequence.slot, form))
                sequence.num_followed = sequence.num_planned
        for sequence in reading if self._pays else ():
            usual = -1
            draft.ahead.append((sequence.slot, ()))
            sequence.num_followed = sequence.num_planned
        if draft.ahead and usual >= 0:
            self._usual_step = step
        if is_due:
            are_outdone = any(each.verifying for each in draft.sequences if each is not None)
            self._ask_later(step, is_quiet=num_rows > 0 and not (draft.ahead or are_outdone))

    def _is_outdone(self, sequence: Sequence) -> bool:
        """Return whether the prediction that a sequence follows is likelier right than proposals.

        As long as it is followed, its drafts would be sent in their place.
        """
        if not sequence.are_predicted:
            return False
        expected, chance = 0.0, 1.0
        for rates in sequence.rates or self.rates:
            chance *= rates[0]
            expected += chance
        return sum(sequence.chances) >= expected

    def _trees(
        self, sampling: list[Sequence], num_rows: int, num_read: int, num_more: int = 0
    ) -> list[ProposedTree]:
        """Return for each sequence the proposals that gain more than they cost.

        They come behind a step of `num_more` tokens each that is not planned yet.
        """
        if not sampling:
            return []
        plain, seconds_of = self._comparison.costs(num_rows, num_read)
        self._first_pass = PASS_COST * self._comparison.times.seconds(0)
        each_pass = self._first_pass
        if self._comparison.times and self.pass_seconds:
            each_pass = self.pass_seconds
        room = (self._budget - num_rows) // len(sampling)
        most, most_aside = min(room, self._most_drafts), self._most_branches // len(sampling)
        trees = [self._tree(each, self._places(each, room, num_more)) for each in sampling]
        tokens, speed, rows = float(num_rows), num_rows / plain, num_rows
        most_rows = self._comparison.times.most_rows(num_rows)
        best_speed, best, least = speed * (1.0 + LEAST_GAIN), 0, 1.0
        for place in range(1, self._most + 1):
            # What a row costs where each sequence gets one more.
            row = (seconds_of(rows + len(trees)) - seconds_of(rows)) / len(trees)
            all_offers = [tree.offers(speed * row, most, most_aside) for tree in trees]
            num_added = sum(map(len, all_offers))
            if not num_added or rows + num_added > most_rows:
                break
            for tree, offers in zip(trees, all_offers, strict=True):
                tree.add(offers)
                tokens += sum([offer.chance for offer in offers])
            rows += num_added
            seconds = seconds_of(rows) + (1 if self._in_block else place) * each_pass
            # Until its passes are paid for, no draft is worth a row that is not without them.
            speed = max(tokens / seconds, num_rows / plain)
            if speed > best_speed:
                best, best_speed, least = place, speed, speed * row
        for tree in trees:
            tree.cut(best)
            tree.leave_out(least)
        if best:
            self._comparison.has_chosen(num_rows, best_speed * plain / num_rows - 1.0)
        return trees

    def _tree(self, sequence: Sequence, most_places: int) -> ProposedTree:
        """Return the tree of a sequence, which has no drafts yet."""
        if not sequence.rates:
            sequence.rates = [[*rates] for rates in self.rates]
        if self._width == 1:
            return ProposedChain(sequence.rates, most_places)
        return ProposedTree(sequence.rates, most_places, width=self._width, forks=self._forks)

    def _places(self, sequence: Sequence, room: int, num_more: int) -> int:
        """Return for how many places something may be proposed."""
        return min(self._most, room, self._useful(sequence, num_more))

    def _useful(self, sequence: Sequence, num_more: int = 0) -> int:
        """Return how many tokens behind the present sample could be drafts of the next step.

        The second model reads the sample and all of them but the last.
        """
        num_planned = sequence.num_planned + num_more
        num_expected = sequence.num_expected + num_more
        if self._in_block and num_planned + self._most + 1 > self._longest:
            return 0  # all rows of a block have their places, or it is not computed
        before_end = sequence.max_total - num_expected - 1
        return max(0, min(before_end, self._longest - num_planned))

    def _with_room(self, sequence: Sequence, count: int, draft: PlanDraft) -> int:
        """Return how many of these proposals have blocks, for which free ones may be taken.

        Each sequence can still have another block then, so that nothing is preempted for these.
        """
        end = sequence.num_planned + (self._most + 1 if self._in_block else count)
        if count and end > sequence.num_capacity:
            if self._kv.pool.num_free > len(draft.sequences) * len(self._kv.groups):
                added = self._kv.grow(sequence, end)
                if added:
                    draft.add_blocks(sequence.slot, added)
            if end > sequence.num_capacity:
                room = sequence.num_capacity - sequence.num_planned
                count = 0 if self._in_block else room
        return count

    def _return(self, sampling: list[Sequence], counts: list[int], num_steps: int) -> None:
        """Let rates move towards what is expected first, where nothing is proposed or verified.

        So many steps have passed since they were moved last.
        """
        steps = min(num_steps, _MOST_BETWEEN)
        if not self._pays:
            for rates in self.rates:
                _move(rates, self._first_rates, _COMMON_RETURN * steps)
            if self.pass_seconds > self._first_pass:
                back = _COMMON_RETURN if self._num_measured >= NUM_TRIED else _OWN_RETURN
                self.pass_seconds += (self._first_pass - self.pass_seconds) * back * steps
        for sequence, count in zip(sampling, counts, strict=True):
            if not (count and sequence.verifying):
                for own, common in zip(sequence.rates, self.rates, strict=True):
                    _move(own, common, _OWN_RETURN * steps)

    def score(self, sequence: Sequence, walk: Series[int]) -> None:
        """Count drafts of the second model that a step has verified, and accepted on a walk."""
        num_sent = len(sequence.verifying) + sequence.num_branched
        if len(sequence.rates) < len(sequence.verifying):  # another source's
            return
        parents: Series[int] = range(ROOT, num_sent + ROOT)
        ranks: Series[int] = (0,) * num_sent
        if sequence.form is not None and sequence.form.ranks:
            form = sequence.form.first(num_sent)  # branches may have been left out
            parents, ranks = form.parents, form.ranks
        most_places = max(depths_of(parents))
        reached = ROOT
        for place in range(min(len(walk) + 1, most_places)):
            right = walk[place] if place < len(walk) else None
            seen = {
                ranks[number]: number == right
                for number, parent in enumerate(parents)
                if parent == reached
            }
            self._count(sequence, place, seen)
            reached = ROOT if right is None else right
        for place in range(most_places, self._most):  # where none was sent
            _move(sequence.rates[place], self.rates[place], _OWN_RETURN)
            _move(self.rates[place], self._first_rates, _COMMON_RETURN)

    def _count(self, sequence: Sequence, place: int, seen: dict[int, bool]) -> None:
        """Count which candidates of a place were verified, and right."""
        pairs = (
            (sequence.rates, self.rates, _OWN_GAIN, _OWN_RETURN),
            (self.rates, self._all_first_rates, _COMMON_GAIN, _COMMON_RETURN),
        )
        for rates, common, gain, back in pairs:
            own = rates[place]
            for rank, rate in enumerate(own):
                part = gain * (_OTHERS_PART_OF_GAIN if rank else 1.0)
                if rank in seen:
                    own[rank] += (seen[rank] - rate) * part
                elif rank:
                    own[rank] += (common[place][rank] - rate) * back

    def learn(
        self,
        plan: StepPlan,
        num_accepted: int,
        seconds: float,
        ahead_seconds: float,
        *,
        is_usual: bool = True,
    ) -> None:
        """Add a step that has ended to what is known: its own seconds, and those of its passes."""
        trees = dict(plan.ahead_trees)
        num_passes = 0
        for slot, chances in plan.ahead:
            tree = trees.get(slot)
            places = len(chances) if tree is None else max(depths_of(tree.parents))
            num_passes = max(num_passes, min(places, 1) if self._in_block else places)
        self._num_passes = num_passes
        usual = math.inf  # it is not known what they take
        if num_passes and plan.step == self._usual_step:
            usual = self.pass_seconds * num_passes or usual
            self.pass_seconds = _averaged(self.pass_seconds, ahead_seconds / num_passes)
            self._num_measured += 1
        self._comparison.learn(plan, num_accepted, seconds, ahead_seconds, usual, is_usual=is_usual)


def _averaged(before: float, newest: float) -> float:
    """Return the mean of times of which the newest counts, unless the machine has stalled."""
    if not before:
        return newest
    return before + (min(newest, 2.0 * before) - before) * _PASS_GAIN


def _move(rates: list[float], towards: Series[float], part: float) -> None:
    """Move rates towards others by a part of the distance."""
    for rank, other in enumerate(towards):
        rates[rank] += (other - rates[rank]) * part
