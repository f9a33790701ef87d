"""One request inside the core: the tokens that are known, and how far its KV is computed.

There is no prefill or decode phase. A sequence has known tokens and computed positions, and to
schedule it means to let the second catch up with the first:

    tokens    P P P P P P P P g g g ·        P prompt, g generated, · being sampled
              ├─────────────┤                num_computed   positions whose KV is written
              ├───────────────────┤          num_planned    … or is computed by a step in flight
              ├─────────────────────┤        num_expected   known tokens, and those being sampled

A chunk takes positions from num_planned on. If it reaches num_expected, it samples, and
num_expected rises by one at once, so that the next plan can be made before this one has run.
A chunk may carry drafts past num_expected; its result says how many were accepted, and
num_planned falls back to the position after the last accepted one.

The hardest invariant: 0 <= num_computed <= num_planned, and the difference is exactly the sum
of this sequence's chunks in flight. Preemption, which takes the KV away, also drops those chunks
and resets all three counters, so that a late result can never be counted.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from math import inf

from octavo.core.plan import NO_ADAPTER
from octavo.core.request import Request
from octavo.core.stats import RequestStats, WaitClock
from octavo.core.trees.form import DraftTree, chains_of, reordered

NO_SLOT = -1
UNLIMITED = 1 << 62  # more than any count of tokens

# A sequence's place in the order of running ones: rank, level, and the order within its line.
Place = tuple[int, float, float, float, int]


class Status(IntEnum):
    """The place of a sequence; only a running one owns a slot and blocks."""

    WAITING = 0  # in the queue
    HELD = 1  # waiting for something outside the schedule, out of the queue's sight
    RUNNING = 2
    FINISHED = 3


class Line:
    """The living sequences of one owner and one rank, and what those that run hold together."""

    __slots__ = (
        "allotment",
        "clock",
        "name",
        "num_living",
        "num_pages",
        "num_running",
        "rank",
        "room",
        "served",
        "waiting",
        "weight",
    )

    def __init__(self, name: str, rank: int, weight: float, clock: WaitClock) -> None:
        self.name = name
        self.rank = rank  # 1: background, which any of rank 0 precedes
        self.weight = weight
        self.clock = clock  # why its head waits
        self.waiting: list[Sequence] = []  # in order, with the head at the end of the list
        self.num_living = 0
        self.num_running = 0
        self.num_pages = 0  # of its running sequences, counted while there are several lines
        self.served = 0.0  # tokens since the engine's start, divided by the weight
        self.allotment = UNLIMITED  # tokens that its prefills may still take in this step
        self.room = inf  # seconds that they may still add to it


class Hold:
    """The reasons for which a sequence is held, since when, and until when at most."""

    __slots__ = ("deadline", "is_optional", "num_loads", "reasons", "since")

    def __init__(
        self, reasons: tuple[str, ...], since: float, deadline: float, is_optional: bool
    ) -> None:
        self.reasons = reasons  # those that are not satisfied yet; the first is being counted
        self.since = since  # when the first reason began to count
        self.deadline = deadline
        self.is_optional = is_optional  # after the deadline it goes on without, and else it fails
        self.num_loads = 0  # of KV that it still waits for


class Sequence:
    """Mutable state of one request; only the core writes to it."""

    __slots__ = (
        "adapter",
        "are_predicted",
        "cache_epoch",
        "catching_up",
        "chances",
        "commit_at",
        "digests",
        "drafts",
        "encodes",
        "first_block",
        "followers",
        "form",
        "has_fetched",
        "hold",
        "is_exclusive",
        "line",
        "max_total",
        "may_draft",
        "may_end_at",
        "num_at_start",
        "num_capacity",
        "num_charged",
        "num_committed",
        "num_computed",
        "num_expected",
        "num_followed",
        "num_free_needed",
        "num_overtaken",
        "num_planned",
        "num_prompt",
        "order",
        "place",
        "rates",
        "request",
        "request_id",
        "sampler_state",
        "side",
        "slot",
        "stats",
        "status",
        "stop_ids",
        "tables",
        "tokens",
        "tree",
        "verifying",
        "wait_reading",
    )

    def __init__(
        self,
        request: Request,
        order: tuple[float, float, int],
        max_total: int,
        now: float,
        line: Line,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.order = order  # the smaller goes first: a total order that never changes
        self.line = line
        # Among running sequences; the last of them is preempted first.
        self.place: Place = (line.rank, 0.0, *order)
        self.tokens = array("i", request.prompt)
        self.tokens.extend(request.emitted)
        self.sampler_state = request.sampler_state  # behind the known tokens, if it has one
        self.num_prompt = len(request.prompt)
        self.max_total = max_total
        # The length from which on any token may end it; before, only one of `stop_ids` does.
        self.may_end_at = max_total
        if request.sampling.repetition_detection is not None:
            first = self.num_prompt + max(1, request.sampling.min_tokens)
            self.may_end_at = min(max_total, first)
        stops = request.sampling.stop_token_ids
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self.stop_ids: frozenset[int] = frozenset((*stops, *eos))

        self.status = Status.WAITING
        self.slot = NO_SLOT
        self.adapter = NO_ADAPTER  # the slot of its adapter, when it last began to run
        self.num_computed = 0
        self.num_planned = 0
        self.num_expected = len(self.tokens)
        self.num_at_start = 0  # known tokens when it was last given a slot
        self.num_charged = 0  # known tokens that its line's `served` contains
        self.catching_up = True  # from getting a slot until the first sample
        self.may_draft = False  # whether the workers may send drafts for it
        self.drafts: tuple[int, ...] = ()  # to be verified by the next plan
        self.chances: tuple[float, ...] = ()  # that each is right with all before; (): not known
        self.are_predicted = False  # the last drafts were of its prediction
        self.tree: DraftTree | None = None  # the form of `drafts`, until it is cut into chains
        # Then `drafts` is the main chain, and these are branches: what each follows, its drafts.
        self.side: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self.form: DraftTree | None = None  # of the main chain and the branches; None: a plain one
        self.verifying: tuple[int, ...] = ()  # drafts in flight, of the chunk
        # Of a second model: how often its proposals were right, by place among a step's and by
        # rank, where all before were; and the positions that it has computed, as far as known here.
        self.rates: list[list[float]] = []
        self.num_followed = 0
        # (computed positions that it waits for, a sequence that follows this one)
        self.followers: list[tuple[int, Sequence]] = []

        # The KV manager's part. The block tables, one for each group, have equal lengths.
        self.tables: tuple[list[int], ...] = ()
        self.num_capacity = 0  # positions the tables cover
        self.first_block: list[int] = []  # by group: earlier blocks are out of its window
        self.digests: list[bytes] = []  # chain hashes of the leading full blocks
        self.num_committed = 0  # leading blocks that are computed and in the prefix cache
        self.commit_at = 0  # num_computed at which there is another block to commit
        self.cache_epoch = -1  # the prefix-cache epoch its KV belongs to
        self.has_fetched = False  # KV from another place; it does so once
        self.encodes: tuple[int, ...] = ()  # groups whose encoder positions its first chunk writes
        self.is_exclusive = False  # it lacked blocks when alone: it runs alone, without the cache

        self.stats = RequestStats(request.arrival, self.num_prompt, now)
        self.num_overtaken = 0  # sequences that were admitted before it while it was the head
        self.num_free_needed = 0  # free blocks that it needed to start when last examined
        self.wait_reading: tuple[float, ...] = ()  # of the wait clock, when it began to wait
        self.hold: Hold | None = None  # if it is held

    @property
    def num_kept(self) -> int:
        """The tokens that are kept of it while it waits, those of its prediction included."""
        return len(self.tokens) + len(self.request.prediction)

    @property
    def in_flight(self) -> bool:
        """True if a step in flight computes or samples anything for this sequence."""
        return self.num_planned > self.num_computed or self.num_expected > len(self.tokens)

    @property
    def num_branched(self) -> int:
        """The number of drafts in branches, to be verified or in flight."""
        return sum([len(tokens) for _, tokens in self.side]) if self.side else 0

    def keep_drafts(self, count: int) -> None:
        """Keep so many of the drafts, the first ones; cut a tree of them into chains.

        The branches of a tree that is cut into chains already are kept all, or left out.
        """
        if self.tree is None:
            if count < len(self.drafts):
                self.side = ()
            self.drafts = self.drafts[:count]
            return
        tree, drafts = self.tree, self.drafts[:count]
        self.tree = None
        if not drafts:
            self.drafts = ()
            return
        chains = chains_of(tree.parents[: len(drafts)])
        self.form = reordered(tree, chains.order)
        self.drafts = tuple([drafts[number] for number in chains.main])
        if self.chances:
            self.chances = tuple([self.chances[number] for number in chains.main])
        side, place = [], len(chains.main)
        for branch in chains.branches:
            side.append((self.form.parents[place], tuple([drafts[number] for number in branch])))
            place += len(branch)
        self.side = tuple(side)

    def rewind(self) -> None:
        """Forget everything computed or in flight; the known tokens stay."""
        self.slot = NO_SLOT
        self.num_computed = 0
        self.num_planned = 0
        self.num_expected = len(self.tokens)
        self.catching_up = True
        self.drafts = ()
        self.verifying = ()
        self.tree = self.form = None
        self.side = ()
