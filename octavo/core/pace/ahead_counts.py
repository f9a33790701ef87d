"""What a second model computes and proposes in a step: as much as gains more than it costs.

Proposing takes a pass of the second model for each place, or one for all of them (`_in_block`),
which all sequences of a step share, and in the next step a row of the first model for each draft.
How often the proposals of a place are right is measured in each sequence, from what the engine has
seen; the seconds of a pass are those that the workers report. As many places are chosen as raise
the tokens per second.

Where nothing is proposed for a sequence, the second model does not read it either, and takes no
time. When it is used again, it catches up: it computes what it lacks in one pass, at once if that
is not too much. What it has measured slowly returns to what is expected first, so that it is tried
again. Where the machine stalls, a time counts as no more than twice what is known of it.

What it has taken, and what its right proposals have saved, are kept in an account. It may take a
small share of the engine's time more than it saves; when that is spent, it rests until there is
enough for another trial. So it costs no more than this share where it does not pay, prompts that
it reads included, and long stalls aside.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from typing import NamedTuple

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.pace.draft_counts import ROW_COST, DraftCounts
from octavo.core.pace.proposed_tree import ProposedTree
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from octavo.core.trees.form import ROOT, depths_of

FIRST_RATE = 0.7  # of right proposals, before any has been verified
# Of a place's other candidates, the second has this part of the rest, and each later one half.
OTHERS_PART = 0.4
# The part of a step without rows that a pass takes, until passes have been measured.
PASS_COST = 0.15
SHARE = 0.01  # of the time, which it may take without saving any
FIRST_SECONDS = 0.5  # in the account of a new engine
MOST_SECONDS = 1.0  # that may be in it
TRIAL_SECONDS = 0.2  # that must be in it again when it has been spent
NUM_REFINED = 3  # times that the drafts of a block are chosen, each by the rate of the ones before
NUM_TRIED = 16  # steps with drafts, after which their time is compared with that of others
NUM_OFF = 512  # steps without drafts, where those with drafts were slower
# Every so many steps, one without drafts is made where its time is not known, or may have changed.
NUM_UNKNOWN, NUM_OLD = 32, 256
_OWN_GAIN = 0.125  # weight of the newest proposal in the rates of its sequence
_COMMON_GAIN = 0.0625  # … in those of the engine
# Other candidates are seldom right: how often shows in the mean of more steps only.
_OTHERS_PART_OF_GAIN = 0.25
_OWN_RETURN = 0.02  # towards the engine's rates, in a step that verifies none
_COMMON_RETURN = 0.002  # towards the first rate
_PASS_GAIN = 0.2  # weight of the newest step in the seconds of a pass


class Rate(NamedTuple):
    """The tokens of a step, and its seconds."""

    tokens: float
    seconds: float


class AheadCounts:
    """The rule for the second model, the rates of its proposals, and its account."""

    def __init__(self, config: CoreConfig, kv: KVManager, drafts: DraftCounts) -> None:
        self._most = config.max_ahead
        self._most_lag = config.max_ahead_lag
        self._longest = config.max_ahead_len or config.max_model_len
        self._budget = config.max_num_batched_tokens
        self._kv = kv
        self._drafts = drafts
        self._width = config.ahead_width if config.max_branches else 1
        self._forks, self._in_block = config.ahead_forks, config.ahead_in_block
        self._most_branches, self._most_drafts = config.max_branches, config.max_drafts
        rest = (1.0 - FIRST_RATE) * OTHERS_PART
        self._first_rates = [FIRST_RATE, *[rest * 0.5**more for more in range(self._width - 1)]]
        self._all_first_rates = [self._first_rates] * self._most
        self.rates = [[*self._first_rates] for _ in range(self._most)]
        self.seconds = FIRST_SECONDS  # in the account
        self.is_resting = False
        self.pass_seconds = 0.0  # 0: not measured yet
        self._num_passes = 0  # in the last step that has ended
        self._pays = True  # it proposed for some sequence when it was last asked
        self._first_pass = 0.0  # what one is expected to take before it is measured
        self._num_measured = 0  # steps; the first may have waited for memory or files
        self._usual_step = -1  # the last one in which passes were of the usual size
        # By the sequences of a step (`_size`): its seconds without drafts; what the last steps with
        # drafts gained, in seconds; and the step until which none has.
        self._plain: dict[int, float] = {}
        self._gains: dict[int, list[float]] = {}
        self._off_until: dict[int, int] = {}
        # Of the step whose result is applied.
        self._num_verified = self._num_accepted = 0
        self._num_expected = 0.0  # accepted drafts, by the rates

    @property
    def expected_seconds(self) -> float:
        """The seconds that the second model will take in the next step, if texts only grow."""
        return 0.0 if self.is_resting else self._num_passes * self.pass_seconds

    def choose(self, draft: PlanDraft, step: int) -> None:
        """Add to a plan what the second model computes, and give it the blocks for that."""
        if self.is_resting:
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
            is_behind = start - sequence.num_followed > self._most_lag
            if not sequence.may_draft or is_behind or start + count > self._longest:
                continue
            (sampling if samples else reading).append(sequence)
        size = _size(num_rows)
        if not (sampling or reading) or step < self._off_until.get(size, 0):
            return
        if (step + 1) % (NUM_OLD if size in self._plain else NUM_UNKNOWN) == 0:
            sampling = []  # the next step has no drafts, and shows what it takes then
        trees = self._trees(sampling, num_rows, num_read)
        counts = [tree.num_places for tree in trees]
        if sampling:
            self._pays = any(counts)
            self._return(sampling, counts)
        usual = 2 * len(sampling)
        for sequence, tree in zip(sampling, trees, strict=True):
            count = self._with_room(sequence, tree.num_places, draft)
            if count:
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

    def _trees(self, sampling: list[Sequence], num_rows: int, num_read: int) -> list[ProposedTree]:
        """Return for each sequence the proposals that gain more than they cost."""
        if not sampling:
            return []
        fixed, row = self._drafts.seconds(num_read)
        each_pass = self.pass_seconds
        self._first_pass = PASS_COST * fixed or each_pass
        if not fixed:
            fixed, row, each_pass = 1.0, ROW_COST, PASS_COST
        each_pass = each_pass or PASS_COST * fixed
        tokens, seconds = float(num_rows), fixed + row * num_rows
        room = (self._budget - num_rows) // len(sampling)
        most, most_aside = min(room, self._most_drafts), self._most_branches // len(sampling)
        if self._in_block:
            return self._block_trees(sampling, room, Rate(tokens, seconds), row, each_pass)
        trees = [self._tree(each, self._places(each, room)) for each in sampling]
        for _ in range(self._most):
            added, num_added = 0.0, 0
            all_offers = []
            for tree in trees:
                offers = tree.offers(tokens * row / seconds, most, most_aside)
                added += sum([offer.chance for offer in offers])
                num_added += len(offers)
                all_offers.append(offers)
            cost = each_pass + row * num_added
            if added * seconds <= tokens * cost:
                break
            for tree, offers in zip(trees, all_offers, strict=True):
                tree.add(offers)
            tokens += added
            seconds += cost
        for tree in trees:
            tree.leave_out(tokens * row / seconds)
        return trees

    def _block_trees(
        self, sampling: list[Sequence], room: int, plain: Rate, row: float, each_pass: float
    ) -> list[ProposedTree]:
        """Return the proposals that gain more than they cost, where a pass is for all of them.

        A draft is worth its row if its chance is more than the tokens for the seconds of one; these
        are more with drafts than without, so that fewer are worth it. Where no choice by the rate
        without drafts pays for the pass, none does.
        """
        most, most_aside = min(room, self._most_drafts), self._most_branches // len(sampling)
        best = [self._tree(each, 0) for each in sampling]
        rate = plain.tokens / plain.seconds
        for _ in range(NUM_REFINED):
            trees = [self._tree(each, self._places(each, room)) for each in sampling]
            tokens, seconds = plain.tokens, plain.seconds + each_pass
            for tree in trees:
                while offers := tree.offers(rate * row, most, most_aside):
                    tree.add(offers)
                    tokens += sum([offer.chance for offer in offers])
                    seconds += row * len(offers)
            if tokens <= rate * seconds:
                break
            best, rate = trees, tokens / seconds
        return best

    def _tree(self, sequence: Sequence, most_places: int) -> ProposedTree:
        """Return the tree of a sequence, which has no drafts yet."""
        if not sequence.rates:
            sequence.rates = [[*rates] for rates in self.rates]
        return ProposedTree(sequence.rates, most_places, width=self._width, forks=self._forks)

    def _places(self, sequence: Sequence, room: int) -> int:
        """Return for how many places something may be proposed."""
        return min(self._most, room, self._useful(sequence))

    def _useful(self, sequence: Sequence) -> int:
        """Return how many tokens behind the present sample could be drafts of the next step.

        The second model reads the sample and all of them but the last.
        """
        if self._in_block and sequence.num_planned + self._most + 1 > self._longest:
            return 0  # all rows of a block have their places, or it is not computed
        before_end = sequence.max_total - sequence.num_expected - 1
        return max(0, min(before_end, self._longest - sequence.num_planned))

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

    def _return(self, sampling: list[Sequence], counts: list[int]) -> None:
        """Let rates move towards what is expected first, where nothing is proposed or verified."""
        if not self._pays:
            for rates in self.rates:
                _move(rates, self._first_rates, _COMMON_RETURN)
            if self.pass_seconds > self._first_pass:
                back = _COMMON_RETURN if self._num_measured >= NUM_TRIED else _OWN_RETURN
                self.pass_seconds += (self._first_pass - self.pass_seconds) * back
        for sequence, count in zip(sampling, counts, strict=True):
            if not (count and sequence.verifying):
                for own, common in zip(sequence.rates, self.rates, strict=True):
                    _move(own, common, _OWN_RETURN)

    def score(self, sequence: Sequence, walk: Series[int]) -> None:
        """Count drafts of the second model that a step has verified, and accepted on a walk."""
        num_sent = len(sequence.verifying) + sequence.num_branched
        self._num_verified += num_sent
        self._num_accepted += len(walk)
        if len(sequence.rates) < len(sequence.verifying):  # another source's
            self._num_expected += len(walk)
            return
        parents: Series[int] = range(ROOT, num_sent + ROOT)
        ranks: Series[int] = (0,) * num_sent
        if sequence.form is not None and sequence.form.ranks:
            form = sequence.form.first(num_sent)  # branches may have been left out
            parents, ranks = form.parents, form.ranks
        chances: list[float] = []
        depths = depths_of(parents)
        for parent, rank, depth in zip(parents, ranks, depths, strict=True):
            before = 1.0 if parent == ROOT else chances[parent]
            chances.append(before * sequence.rates[depth - 1][rank])
        self._num_expected += sum(chances)
        reached = ROOT
        for place in range(min(len(walk) + 1, max(depths))):
            right = walk[place] if place < len(walk) else None
            seen = {
                ranks[number]: number == right
                for number, parent in enumerate(parents)
                if parent == reached
            }
            self._count(sequence, place, seen)
            reached = ROOT if right is None else right

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

    def _compare(self, plan: StepPlan, taken: float, seconds: float) -> None:
        """Compare a step that only decodes with those of its size without drafts.

        Where the last ones with drafts were slower for each token, none is made for a while. The
        tokens are those that the rates let expect: how many there were is chance, in so few steps.
        """
        num_rows = len(plan.slots)
        num_drafts = plan.num_tokens - num_rows
        num_sent = sum([len(drafts) for _, drafts in plan.drafts]) + plan.num_branched
        if not num_rows or num_sent != num_drafts:
            return  # it has prompts
        size = _size(num_rows)
        if not num_drafts:
            self._plain[size] = _averaged(self._plain.get(size, 0.0), seconds)
            return
        plain = self._plain.get(size)
        if plain is None:
            return
        gains = self._gains.setdefault(size, [])
        gained = plain * (1.0 + self._num_expected / num_rows)
        gains.append(gained - min(taken, 2.0 * gained))
        if len(gains) >= NUM_TRIED:
            if sum(gains) < 0.0:
                self._off_until[size] = plan.step + NUM_OFF
            gains.clear()

    def learn(self, plan: StepPlan, seconds: float, ahead_seconds: float) -> None:
        """Add to the account what a step has saved, and take off what the second model took."""
        trees = dict(plan.ahead_trees)
        num_passes = 0
        for slot, chances in plan.ahead:
            tree = trees.get(slot)
            places = len(chances) if tree is None else max(depths_of(tree.parents))
            num_passes = max(num_passes, min(places, 1) if self._in_block else places)
        self._num_passes = num_passes
        known = self.pass_seconds
        if num_passes and plan.step == self._usual_step:
            self.pass_seconds = _averaged(known, ahead_seconds / num_passes)
            self._num_measured += 1
        self._compare(plan, seconds + ahead_seconds, seconds)
        num_samples = plan.samples.count(True)
        fixed, row = self._drafts.seconds(sum(plan.starts))
        plain = min(seconds, fixed + row * num_samples) if fixed else seconds
        saved = self._num_accepted * plain / max(1, num_samples) - self._num_verified * row
        self._num_verified = self._num_accepted = 0
        self._num_expected = 0.0
        if known and num_passes and plan.step == self._usual_step:
            ahead_seconds = min(ahead_seconds, 2.0 * known * num_passes)
        self.seconds = min(MOST_SECONDS, self.seconds + SHARE * seconds - ahead_seconds + saved)
        self.is_resting = self.seconds < (TRIAL_SECONDS if self.is_resting else 0.0)


def _size(num_rows: int) -> int:
    """Return the number of sequences of a step, or one near it: its first three digits of two."""
    rest = max(0, num_rows.bit_length() - 3)
    return num_rows >> rest << rest


def _averaged(before: float, newest: float) -> float:
    """Return the mean of times of which the newest counts, unless the machine has stalled."""
    if not before:
        return newest
    return before + (min(newest, 2.0 * before) - before) * _PASS_GAIN


def _move(rates: list[float], towards: Series[float], part: float) -> None:
    """Move rates towards others by a part of the distance."""
    for rank, other in enumerate(towards):
        rates[rank] += (other - rates[rank]) * part
