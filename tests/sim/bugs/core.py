"""Plausible mistakes in the core, as changes of its source text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One change. `old` must occur exactly once in the file, so that no bug becomes outdated."""

    name: str
    file: str
    old: str
    new: str
    kind: str | None = None  # of the worlds that catch it; None: the usual ones

    def apply(self, source: str) -> str:
        """Return the source with the bug in it."""
        if source.count(self.old) != 1:
            found = source.count(self.old)
            raise ValueError(f"{self.name}: {self.old!r} occurs {found} times in {self.file}")
        return source.replace(self.old, self.new)


# The first lines of Sequence.rewind.
_REWOUND = (
    '        """Forget everything computed or in flight; the known tokens stay."""\n'
    "        self.slot = NO_SLOT\n"
    "        self.num_computed = 0\n"
)

CORE_BUGS = (
    # block_pool
    Bug(
        "a shared block's reference is not dropped",
        "kv/block_pool.py",
        "        if count:\n            return\n",
        "        if count:\n            self.ref_counts[block] = count + 1\n            return\n",
    ),
    Bug(
        "a second holder is not counted",
        "kv/block_pool.py",
        "        self.ref_counts[block] += 1\n",
        "        self.ref_counts[block] = 1\n",
    ),
    Bug(
        "a block allocated again keeps its label",
        "kv/block_pool.py",
        "                self.unlabel(block)\n            block = following[block]\n",
        "                pass\n            block = following[block]\n",
    ),
    Bug(
        "a hit leaves its block in the free list",
        "kv/block_pool.py",
        "            self._next[before] = after\n            self._previous[after] = before\n",
        "",
    ),
    Bug(
        "a second block takes over a label",
        "kv/block_pool.py",
        " and digest not in self._index[group]",
        "",
    ),
    Bug(
        "KV groups are confused in the index",
        "kv/block_pool.py",
        "        return self._index[group]\n",
        "        return self._index[0]\n",
    ),
    Bug(
        "the free count misses a hit",
        "kv/block_pool.py",
        "            self._previous[after] = before\n            self.num_free -= 1\n",
        "            self._previous[after] = before\n",
    ),
    Bug(
        "the free list loses its tail",
        "kv/block_pool.py",
        "        following[0] = block\n        self._previous[block] = 0\n",
        "        following[0] = block\n",
    ),
    # kv_manager
    Bug(
        "the hash lacks the adapter",
        "kv/digests.py",
        " + scope + adapter",
        " + scope",
    ),
    Bug(
        "the hash lacks the scope",
        "kv/digests.py",
        " + scope + adapter",
        " + adapter",
    ),
    Bug(
        "the hash is not chained",
        "kv/digests.py",
        "digest + data[",
        "data[",
    ),
    Bug(
        "a reset keeps the epoch",
        "kv/manager.py",
        "        self.digests.epoch += 1\n",
        "",
    ),
    Bug(
        "blocks are cached before they are computed",
        "kv/manager.py",
        "num_full = sequence.num_computed // self.block_size",
        "num_full = sequence.num_planned // self.block_size",
    ),
    Bug(
        "a full hit leaves no token to compute",
        "kv/manager.py",
        "    def _match_cache(self, sequence: Sequence) -> Prefix:\n"
        "        limit = (len(sequence.tokens) - 1) // self.block_size",
        "    def _match_cache(self, sequence: Sequence) -> Prefix:\n"
        "        limit = len(sequence.tokens) // self.block_size",
    ),
    Bug(
        "a fork's partial block is not copied",
        "kv/manager.py",
        "[(tail, sequence.tables[group][num_shared], group) for",
        "[(tail, tail, group) for",
    ),
    Bug(
        "the copied block is never released",
        "kv/manager.py",
        "        for block, group in tails:\n            pool.release(block, group)\n",
        "",
    ),
    Bug(
        "a fork takes over another adapter's KV",
        "kv/manager.py",
        "        if (one.lora, one.cache_scope) != (other.lora, other.cache_scope):\n",
        "        if one.cache_scope != other.cache_scope:\n",
    ),
    Bug(
        "a fork takes KV from before a reset",
        "kv/manager.py",
        "        if parent.status is not Status.RUNNING"
        " or parent.cache_epoch != self.digests.epoch:\n",
        "        if parent.status is not Status.RUNNING:\n",
    ),
    Bug(
        "a fork takes what its parent has not computed",
        "kv/manager.py",
        "num_tokens = min(common, parent.num_computed)",
        "num_tokens = min(common, parent.num_planned)",
    ),
    Bug(
        "a fork shares one token too many",
        "kv/manager.py",
        "            high = middle\n    return low\n",
        "            high = middle\n    return low + 1\n",
    ),
    Bug("a window is one position short", "config.py", "- self.window + 1", "- self.window + 2"),
    Bug(
        "a window's blocks are released when they are planned past",
        "kv/policies.py",
        "        first, table = self.first_block(sequence.num_computed), sequence.tables[index]\n",
        "        first, table = self.first_block(sequence.num_planned), sequence.tables[index]\n",
    ),
    Bug(
        "a windowed hit is too short by a block",
        "kv/policies.py",
        "hits.index(NULL_BLOCK, first, num_blocks)",
        "hits.index(NULL_BLOCK, first + 1, num_blocks)",
    ),
    Bug(
        "tables grow a block too little",
        "kv/manager.py",
        "        count = self._blocks(end) - begin\n",
        "        count = end // self.block_size - begin\n",
    ),
    Bug(
        "a failed admission keeps the prefix",
        "kv/manager.py",
        "            for block, group in reversed(held):\n"
        "                pool.release(block, group)\n",
        "",
    ),
    Bug(
        "a failed request's blocks stay in the cache",
        "kv/manager.py",
        "                if block is not None:\n                    self.pool.unlabel",
        "                if False:\n                    self.pool.unlabel",
    ),
    Bug(
        "a sequence that left is still announced to compute",
        "kv/manager.py",
        "        for digest in sequence.digests[sequence.num_committed :]:\n",
        "        for digest in ():\n",
    ),
    Bug(
        "a window is assumed to begin at a block border",
        "config.py",
        "-(-(self.window - 1 + chunk_tokens) // block_size) + 1)",
        "-(-(self.window - 1 + chunk_tokens) // block_size))",
    ),
    Bug(
        "a failed request's last block stays in the cache",
        "kv/policies.py",
        "        return sequence.digests[: sequence.num_committed]\n",
        "        return sequence.digests[: sequence.num_committed - 1]\n",
    ),
    # scheduler, lifecycle, sequence, outcome, plan_draft
    Bug(
        "workers take all known tokens for the prompt",
        "lifecycle.py",
        "num_prompt=sequence.num_prompt,",
        "num_prompt=len(sequence.tokens),",
    ),
    Bug(
        "workers get default sampling parameters",
        "lifecycle.py",
        "sampling=sequence.request.sampling,",
        "sampling=type(sequence.request.sampling)(),",
    ),
    Bug(
        "an abort of a waiting request is lost",
        "scheduler.py",
        "None if sequence is None else self.lifecycle.abort",
        "None if sequence is None or sequence.slot < 0 else self.lifecycle.abort",
    ),
    Bug(
        "a freed slot is not announced",
        "lifecycle.py",
        "        self.freed_slots.append(sequence.slot)\n",
        "",
    ),
    Bug(
        "a freed slot is announced twice",
        "lifecycle.py",
        "        self.freed_slots = []\n        return freed",
        "        return freed",
    ),
    Bug(
        "a late result is counted",
        "lifecycle.py",
        "            step.drop(sequence)\n",
        "            pass\n",
    ),
    Bug(
        "the newest step in flight is not dropped",
        "lifecycle.py",
        "        for step in self.in_flight:\n            step.drop",
        "        for step in list(self.in_flight)[:-1]:\n            step.drop",
    ),
    Bug(
        "a preempted sequence is still planned",
        "sequence.py",
        _REWOUND + "        self.num_planned = 0\n",
        _REWOUND,
    ),
    Bug(
        "a preempted sequence still expects its sample",
        "sequence.py",
        _REWOUND + "        self.num_planned = 0\n        self.num_expected = len(self.tokens)\n",
        _REWOUND + "        self.num_planned = 0\n",
    ),
    Bug(
        "a preempted sequence keeps its drafts",
        "sequence.py",
        "        self.drafts = ()\n        self.verifying = ()\n",
        "        self.verifying = ()\n",
    ),
    Bug(
        "emitted tokens are forgotten on resumption",
        "sequence.py",
        "        self.tokens.extend(request.emitted)\n",
        "",
    ),
    Bug(
        "rejected drafts are not rolled back",
        "outcome.py",
        "    sequence.num_planned -= num_sent - num_accepted\n",
        "",
    ),
    Bug(
        "a rejected draft becomes a token",
        "outcome.py",
        "    return drafts[:num_accepted]\n",
        "    return drafts[: num_accepted + 1]\n",
    ),
    Bug(
        "tokens after a stop are emitted",
        "outcome.py",
        '            return Outcome(tokens[:count], "stop", named)\n',
        '            return Outcome(tokens, "stop", named)\n',
    ),
    Bug(
        "min_tokens counts the prompt",
        "outcome.py",
        "        num_output = known + count - sequence.num_prompt\n",
        "        num_output = known + count\n",
    ),
    Bug(
        "a sequence runs one token too long",
        "outcome.py",
        "        if known + count >= sequence.max_total:\n",
        "        if known + count > sequence.max_total:\n",
    ),
    Bug(
        "forced tokens count as computed",
        "outcome.py",
        "known + len(outcome.tokens) - num_forced - 1\n",
        "known + len(outcome.tokens) - 1\n",
    ),
    Bug(
        "forced tokens are not expected to be computed",
        "outcome.py",
        "    sequence.num_expected += num_accepted + num_forced\n",
        "    sequence.num_expected += num_accepted\n",
    ),
    Bug(
        "forced tokens behind a stop are kept",
        "outcome.py",
        "outcome = _append(sequence, num_accepted, (token, *forced), walk)\n",
        "outcome = _append(sequence, num_accepted, (token,), walk)\n"
        "    sequence.tokens.extend(forced)\n    sequence.num_expected += len(forced)\n",
    ),
    Bug(
        "a text whose grammar fails is taken for a fault",
        "outcome.py",
        '    return "impossible" if is_impossible else "error"\n',
        '    return "error"\n',
    ),
    Bug(
        "drafts before the token that a grammar forbids are lost",
        "outcome.py",
        "    if not num_accepted:\n        return Outcome((), failure)\n",
        "    if failure:\n        return Outcome((), failure)\n",
    ),
    Bug(
        "a text goes on with a draft where its grammar failed",
        "outcome.py",
        "    outcome = _append(sequence, num_accepted, (), walk)\n    return outcome if",
        "    outcome = _append(sequence, num_accepted, (), walk)\n"
        "    return outcome._replace(reason=None) if",
    ),
    Bug(
        "a cut chunk of forced tokens gives a token",
        "apply.py",
        "                or token < 0  # a chunk of forced tokens that was cut\n",
        "",
    ),
    Bug(
        "drafts exceed the end",
        "apply.py",
        "        most = sequence.max_total - len(sequence.tokens) - 1\n",
        "        most = sequence.max_total - len(sequence.tokens)\n",
    ),
    Bug(
        "a sample is not expected",
        "plan_draft.py",
        "            sequence.num_expected = expected + 1\n",
        "            pass\n",
    ),
    Bug(
        "followers are not released when their source leaves",
        "lifecycle.py",
        "        sequence.catching_up = False  # its followers wait for nothing any more\n",
        "",
    ),
    Bug(
        "a preempted sequence is planned",
        "scheduler.py",
        "            if victim is sequence:\n                return 0\n",
        "",
    ),
    Bug(
        "a pause is ignored",
        "scheduler.py",
        "        if not self.paused:\n",
        "        if True:\n",
    ),
    Bug(
        "a sequence that lacks blocks is overtaken",
        "admission/start.py",
        "self._kv.pool.can_fragment:\n                return BLOCKS, False\n",
        "self._kv.pool.can_fragment:\n                return BLOCKS, True\n",
    ),
    Bug(
        "the time in the queue is not explained",
        "lifecycle.py",
        "        clock.add_since(sequence.wait_reading, sequence.stats.wait_seconds)\n",
        "",
    ),
    # limits, queue, admit, engine
    Bug(
        "the budget is never used up",
        "limits.py",
        "        return count if count < remaining else remaining\n\n"
        "    def commit(self, sequence: Sequence, count: int) -> None:\n"
        "        self.remaining -= count\n",
        "        return count if count < remaining else remaining\n",
    ),
    Bug(
        "the budget is never renewed",
        "limits.py",
        "        self.remaining = self.budget\n",
        "        pass\n",
    ),
    Bug(
        "long prefills are not capped",
        "limits.py",
        "        return min(count, self.most)\n",
        "        return count\n",
    ),
    Bug(
        "a prompt is cut without chunked prefill",
        "limits.py",
        "        return 0 if cut else count\n",
        "        return count\n",
    ),
    Bug(
        "an adapter's slot is never freed",
        "limits.py",
        "            if not self.running[lora]:\n"
        "                self.slots[lora] = self.slots.pop(lora)\n"
        "                del self.running[lora]\n",
        "",
    ),
    Bug(
        "an adapter takes the slot of one that runs",
        "limits.py",
        "self.slots.pop(next(lora for lora in self.slots if lora not in self.running))",
        "self.slots.pop(next(iter(self.slots)))",
    ),
    Bug(
        "a sequence is opened before its adapter has a slot",
        "lifecycle.py",
        "            adapter=sequence.adapter,\n",
        "            adapter=0 if sequence.request.lora else -1,\n",
    ),
    Bug(
        "one adapter too many runs",
        "limits.py",
        "len(self.running) < self.num_slots",
        "len(self.running) <= self.num_slots",
    ),
    Bug(
        "priorities are reversed",
        "queue.py",
        "            return (request.priority, request.arrival, self._number)\n",
        "            return (-request.priority, request.arrival, self._number)\n",
    ),
    Bug(
        "ageing favours the less urgent",
        "queue.py",
        "request.arrival + request.priority * self.ageing_seconds",
        "request.arrival - request.priority * self.ageing_seconds",
    ),
    Bug(
        "the newest request goes first",
        "queue.py",
        "            return (0, request.arrival, self._number)\n",
        "            return (0, -request.arrival, -self._number)\n",
    ),
    Bug(
        "the queue accepts one request too many",
        "admit.py",
        "        if queue.num_waiting >= config.max_num_waiting:\n",
        "        if queue.num_waiting > config.max_num_waiting:\n",
    ),
    Bug(
        "a request that can never fit is admitted",
        "admit.py",
        "        if num_blocks > config.num_blocks - 1:\n",
        "        if num_blocks > config.num_blocks:\n",
    ),
    Bug(
        "one plan too many is in flight",
        "engine.py",
        "        if len(scheduler.in_flight) < scheduler.config.pipeline_depth:\n",
        "        if len(scheduler.in_flight) <= scheduler.config.pipeline_depth:\n",
    ),
    Bug(
        "events are emitted twice",
        "engine.py",
        "        events, self._outbox = self._outbox, []\n        return events\n",
        "        return self._outbox\n",
    ),
)
