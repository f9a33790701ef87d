"""More bugs that the simulator must catch: in KV, pages, holds, transfers, shares, repetitions."""

from __future__ import annotations

from tests.sim.planted_bugs import CORE_BUGS, Bug

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
    # holds
    Bug("a hold never expires", "lifecycle.py", "if _deadline(each) <= elapsed]", "if False]"),
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
)
TIME_BUGS = (
    Bug(
        "prompts are cut while no sequence decodes",
        "limits.py",
        "        return (num_tokens, num_read) if num_tokens or has_drawn else None\n",
        "        return num_tokens, num_read\n",
    ),
    Bug(
        "each prompt gets the whole room of a step",
        "limits.py",
        "        self._room -= seconds\n",
        "",
    ),
    Bug(
        "the depth of a prompt costs nothing",
        "pace/step_time.py",
        "        return PromptCost(token + pooled if is_pooled else token, pair)\n",
        "        return PromptCost(token, 0.0)\n",
    ),
    Bug(
        "the time of a step is taken for another's",
        "stats.py",
        "self.recent_seconds[-place]) for",
        "self.recent_seconds[-1]) for",
    ),
    Bug(
        "a stream whose first token is in flight does not count",
        "limits.py",
        "                has_drawn = True  # its first token, in a step in flight\n",
        "                has_drawn = False\n",
    ),
    Bug(
        "a first token that is late lengthens all steps",
        "limits.py",
        "        if left <= seconds:\n",
        "        if False:\n",
    ),
    Bug(
        "the oldest prompt may be cut to nothing",
        "limits.py",
        "                most = max(most, self._least // self.num_lines, 1)\n",
        "                most = max(most, 0)\n",
    ),
    Bug(
        "a decoding sequence behind a prompt does not count",
        "limits.py",
        "                num_tokens += count\n                num_read += each.num_planned\n",
        "                pass\n",
    ),
)
SHARE_BUGS = (
    Bug(
        "a share is taken from an owner that holds as much",
        "admission/share.py",
        "self._level(line)) < running.place[:2]",
        "self._level(line)) <= running.place[:2]",
    ),
    Bug(
        "a share ignores the weight",
        "admission/share.py",
        "        return max(line.num_running, worth) / line.weight\n",
        "        return float(max(line.num_running, worth))\n",
    ),
    Bug(
        "a share is not given to a new owner",
        "admission/share.py",
        "            if running[-1].line is not line and self.reason_to_displace",
        "            if False and self.reason_to_displace",
    ),
    Bug(
        "a share is given by the oldest sequence",
        "admission/share.py",
        "        for running in reversed(self._lifecycle.running):\n"
        "            if running.place < first:\n"
        "                break\n",
        "        for running in self._lifecycle.running:\n",
    ),
    Bug(
        "a share of a step is the whole step",
        "admission/share.py",
        "part_of(left * line.weight / weight)",
        "part_of(left)",
    ),
    Bug(
        "a share is not counted again when a sequence leaves",
        "admission/share.py",
        "            if moved or self._num_steps > REFRESH_STEPS:\n",
        "            if self._num_steps > REFRESH_STEPS:\n",
    ),
    Bug(
        "a share is given to the owner with most",
        "admission/share.py",
        "        return (line.rank, self._level(line), line.served, *head.order)\n",
        "        return (line.rank, -self._level(line), line.served, *head.order)\n",
    ),
    Bug(
        "a share's turn ends before its tokens",
        "admission/share.py",
        ">= self._quantum\n",
        ">= 0\n",
    ),
    Bug(
        "a share's turn never ends",
        "admission/share.py",
        ">= self._quantum\n",
        ">= self._quantum * 1000\n",
    ),
    Bug(
        "a share's running sequences are counted twice",
        "lifecycle.py",
        "        sequence.line.num_running -= 1\n",
        "",
    ),
)
REPETITION_BUGS = (
    Bug(
        "a repetition begins in the prompt",
        "outcome.py",
        "    first = max(sequence.num_prompt, len",
        "    first = max(0, len",
    ),
    Bug(
        "a repetition among accepted drafts is seen too late",
        "outcome.py",
        "_latest(sequence, tokens[:count], asked)",
        "_latest(sequence, tokens, asked)",
    ),
    Bug(
        "tokens behind a repetition are emitted",
        "outcome.py",
        '            return Outcome(tokens[:count], "repetition")\n',
        '            return Outcome(tokens, "repetition")\n',
    ),
    Bug(
        "a token alone does not end a text that repeats itself",
        "apply.py",
        "                or known + 1 >= sequence.may_end_at\n",
        "                or known + 1 >= sequence.max_total\n",
    ),
    Bug(
        "a repetition ends a text before its min_tokens",
        "outcome.py",
        "            and num_output >= sampling.min_tokens\n            and ends",
        "            and ends",
    ),
    Bug(
        "a repetition of the longest pattern is not seen",
        "stopping/repetition.py",
        "range(asked.min_pattern_size, longest + 1)",
        "range(asked.min_pattern_size, longest)",
    ),
)
STEADY_BUGS = (
    Bug(
        "a steady step appends tokens without looking for repetitions",
        "steady/next_plan.py",
        "            if each.may_end_at < each.max_total:  # any token may, not only these\n"
        "                self.stop_ids = None\n",
        "",
    ),
    Bug(
        "a steady step follows forced tokens",
        "apply.py",
        "            if forced:\n                self._steady.forget()\n",
        "",
    ),
    Bug(
        "a steady step does not notice who has left",
        "steady/next_plan.py",
        "            or self._num_moves != self._lifecycle.num_moves\n",
        "",
    ),
    Bug(
        "a steady step goes on behind the longest length",
        "steady/next_plan.py",
        "each.max_total - each.num_expected)",
        "each.max_total - each.num_expected + 1)",
    ),
    Bug(
        "a steady step's dropped chunk gets a token",
        "plan_draft.py",
        "            self.sequences[index] = None\n            self.stop_ids = None\n",
        "            self.sequences[index] = None\n",
    ),
    Bug(
        "a steady step's table grows too late",
        "steady/next_plan.py",
        "step + self._block_size, [])",
        "step + self._block_size + 1, [])",
    ),
    Bug(
        "a steady step lets those wait who could start",
        "steady/next_plan.py",
        "            or (self._queue.num_ready and (self._free_slots or self._by_priority))\n",
        "",
    ),
    Bug(
        "a steady step ignores that several owners share it",
        "steady/next_plan.py",
        "            or len(self._lines) != 1\n",
        "",
    ),
)
BUGS = (*CORE_BUGS, *KV_BUGS, *TIME_BUGS, *SHARE_BUGS, *REPETITION_BUGS, *STEADY_BUGS)
