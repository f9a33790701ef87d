"""Bugs in what is kept of sequences: kinds of KV, pages, holds, transfers."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

KV_BUGS = (
    # kinds
    Bug(
        "a state has no room where drafts are rejected",
        "kv/policies.py",
        ">= end - self.max_drafts",
        ">= end",
    ),
    Bug(
        "a fork takes a state of another position",
        "kv/policies.py",
        "        return size * self.longest(table, num_tokens // size)\n",
        "        return num_tokens\n",
    ),
    Bug(
        "a state that is not there is continued",
        "kv/policies.py",
        "        while num_blocks and hits[num_blocks - 1] == NULL_BLOCK:\n",
        "        while False:\n",
    ),
    Bug(
        "a state is dropped before it is read",
        "config.py",
        "            return max(0, position - 1)\n",
        "            return position\n",
    ),
    Bug(
        "an encoder's positions are found in part",
        "kv/policies.py",
        "        return hits if len(hits) == len(own) else []\n",
        "        return hits\n",
    ),
    Bug(
        "the first chunk does not write the encoder's positions",
        "kv/policies.py",
        "        return not prefix and self.table_length(sequence, 0) > 0\n",
        "        return False\n",
    ),
    Bug(
        "a fork takes KV of another encoder input",
        "kv/manager.py",
        "        if one.encoder != other.encoder:\n            return None\n",
        "",
    ),
    Bug(
        "the hash lacks the encoder input",
        "kv/digests.py",
        "        if request.encoder is None:\n",
        "        if True:\n",
    ),
    Bug(
        "the hash lacks the salts",
        "kv/digests.py",
        "                if salts:\n",
        "                if False:\n",
    ),
    Bug("a salt's place is not hashed", "kv/digests.py", "% (position - begin, len", "% (0, len"),
    Bug(
        "a fork ignores its salts",
        "kv/manager.py",
        "        if one.salts != other.salts:\n",
        "        if False:\n",
    ),
    Bug(
        "a latent group keeps what its window has passed",
        "kv/policies.py",
        "        (WindowPolicy if group.window is not None else",
        '        (WindowPolicy if group.window is not None and group.kind == "full" else',
    ),
    Bug(
        "a fork takes a state that a step in flight changes",
        "kv/policies.py",
        "        if num_tokens == parent.num_computed and is_settled:\n",
        "        if num_tokens == parent.num_computed:\n",
    ),
    Bug(
        "a failed request's encoder positions stay in the cache",
        "kv/policies.py",
        "    def committed(self, sequence: Sequence) -> list[bytes]:\n"
        "        return self.digests_of(sequence)\n",
        "",
    ),
    Bug(
        "a state's chunk is taken to begin at a block border",
        "config.py",
        "            entries = -(-(1 + chunk_tokens) // block_size) + 1\n",
        "            entries = -(-chunk_tokens // block_size)\n",
    ),
    Bug(
        "a fork takes a partial block that a window has passed",
        "kv/policies.py",
        "-(-num_tokens // self.block_size)\n        has_passed",
        "num_tokens // self.block_size\n        has_passed",
    ),
    # pages
    Bug(
        "a page that is in use again stays free",
        "kv/page_pool.py",
        "            del self._idle_pages[page]\n            for other",
        "            for other",
    ),
    Bug(
        "a page taken again keeps its labels",
        "kv/page_pool.py",
        "            self._remove_label(block, owner)\n        return page\n",
        "            pass\n        return page\n",
    ),
    Bug(
        "a page is freed while a block in it is used",
        "kv/page_pool.py",
        "            self._add_free(block, group)\n            return\n        blocks",
        "            self._add_free(block, group)\n        blocks",
    ),
    Bug(
        "a shared part may take more pages than there are",
        "admission/start.py",
        "            elif running or not self._kv.pool.can_fragment:\n",
        "            elif True:\n",
    ),
    Bug(
        "a page holds a block more than fits",
        "config.py",
        "tuple(page_bytes // group.block_bytes for",
        "tuple(-(-page_bytes // group.block_bytes) for",
    ),
    Bug(
        "a reset loses the free blocks of pages in use",
        "kv/page_pool.py",
        "            self._spare[group].update(self._cached[group])\n",
        "",
    ),
    Bug(
        "a free page's cached blocks can still be taken",
        "kv/page_pool.py",
        "            self._cached[group].pop(other, None)\n        labels",
        "        labels",
    ),
    Bug(
        "a cached block taken again is still found",
        "kv/page_pool.py",
        "        del spare[block]\n        self._remove_label(block, group)\n",
        "        del spare[block]\n",
    ),
    Bug(
        "a group's room in its pages is lent to others",
        "kv/page_pool.py",
        "            max(0, -(-(count - len(spare) - len(cached)) // per_page))\n",
        "            -(-(count - len(spare) - len(cached)) // per_page)\n",
    ),
    # holds
    Bug("a hold never expires", "lifecycle.py", "if self.deadline(each) <= elapsed]", "if False]"),
    Bug(
        "a hold ends with its first reason",
        "lifecycle.py",
        "        if not hold.reasons:\n",
        "        if True:\n",
    ),
    Bug(
        "what cannot be loaded is taken for ready",
        "scheduler.py",
        "        if event.error is not None:\n",
        "        if False:\n",
    ),
    Bug(
        "the time of a hold is not explained",
        "lifecycle.py",
        "    wait_seconds[reason] = wait_seconds.get(reason, 0.0) + seconds\n",
        "",
    ),
    Bug(
        "an event ends the first reason, whichever it names",
        "lifecycle.py",
        "tuple([each for each in hold.reasons if each != reason])",
        "hold.reasons[1:]",
    ),
    Bug(
        "a later hold postpones an earlier deadline",
        "lifecycle.py",
        "is_optional=False)\n        self.next_deadline = min(self.next_deadline, deadline)\n",
        "is_optional=False)\n        self.next_deadline = deadline\n",
    ),
    Bug(
        "a fetch has no deadline",
        "lifecycle.py",
        "        deadline = self.clock.elapsed + self._hold_seconds\n"
        "        self._hold(sequence, FETCH",
        "        deadline = NO_DEADLINE\n        self._hold(sequence, FETCH",
    ),
    Bug(
        "a fetch that is late fails its request",
        "lifecycle.py",
        "            if hold.is_optional:\n",
        "            if False:\n",
    ),
    Bug(
        "a held request cannot be aborted",
        "scheduler.py",
        "None if sequence is None else self.lifecycle.abort",
        "None if sequence is None or sequence.hold else self.lifecycle.abort",
    ),
    Bug(
        "a late load ends another hold",
        "lifecycle.py",
        "                if hold is None or hold.reasons != (FETCH,):\n",
        "                if hold is None:\n",
    ),
    # transfers
    Bug(
        "a load that failed is used",
        "kv/transfers.py",
        "        if has_succeeded and load.is_wanted:\n",
        "        if load.is_wanted:\n",
    ),
    Bug(
        "a loaded block is never released",
        "kv/transfers.py",
        "        self._pool.release(load.block, group)\n",
        "",
    ),
    Bug(
        "a failed request's KV stays in another place",
        "kv/transfers.py",
        "        self.index.forget(group, digest)\n",
        "",
    ),
    Bug(
        "loads are planned twice",
        "kv/transfers.py",
        "        self.loads, self.saves = [], []\n",
        "        self.saves = []\n",
    ),
    Bug(
        "blocks to load are confused between groups",
        "kv/transfers.py",
        "        by_group = sorted(lacking, key=lambda content: content[0])\n",
        "        by_group = lacking[::-1]\n",
    ),
    Bug(
        "an idle engine does not hear that a load has ended",
        "scheduler.py",
        "        is_quiet = bool(transfers.loading) and not self.in_flight\n",
        "        is_quiet = False\n",
    ),
    Bug(
        "an idle engine saves nothing",
        "scheduler.py",
        "        return is_quiet or transfers.are_due\n",
        "        return is_quiet or bool(transfers.loads)\n",
    ),
    Bug(
        "a reset leaves KV in other places",
        "kv/manager.py",
        "            self.transfers.reset()\n",
        "            pass\n",
    ),
)
